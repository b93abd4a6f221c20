"""What travels with a quantized tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

ArrayT = TypeVar("ArrayT")
OtherT = TypeVar("OtherT")


@dataclass(frozen=True, eq=False)
class QuantizationInfo(Generic[ArrayT]):
    """The scheme of a tensor's data, and the arrays without which that means nothing.

    These have the data's leading axes, so that rows are taken from all alike, as by
    `info.map(lambda array: array[rows])`. GGUF's blocks hold their scales: there are none here.
    """

    scheme: str
    bits: int
    group_size: int
    """How many values share a scale."""
    symmetric: bool
    """Whether zero is always stored exactly, with no offset to say where it lies."""
    scales: ArrayT | None = None
    zero_points: ArrayT | None = None
    """The stored integer that means zero: value = (q - zero_point) * scale."""
    biases: ArrayT | None = None
    """What a stored zero means: value = q * scale + bias."""

    @property
    def arrays(self) -> dict[str, ArrayT]:
        """The accompanying arrays that there are, by name."""
        named = {name: getattr(self, name) for name in ("scales", "zero_points", "biases")}
        return {name: array for name, array in named.items() if array is not None}

    def map(self, change: Callable[[ArrayT], OtherT]) -> QuantizationInfo[OtherT]:
        """The same with every array changed: moved to a device, sliced by rows, made lazy."""
        settings: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {name: change(array) for name, array in self.arrays.items()}
        return QuantizationInfo(**{**settings, **changed})
