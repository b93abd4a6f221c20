"""The type of the operands of operations: tensors and everything that is converted to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

if TYPE_CHECKING:
    from lbrx.tensors.core import Tensor
    from lbrx.tensors.traced_number import TracedNumber

TensorLike: TypeAlias = "Tensor | TracedNumber | NDArray[Any] | Sequence[Any] | float"
"""A tensor, a numpy array, a (nested) list, or a number, which takes the dtype of the tensor it is
combined with."""
