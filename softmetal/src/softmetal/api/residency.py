"""MTLResidencySet. All memory is resident: a set keeps references, and feeds the checking modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from softmetal.api.objects import Descriptor, Labelled, anything, number, table

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice


class Allocation(Protocol):
    """MTLAllocation: a buffer, a heap or an indirect command buffer."""

    def allocatedSize(self) -> int: ...


class MTLResidencySetDescriptor(Descriptor):
    __slots__ = ()
    properties = table(label=anything(), initialCapacity=number())


class MTLResidencySet(Labelled):
    """Changes take effect at `commit`."""

    __slots__ = ("_committed", "_device", "_pending")

    def __init__(self, device: MTLDevice, descriptor: MTLResidencySetDescriptor) -> None:
        super().__init__()
        self._label = descriptor.label()
        self._device = device
        self._committed: dict[int, Allocation] = {}
        self._pending: dict[int, Allocation] = {}

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._device

    # MTL: -addAllocation:
    def addAllocation_(self, allocation: Allocation) -> None:
        self._pending[id(allocation)] = allocation

    # MTL: -addAllocations:count:
    def addAllocations_count_(self, allocations: Sequence[Allocation], count: int) -> None:
        for allocation in allocations[:count]:
            self.addAllocation_(allocation)

    # MTL: -removeAllocation:
    def removeAllocation_(self, allocation: Allocation) -> None:
        self._pending.pop(id(allocation), None)

    # MTL: -removeAllocations:count:
    def removeAllocations_count_(self, allocations: Sequence[Allocation], count: int) -> None:
        for allocation in allocations[:count]:
            self.removeAllocation_(allocation)

    # MTL: -removeAllAllocations
    def removeAllAllocations(self) -> None:
        self._pending.clear()

    # MTL: -containsAllocation:
    def containsAllocation_(self, allocation: Allocation) -> bool:
        return id(allocation) in self._pending

    # MTL: -allAllocations
    def allAllocations(self) -> list[Allocation]:
        return list(self._pending.values())

    # MTL: -allocationCount
    def allocationCount(self) -> int:
        return len(self._pending)

    # MTL: -allocatedSize
    def allocatedSize(self) -> int:
        return sum(allocation.allocatedSize() for allocation in self._committed.values())

    # MTL: -commit
    def commit(self) -> None:
        self._committed = dict(self._pending)

    # MTL: -requestResidency
    def requestResidency(self) -> None:
        return None

    # MTL: -endResidency
    def endResidency(self) -> None:
        return None
