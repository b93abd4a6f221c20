"""Memory of the GPU, which the host shares or copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from lbrx.arrays.storage.array import Bytes


class DeviceBuffer(Protocol):
    """The part of lbrx.metal.Buffer that a storage uses."""

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def address(self) -> int:
        """The address of the first byte: the host's where it shares the memory."""

    def slice(self, offset: int, size: int) -> DeviceBuffer:
        """A part over the same memory."""

    def wait(self) -> None:
        """Block until no work uses it."""

    def array(self) -> Bytes:
        """All its bytes, after a wait for work that uses them."""


@dataclass(frozen=True, eq=False)
class MetalStorage:
    """Bytes offset to offset + nbytes of a buffer."""

    buffer: DeviceBuffer
    offset: int
    nbytes: int

    device: ClassVar[str] = "metal"

    @property
    def address(self) -> int:
        """The address of the first byte on the host."""
        return self.buffer.address + self.offset

    def wait(self) -> None:
        """Block until no work uses the memory. Raises DeviceError if what wrote it failed."""
        self.buffer.wait()

    def host(self) -> Bytes:
        """The bytes; waits for the work that writes them."""
        if self.nbytes == self.buffer.size:
            return self.buffer.array()
        return self.buffer.slice(self.offset, self.nbytes).array()


@dataclass(frozen=True, eq=False)
class MetalCache(MetalStorage):
    """Memory of a cache: `overwrite` writes it in place."""
