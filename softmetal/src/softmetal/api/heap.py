"""MTLHeap: buffers placed in one allocation, by the heap (automatic) or by the program."""

from __future__ import annotations

import sys
import threading
from bisect import insort
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from softmetal.api import enums, host
from softmetal.api.buffer import (
    PAGE,
    MTLAllocation,
    MTLBuffer,
    cache_mode,
    hazard_mode,
    storage_mode,
)
from softmetal.api.memory import Memory
from softmetal.api.objects import Descriptor, Explaining, number, table
from softmetal.lifetime import ended
from softmetal.types import Command, Use
from softmetal.validation import (
    check_heap_offset,
    check_heap_options,
    check_heap_type,
    check_length,
    check_range,
)

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice

BUFFER_ALIGNMENT = 256


def align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


class FreeList:
    """First fit over [0, size): sorted free ranges that never touch each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._free: list[tuple[int, int]] = [(0, size)] if size else []  # (start, end)

    def allocate(self, length: int, alignment: int) -> int | None:
        """The offset of `length` bytes, or None if no free range holds them."""
        for position, (start, end) in enumerate(self._free):
            offset = align_up(start, alignment)
            if offset + length <= end:
                pieces = [(start, offset), (offset + length, end)]
                self._free[position : position + 1] = [p for p in pieces if p[0] < p[1]]
                self.used += length
                return offset
        return None

    def release(self, offset: int, length: int) -> None:
        """Free what `allocate` returned, merging it with adjacent free ranges."""
        if length == 0:
            return
        insort(self._free, (offset, offset + length))
        self.used -= length
        position = self._free.index((offset, offset + length))
        for left in (position, position - 1):
            if 0 <= left < len(self._free) - 1 and self._free[left][1] == self._free[left + 1][0]:
                self._free[left : left + 2] = [(self._free[left][0], self._free[left + 1][1])]

    def largest(self, alignment: int) -> int:
        """The length of the largest allocation that would succeed now."""
        return max((end - align_up(start, alignment) for start, end in self._free), default=0)


class MTLHeapDescriptor(Descriptor):
    __slots__ = ()
    properties = table(
        size=number(),
        type=number(enums.MTLHeapTypeAutomatic),
        resourceOptions=number(enums.MTLResourceStorageModePrivate),
        sparsePageSize=number(101),
    )

    # The three modes are parts of resourceOptions: setting one changes the other's bits.
    def storageMode(self) -> int:
        return storage_mode(self.resourceOptions())

    def setStorageMode_(self, mode: int) -> None:
        self._set_bits(enums.MTLResourceStorageModeMask, mode << enums.MTLResourceStorageModeShift)

    def cpuCacheMode(self) -> int:
        return cache_mode(self.resourceOptions())

    def setCpuCacheMode_(self, mode: int) -> None:
        self._set_bits(enums.MTLResourceCPUCacheModeMask, mode)

    def hazardTrackingMode(self) -> int:
        return hazard_mode(self.resourceOptions())

    def setHazardTrackingMode_(self, mode: int) -> None:
        shift = enums.MTLResourceHazardTrackingModeShift
        self._set_bits(enums.MTLResourceHazardTrackingModeMask, mode << shift)

    def _set_bits(self, mask: int, bits: int) -> None:
        self.setResourceOptions_(self.resourceOptions() & ~mask | bits)


class MTLHeap(MTLAllocation, Explaining):
    """One allocation that is divided into buffers."""

    __slots__ = ("_free", "_lock", "_memory", "_returned")

    def __init__(self, device: MTLDevice, descriptor: MTLHeapDescriptor, memory: Memory) -> None:
        super().__init__(device, int(descriptor.resourceOptions()))
        self._memory = memory
        automatic = descriptor.type() == enums.MTLHeapTypeAutomatic
        self._free = FreeList(memory.length) if automatic else None
        self._lock = threading.Lock()
        # Finalisers of buffers run on any thread at any moment, so they only append here.
        self._returned: deque[tuple[int, int]] = deque()

    # MTL: -newBufferWithLength:options:
    def newBufferWithLength_options_(self, length: int, options: int) -> MTLBuffer | None:
        """A buffer where the heap finds room, or None."""
        self._check(length, options, placed=False)
        free = self._free
        assert free is not None
        size = align_up(length, BUFFER_ALIGNMENT)
        with self._lock:
            self._collect(free)
            offset = free.allocate(size, BUFFER_ALIGNMENT)
        if offset is None:
            return None
        return HeapBuffer(self, length, options, offset, size)

    # MTL: -newBufferWithLength:options:offset:
    def newBufferWithLength_options_offset_(
        self, length: int, options: int, offset: int
    ) -> MTLBuffer:
        """A buffer of a placement heap at the given offset."""
        self._check(length, options, placed=True)
        check_heap_offset(offset, BUFFER_ALIGNMENT)
        check_range(offset, length, self.size(), "heap bytes")
        return HeapBuffer(self, length, options, offset, 0)

    def _check(self, length: int, options: int, placed: bool) -> None:
        check_length(length)
        check_heap_type(self._free is None, placed)
        wanted = (storage_mode(options), cache_mode(options))
        check_heap_options((self.storageMode(), self.cpuCacheMode()), wanted)

    def _collect(self, free: FreeList) -> None:
        while self._returned:
            free.release(*self._returned.popleft())

    # MTL: -size
    def size(self) -> int:
        return self._memory.length

    # MTL: -usedSize
    # DEVIATION: the used size of a placement heap is 0: the program does the placement.
    def usedSize(self) -> int:
        if self._free is None:
            return 0
        with self._lock:
            self._collect(self._free)
            return self._free.used

    # MTL: -currentAllocatedSize
    def currentAllocatedSize(self) -> int:
        return host.allocated_size(self._memory.length, PAGE)

    # MTL: -allocatedSize
    def allocatedSize(self) -> int:
        return self.currentAllocatedSize()

    # MTL: -maxAvailableSizeWithAlignment:
    def maxAvailableSizeWithAlignment_(self, alignment: int) -> int:
        if self._free is None:
            return self.size()
        with self._lock:
            self._collect(self._free)
            return self._free.largest(max(alignment, BUFFER_ALIGNMENT))

    # MTL: -type
    def type(self) -> int:
        if self._free is None:
            return enums.MTLHeapTypePlacement
        return enums.MTLHeapTypeAutomatic

    def _default_hazard_mode(self) -> int:
        return enums.MTLHazardTrackingModeUntracked

    # MTL: -setPurgeableState:
    def setPurgeableState_(self, state: int) -> int:
        return enums.MTLPurgeableStateNonVolatile


class HeapBuffer(MTLBuffer):
    """A buffer in a heap; its `size` bytes return to an automatic heap's free list."""

    __slots__ = ("_end", "_heap", "_heap_offset", "_shared", "_taken")

    def __init__(self, heap: MTLHeap, length: int, options: int, offset: int, size: int) -> None:
        super().__init__(heap._device, heap._memory, length, options, offset)
        self._heap = heap
        self._heap_offset = offset
        self._shared = False
        self._taken = [(offset, size)] if size else []  # empty after makeAliasable

    def __del__(self) -> None:
        if self._taken and not sys.is_finalizing():
            self._end = ended(self, _return, self._taken, self._heap._returned)

    def heap(self) -> MTLHeap:
        return self._heap

    def heapOffset(self) -> int:
        return self._heap_offset

    # MTL: -makeAliasable
    def makeAliasable(self) -> None:
        """Let later buffers of the heap have the same memory."""
        self._shared = True
        _return(self._taken, self._heap._returned)

    # MTL: -isAliasable
    def isAliasable(self) -> bool:
        return self._shared

    def allocatedSize(self) -> int:
        return align_up(self._length, BUFFER_ALIGNMENT)

    def _default_hazard_mode(self) -> int:
        return self._heap.hazardTrackingMode()


def _return(taken: list[tuple[int, int]], returned: deque[tuple[int, int]]) -> None:
    """Give a range back to a heap, once."""
    with suppress(IndexError):
        returned.append(taken.pop())


_WITH_MEMORY = (MTLBuffer, MTLHeap)


def used_memory(allocations: Iterable[object], written: bool) -> list[Command]:
    """What tells a device with its own memory that kernels may reach these buffers and heaps. Of
    private memory there is nothing to tell: the host has no copy."""
    return [
        Use(allocation._memory.address, allocation._memory.length, written)
        for allocation in allocations
        if isinstance(allocation, _WITH_MEMORY) and not allocation._memory.private
    ]
