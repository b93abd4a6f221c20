"""The errors that lbrx raises and its command line prints without a traceback."""

from __future__ import annotations

from lbrx.errors import (
    DeviceError,
    DtypeError,
    FormatError,
    LbrxError,
    OutOfMemory,
    SettingError,
    ShapeError,
)

__all__ = [
    "DeviceError",
    "DtypeError",
    "FormatError",
    "LbrxError",
    "OutOfMemory",
    "SettingError",
    "ShapeError",
]
