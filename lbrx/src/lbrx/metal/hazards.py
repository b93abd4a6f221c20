"""Which commands of a concurrent encoder must wait for earlier ones."""

from __future__ import annotations

from lbrx.metal.buffer import Buffer
from lbrx.metal.commands import Command

Ranges = dict[int, list[tuple[int, int]]]  # bytes, by block


class Hazards:
    """The byte ranges read and written since the last barrier."""

    def __init__(self) -> None:
        self._read: Ranges = {}
        self._written: Ranges = {}

    def admit(self, command: Command) -> bool:
        """Add a command; returns whether it needs a barrier before it."""
        used, written = command.buffers, command.written
        waits = bool(self._read) and (
            any(_meets(self._written, buffer) for buffer in used)
            or any(_meets(self._read, buffer) for buffer in written)
        )
        if waits:
            self.clear()
        for buffer in used:
            _note(self._read, buffer)
        for buffer in written:
            _note(self._written, buffer)
        return waits

    def clear(self) -> None:
        """Forget all accesses: a barrier or the end of the encoder orders them."""
        self._read.clear()
        self._written.clear()


def _meets(ranges: Ranges, buffer: Buffer) -> bool:
    found = ranges.get(id(buffer.block))
    if found is None:
        return False
    start, end = buffer.offset, buffer.offset + buffer.size
    return any(start < b and a < end for a, b in found)


def _note(ranges: Ranges, buffer: Buffer) -> None:
    key, start = id(buffer.block), buffer.offset
    if key in ranges:
        ranges[key].append((start, start + buffer.size))
    else:
        ranges[key] = [(start, start + buffer.size)]
