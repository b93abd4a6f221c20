"""Everything lbrx raises.

LbrxError
├── ShapeError          shapes or axes that do not fit each other (also a ValueError)
├── DtypeError          an element type that an operation or a device lacks (also a TypeError)
├── DeviceError         a device that does not exist, or operands on two of them
├── OutOfMemory         an allocation above the limit (also a MemoryError)
├── TraceError          a function that cannot be compiled: it reads values (also a TypeError)
├── FormatError         a file that does not follow its format (also a ValueError)
├── QuantizationError   an unknown scheme, or values that it cannot hold (also a ValueError)
└── SettingError        an LBRX_* variable has an invalid value (also a ValueError)

An index beyond an axis raises Python's IndexError, which ends a `for` loop.
"""

from __future__ import annotations

from collections.abc import Sequence


class LbrxError(Exception):
    """The base class of all exceptions of lbrx."""


class ShapeError(LbrxError, ValueError):
    """Shapes or axes do not fit."""


class DtypeError(LbrxError, TypeError):
    """An element type does not fit."""


class DeviceError(LbrxError):
    """A device is missing, or is not the one the operands are on."""


class OutOfMemory(LbrxError, MemoryError):
    """An allocation exceeds the limit; `holders` are (name, bytes) of what is in use."""

    def __init__(
        self, requested: int, in_use: int, limit: int, holders: Sequence[tuple[str, int]] = ()
    ) -> None:
        self.requested = requested
        self.in_use = in_use
        self.limit = limit
        self.holders = tuple(holders)
        held = ", ".join(f"{name} {size:,}" for name, size in self.holders) or "nothing named"
        super().__init__(
            f"{requested:,} bytes requested with {in_use:,} of {limit:,} in use ({held}): "
            "free tensors, use smaller ones or a smaller dtype"
        )

    def __reduce__(self) -> tuple[type[OutOfMemory], tuple[object, ...]]:
        return type(self), (self.requested, self.in_use, self.limit, self.holders)


class TraceError(LbrxError, TypeError):
    """A function cannot be traced."""


class FormatError(LbrxError, ValueError):
    """A file does not follow its format."""


class QuantizationError(LbrxError, ValueError):
    """A quantization scheme does not exist, or cannot hold the values."""


class SettingError(LbrxError, ValueError):
    """An environment variable has an invalid value."""
