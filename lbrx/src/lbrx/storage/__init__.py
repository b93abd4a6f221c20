"""Who holds the bytes of a tensor: the host, a file, a part of either, or a Metal buffer."""

from lbrx.storage.array import Array, Bytes, Storage, Unrealised
from lbrx.storage.cpu import CpuStorage, LentStorage, NumberStorage, empty_aligned
from lbrx.storage.lazy import LazyStorage, PackedStorage
from lbrx.storage.mapped import MmapStorage
from lbrx.storage.metal import DeviceBuffer, MetalStorage
from lbrx.storage.view import ViewStorage

__all__ = [
    "Array",
    "Bytes",
    "CpuStorage",
    "DeviceBuffer",
    "LazyStorage",
    "LentStorage",
    "MetalStorage",
    "MmapStorage",
    "NumberStorage",
    "PackedStorage",
    "Storage",
    "Unrealised",
    "ViewStorage",
    "empty_aligned",
]
