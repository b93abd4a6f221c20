"""What kernels printed, from the block of bytes that an executor's C code gives."""

from __future__ import annotations

import struct

from softmetal.types import LogMessage

_FAULT_LEVEL = 5  # MTLLogLevelFault
_HEAD = struct.Struct("<II")


def read(data: bytes, dropped: int) -> tuple[LogMessage, ...]:
    """The messages of a log, and one that says how many did not fit."""
    messages = _messages(data)
    if dropped:
        text = f"{dropped} messages were dropped: the log of a command buffer is full"
        messages.append(LogMessage("softmetal", "log", _FAULT_LEVEL, text))
    return tuple(messages)


def _messages(data: bytes) -> list[LogMessage]:
    """The entries of a log block: size, level, then three texts with their zeros."""
    messages, offset = [], 0
    while offset + _HEAD.size <= len(data):
        size, level = _HEAD.unpack_from(data, offset)
        if not size:
            break
        parts = data[offset + _HEAD.size : offset + size].split(b"\0")
        subsystem, category, text = (part.decode(errors="replace") for part in parts[:3])
        messages.append(LogMessage(subsystem, category, level, text))
        offset += size
    return messages
