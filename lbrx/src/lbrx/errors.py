"""Everything lbrx raises.

LbrxError
├── ShapeError          shapes or axes that do not fit each other (also a ValueError)
├── DtypeError          an element type that an operation or a device lacks (also a TypeError)
├── DeviceError         a device that does not exist, or operands on two of them
├── OutOfMemory         an allocation above the limit (also a MemoryError)
├── TraceError          a function that cannot be compiled: it reads values (also a TypeError)
├── GradientError       an operation or a function through which no gradient passes
├── FormatError         a file that does not follow its format (also a ValueError)
├── QuantizationError   an unknown scheme, or values that it cannot hold (also a ValueError)
└── SettingError        an LBRX_* variable has an invalid value (also a ValueError)

An index beyond an axis raises Python's IndexError, which ends a `for` loop.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_QUOTED = 300
"""Characters of a path, name or value in a message."""
_LONG = re.compile(rf"\S{{{MAX_QUOTED + 1},}}")


class LbrxError(Exception):
    """The base class of all exceptions of lbrx."""

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(message: str, kept: str = "\n\t") -> str:
    """A message whose control characters, but those of `kept`, are escapes such as \\x1b, so that
    names in it cannot drive a terminal; long names and paths are shortened."""
    escaped = "".join(c if c in kept or c.isprintable() else repr(c)[1:-1] for c in message)
    return _LONG.sub(lambda found: shortened(found[0]), escaped)


def shortened(text: str) -> str:
    """A text without its middle, if it is long."""
    if len(text) <= MAX_QUOTED:
        return text
    return f"{text[: MAX_QUOTED - 100]}...{text[-97:]}"


class ShapeError(LbrxError, ValueError):
    """Shapes or axes do not fit."""


class DtypeError(LbrxError, TypeError):
    """An element type does not fit."""


class DeviceError(LbrxError):
    """A device is missing, or is not the one the operands are on."""


class GradientError(LbrxError):
    """No gradient passes through an operation, or `vmap` does not map it."""


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
