"""The description of a quantized tensor's data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

ArrayT = TypeVar("ArrayT")
OtherT = TypeVar("OtherT")


@dataclass(frozen=True, eq=False)
class QuantizationInfo(Generic[ArrayT]):
    """The scheme of a tensor's data, and the arrays that decoding needs besides the data.

    These arrays have the data's leading axes, so `info.map(lambda array: array[rows])` belongs to
    `data[rows]`. GGUF's blocks contain their scales, so there are no arrays for them.
    """

    scheme: str
    bits: int
    group_size: int
    """Number of values that share a scale."""
    symmetric: bool
    """Whether there is no offset: code 0, or the middle code, stands for zero."""
    scales: ArrayT | None = None
    zero_points: ArrayT | None = None
    """The codes that stand for zero: value = (code - zero_point) * scale."""
    biases: ArrayT | None = None
    """The values of code 0: value = code * scale + bias."""

    @property
    def arrays(self) -> dict[str, ArrayT]:
        """The arrays that are not None, by name."""
        named = {name: getattr(self, name) for name in ("scales", "zero_points", "biases")}
        return {name: array for name, array in named.items() if array is not None}

    def map(self, change: Callable[[ArrayT], OtherT]) -> QuantizationInfo[OtherT]:
        """The same with a function applied to every array: a move, or a slice of rows."""
        settings: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {name: change(array) for name, array in self.arrays.items()}
        return QuantizationInfo(**{**settings, **changed})
