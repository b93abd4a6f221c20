"""What operations take for a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

if TYPE_CHECKING:
    from lbrx.tensor.core import Tensor
    from lbrx.tensor.number import TracedNumber

TensorLike: TypeAlias = "Tensor | TracedNumber | NDArray[Any] | Sequence[Any] | float"
"""A tensor, an array of numpy, a (nested) list, or a number, which takes the dtype it meets."""
