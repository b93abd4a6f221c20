"""Stand-ins for the memory that a plan will have.

Their offsets and addresses have the alignment of the memory that will take their place.
"""

from __future__ import annotations

from typing import NoReturn

from lbrx.errors import DeviceError
from lbrx.metal.buffer import Block, Buffer

ALIGNMENT = 256  # bytes: kernels look at places in memory modulo divisors of it


class _NoMemory:
    """Refuses what only memory can do."""

    def wait_for(self, ticket: int, outcome: object) -> NoReturn:
        raise DeviceError("the memory of a plan has no contents before it runs")

    def download(self, buffer: Buffer) -> NoReturn:
        self.wait_for(0, None)


NO_MEMORY = _NoMemory()


class PlannedBuffer(Buffer):
    """A range of memory that a plan will have."""

    __slots__ = ()

    def slice(self, offset: int, size: int) -> PlannedBuffer:
        """A part of the range."""
        self._check_slice(offset, size)
        return PlannedBuffer(self.block, self.offset + offset, size, NO_MEMORY)

    def unsynchronised(self) -> NoReturn:
        """Raises DeviceError."""
        NO_MEMORY.wait_for(0, None)


def planned_buffer(nbytes: int, alignment: int = ALIGNMENT) -> PlannedBuffer:
    """A range that will have memory at a multiple of `alignment` bytes."""
    base = alignment % ALIGNMENT
    return PlannedBuffer(Block(None, 0, base + nbytes), base, nbytes, NO_MEMORY)
