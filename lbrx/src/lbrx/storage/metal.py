"""Memory that the host and the GPU share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lbrx.storage.array import Bytes


class DeviceBuffer(Protocol):
    """The part of lbrx.metal.Buffer that a storage uses."""

    @property
    def address(self) -> int:
        """The host address of the first byte."""

    def array(self) -> Bytes:
        """All its bytes, after a wait for work that uses them."""


@dataclass(frozen=True, eq=False)
class MetalStorage:
    """Bytes offset to offset + nbytes of a buffer."""

    buffer: DeviceBuffer
    offset: int
    nbytes: int

    @property
    def device(self) -> str:
        return "metal"

    @property
    def address(self) -> int:
        return self.buffer.address + self.offset

    def host(self) -> Bytes:
        return self.buffer.array()[self.offset : self.offset + self.nbytes]


@dataclass(frozen=True, eq=False)
class MetalCache(MetalStorage):
    """Memory of a cache: `overwrite` writes it in place."""
