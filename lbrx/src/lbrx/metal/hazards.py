"""Which commands of a concurrent encoder must wait for earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.metal.buffer import Buffer

Access = tuple[int, Buffer, bool]
"""An argument's index, its buffer, and whether the kernel may write it, as far as is known."""


class Hazards:
    """The byte ranges read and written since the last barrier."""

    def __init__(self) -> None:
        # (start, end, whether it was written), by block
        self._ranges: dict[int, list[tuple[int, int, bool]]] = {}

    def admit(self, accesses: Sequence[Access]) -> bool:
        """Add a command; returns whether it needs a barrier before it."""
        ranges = self._ranges
        waits = bool(ranges) and any(self._meets(buffer, own) for _, buffer, own in accesses)
        if waits:
            ranges.clear()
        for _, buffer, writes in accesses:
            key, start = id(buffer.block), buffer.offset
            if key in ranges:
                ranges[key].append((start, start + buffer.size, writes))
            else:
                ranges[key] = [(start, start + buffer.size, writes)]
        return waits

    def _meets(self, buffer: Buffer, writes: bool) -> bool:
        """Whether an earlier command touches the same bytes, and one of the two writes them."""
        start, end = buffer.offset, buffer.offset + buffer.size
        for first, last, written in self._ranges.get(id(buffer.block), ()):
            if (written or writes) and start < last and first < end:
                return True
        return False

    def clear(self) -> None:
        """Forget all accesses: a barrier or the end of the encoder orders them."""
        self._ranges.clear()
