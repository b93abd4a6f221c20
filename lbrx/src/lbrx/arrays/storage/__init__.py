"""What holds the bytes of a tensor: the host, a file, a part of either, or a Metal buffer."""

from lbrx.arrays.storage.array import Array, Bytes, Storage, Unrealised
from lbrx.arrays.storage.cpu import (
    ConstantStorage,
    CpuStorage,
    HostCache,
    LentStorage,
    NumberStorage,
    empty_aligned,
)
from lbrx.arrays.storage.lazy import LazyStorage, PackedStorage
from lbrx.arrays.storage.mapped import MmapStorage
from lbrx.arrays.storage.metal import DeviceBuffer, MetalCache, MetalStorage
from lbrx.arrays.storage.view import ViewStorage

__all__ = [
    "Array",
    "Bytes",
    "ConstantStorage",
    "CpuStorage",
    "DeviceBuffer",
    "HostCache",
    "LazyStorage",
    "LentStorage",
    "MetalCache",
    "MetalStorage",
    "MmapStorage",
    "NumberStorage",
    "PackedStorage",
    "Storage",
    "Unrealised",
    "ViewStorage",
    "empty_aligned",
    "wait_for",
    "written_in_place",
]


def written_in_place(array: Array) -> bool:
    """Whether `overwrite` writes into the array's own memory: a cache's, without gaps."""
    return array.layout.is_contiguous and isinstance(array.storage, HostCache | MetalCache)


def wait_for(storage: Storage) -> None:
    """Block until the bytes are computed, which does not bring them to the host."""
    if isinstance(storage, MetalStorage):
        storage.wait()
    elif isinstance(storage, PackedStorage):
        for part in storage.parts.values():
            wait_for(part.storage)
    elif isinstance(storage, Unrealised):
        wait_for(storage.realised())
    elif isinstance(storage, ViewStorage):
        wait_for(storage.base)
