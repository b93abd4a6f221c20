"""MTLResource and MTLBuffer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from softmetal.api import enums, host
from softmetal.api.memory import Borrowed, Foreign, Memory, Pointer
from softmetal.api.objects import Labelled
from softmetal.lifetime import Untracked
from softmetal.validation import check_cpu_visible, check_managed, check_range

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice
    from softmetal.api.heap import MTLHeap

PAGE = 4096

_presenting = threading.Lock()


def storage_mode(options: int) -> int:
    return (options & enums.MTLResourceStorageModeMask) >> enums.MTLResourceStorageModeShift


def cache_mode(options: int) -> int:
    return options & enums.MTLResourceCPUCacheModeMask


def hazard_mode(options: int) -> int:
    mask = enums.MTLResourceHazardTrackingModeMask
    return (options & mask) >> enums.MTLResourceHazardTrackingModeShift


class MTLAllocation(Labelled):
    """Memory of a device, with the options it was made with: a resource or a heap."""

    __slots__ = ("__weakref__", "_device", "_options")

    def __init__(self, device: MTLDevice, options: int) -> None:
        super().__init__()
        self._device = device
        self._options = options

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._device

    # MTL: -storageMode
    def storageMode(self) -> int:
        return storage_mode(self._options)

    # MTL: -cpuCacheMode
    def cpuCacheMode(self) -> int:
        return cache_mode(self._options)

    # MTL: -hazardTrackingMode
    def hazardTrackingMode(self) -> int:
        return hazard_mode(self._options) or self._default_hazard_mode()

    def _default_hazard_mode(self) -> int:
        return enums.MTLHazardTrackingModeTracked

    # MTL: -resourceOptions
    def resourceOptions(self) -> int:
        return self._options


class MTLResource(MTLAllocation):
    """Memory that a command can use. Its purgeable state is stored and has no effect."""

    __slots__ = ("_purgeable",)

    def __init__(self, device: MTLDevice, options: int) -> None:
        super().__init__(device, options)
        self._purgeable: int = enums.MTLPurgeableStateNonVolatile

    # MTL: -setPurgeableState:
    # DEVIATION: contents are never discarded: the purgeable state is stored only.
    def setPurgeableState_(self, state: int) -> int:
        previous = self._purgeable
        if state != enums.MTLPurgeableStateKeepCurrent:
            self._purgeable = state
        return previous

    # MTL: -heap
    def heap(self) -> MTLHeap | None:
        return None

    # MTL: -heapOffset
    def heapOffset(self) -> int:
        return 0

    # MTL: -makeAliasable
    def makeAliasable(self) -> None:
        return None

    # MTL: -isAliasable
    def isAliasable(self) -> bool:
        return False


class MTLBuffer(MTLResource):
    """A range of memory. `_address` and `_length` are what encoders read."""

    __slots__ = ("_address", "_length", "_memory", "_offset", "_present")
    _absent = (
        "newTextureWithDescriptor_offset_bytesPerRow_",
        "newTensorWithDescriptor_offset_error_",
        *("newRemoteBufferViewForDevice_", "remoteStorageBuffer"),
    )

    def __init__(
        self,
        device: MTLDevice,
        memory: Memory | Borrowed | Foreign,
        length: int,
        options: int,
        offset: int = 0,
    ) -> None:
        super().__init__(device, options)
        self._memory = memory
        self._offset = offset
        self._address = memory.address + offset
        self._length = length
        self._present: Untracked | None = None

    def _presence(self) -> Untracked:
        """Ends with this buffer: weak references to the buffer itself would be cleared when the
        collector finds it in a dead cycle, of which another object may keep it."""
        if self._present is None:
            with _presenting:
                self._present = self._present or Untracked()
        return self._present

    # MTL: -contents
    # DEVIATION: `contents` of a private buffer raises an error, as under Apple's debug layer;
    # without that layer Apple's returns None.
    def contents(self) -> Pointer:
        """The memory itself."""
        check_cpu_visible(self.storageMode(), self._label)
        owner = host.contents_owner(self)
        return Pointer(self._memory.host() + self._offset, self._length, owner)

    # MTL: -length
    def length(self) -> int:
        return self._length

    # MTL: -allocatedSize
    def allocatedSize(self) -> int:
        return host.allocated_size(self._length, PAGE)

    # MTL: -gpuAddress
    def gpuAddress(self) -> int:
        """The device's address, which kernels can dereference."""
        return self._address

    # MTL: -didModifyRange:
    def didModifyRange_(self, range_: Sequence[int]) -> None:
        start, count = range_
        check_managed(self.storageMode(), "didModifyRange_")
        check_range(start, count, self._length, "modified bytes")

    # MTL: -addDebugMarker:range:
    def addDebugMarker_range_(self, marker: str, range_: Sequence[int]) -> None:
        start, count = range_
        check_range(start, count, self._length, "marked bytes")

    # MTL: -removeAllDebugMarkers
    def removeAllDebugMarkers(self) -> None:
        return None
