"""MTLIndirectCommandBuffer: dispatches encoded once and executed many times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from softmetal.api import enums
from softmetal.api.buffer import MTLBuffer, MTLResource
from softmetal.api.extents import Extent, whole
from softmetal.api.host import check_indirect_offset, check_indirect_scratch
from softmetal.api.layer import driver_length
from softmetal.api.objects import Descriptor, Object, flag, number, table
from softmetal.api.pipeline import MTLComputePipelineState
from softmetal.api.structs import MTLResourceID
from softmetal.errors import ValidationError
from softmetal.types import (
    MAX_BUFFERS,
    MAX_THREADS,
    Dispatch,
    IndirectCommands,
)
from softmetal.validation import (
    Binding,
    Size3,
    check_buffers,
    check_command_type,
    check_grid,
    check_indirect_index,
    check_indirect_pipeline,
    check_inherited,
    check_offset,
    check_range,
    check_scratch,
    check_threadgroup,
    check_threadgroup_length,
    check_threadgroup_total,
)

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice
    from softmetal.api.queue import MTLCommandBuffer

COMMAND_BYTES = 512  # arguments that a slot may have


class MTLIndirectCommandBufferDescriptor(Descriptor):
    __slots__ = ()
    properties = table(
        commandTypes=number(),
        inheritPipelineState=flag(True),
        inheritBuffers=flag(True),
        maxKernelBufferBindCount=number(MAX_BUFFERS),
        maxKernelThreadgroupMemoryBindCount=number(),
        maxVertexBufferBindCount=number(),
        maxFragmentBufferBindCount=number(),
        supportRayTracing=flag(),
        supportDynamicAttributeStride=flag(),
    )


class MTLIndirectComputeCommand(Object):
    """One slot. A changed slot is marked, and encoded again at the next commit."""

    __slots__ = (
        "_addresses",
        "_barrier",
        "_bound",
        "_grid",
        "_group",
        "_index",
        "_inherits",
        "_inherits_buffers",
        "_memory_limit",
        "_owner_users",
        "_pipeline",
        "_scratch_bindings",
        "_stale",
        "_threadgroup",
        "_types",
    )

    def __init__(self, owner: MTLIndirectCommandBuffer, index: int) -> None:
        self._index = index
        self._inherits = owner._inherits_pipeline
        self._inherits_buffers = owner._inherits_buffers
        self._memory_limit = owner._device.maxThreadgroupMemoryLength()
        self._types = owner._types
        self._scratch_bindings = owner._scratch_bindings
        self._stale = owner._stale
        self._owner_users = owner._users
        self._addresses = [0] * owner._bindings
        self._bound: list[MTLBuffer | Extent | None] = [None] * owner._bindings
        self._pipeline: MTLComputePipelineState | None = None
        self._clear()

    def _clear(self) -> None:
        self._pipeline = None
        self._threadgroup: list[int] = []
        self._grid: Size3 | None = None
        self._barrier = False
        self._group: Size3 = (1, 1, 1)
        self._stale.add(self._index)

    def _release(self, *objects: object) -> None:
        """Leave what the slot used to the command buffers in flight, which may be using it."""
        for user in tuple(self._owner_users):
            user._retained += objects

    # MTL: -reset
    def reset(self) -> None:
        self._release(*self._uses())
        self._addresses = [0] * len(self._addresses)
        self._bound = [None] * len(self._bound)
        self._clear()

    # MTL: -setComputePipelineState:
    def setComputePipelineState_(self, pipeline: MTLComputePipelineState) -> None:
        check_inherited(self._inherits, "pipeline", "setInheritPipelineState_(False)")
        check_indirect_pipeline(pipeline._indirect, pipeline._artifact.name)
        self._release(self._pipeline)
        self._pipeline = pipeline
        self._stale.add(self._index)

    # MTL: -setKernelBuffer:offset:atIndex:
    def setKernelBuffer_offset_atIndex_(
        self, buffer: MTLBuffer | None, offset: int, index: int
    ) -> None:
        check_inherited(self._inherits_buffers, "buffers", "setInheritBuffers_(False)")
        check_indirect_index(index, len(self._addresses))
        if buffer is None:
            self._addresses[index] = 0
        else:
            check_offset(offset, buffer._length)
            check_indirect_offset(offset)
            self._addresses[index] = buffer._address + offset
        if self._bound[index] is not buffer:
            self._release(self._bound[index])
            self._bound[index] = buffer
        self._stale.add(self._index)

    # MTL: -setThreadgroupMemoryLength:atIndex:
    def setThreadgroupMemoryLength_atIndex_(self, length: int, index: int) -> None:
        check_indirect_scratch(index, self._scratch_bindings)
        length = driver_length(length)
        check_threadgroup_length(length, index, self._memory_limit)
        missing = index + 1 - len(self._threadgroup)
        self._threadgroup += [0] * missing
        self._threadgroup[index] = length
        self._stale.add(self._index)

    # MTL: -concurrentDispatchThreadgroups:threadsPerThreadgroup:
    def concurrentDispatchThreadgroups_threadsPerThreadgroup_(
        self, groups: Sequence[int], threads: Sequence[int]
    ) -> None:
        check_command_type(self._types, enums.MTLIndirectCommandTypeConcurrentDispatch)
        width, height, depth = threads
        across, down, deep = groups
        self._set_dispatch((across * width, down * height, deep * depth), (width, height, depth))

    # MTL: -concurrentDispatchThreads:threadsPerThreadgroup:
    def concurrentDispatchThreads_threadsPerThreadgroup_(
        self, grid: Sequence[int], threads: Sequence[int]
    ) -> None:
        check_command_type(self._types, enums.MTLIndirectCommandTypeConcurrentDispatchThreads)
        width, height, depth = grid
        across, down, deep = threads
        self._set_dispatch((width, height, depth), (across, down, deep))

    def _set_dispatch(self, grid: Size3, group: Size3) -> None:
        check_grid(grid)
        if self._pipeline is not None:
            self._pipeline._checked_group(group)
        else:
            check_threadgroup(group, MAX_THREADS, f"of indirect command {self._index}")
        self._grid = grid
        self._group = group
        self._stale.add(self._index)

    # MTL: -setBarrier
    # Commands of an indirect command buffer run in order; only the checking modes use this.
    def setBarrier(self) -> None:
        self._barrier = True

    # MTL: -clearBarrier
    def clearBarrier(self) -> None:
        self._barrier = False

    def _encode(self, inherits_buffers: bool) -> Dispatch | None:
        """The slot as a record for executors; None if it dispatches nothing."""
        if self._grid is None:
            return None
        buffers = () if inherits_buffers else tuple(self._addresses) or (0,)
        threadgroup = tuple(self._threadgroup)
        pipeline = self._pipeline
        if self._inherits:
            return Dispatch(0, self._grid, self._group, buffers, threadgroup)
        if pipeline is None:
            raise ValidationError(
                f"command {self._index} of an indirect command buffer has no pipeline: "
                "call setComputePipelineState_ on it"
            )
        artifact, static = pipeline._artifact, pipeline._artifact.static_threadgroup_memory
        group = pipeline._groups.get(self._group) or pipeline._checked_group(self._group)
        if not inherits_buffers:
            check_buffers(artifact.arguments, self._bindings(), artifact.name)
            buffers = buffers[: pipeline._buffer_count]
        check_scratch(artifact.arguments, threadgroup, artifact.name)
        check_threadgroup_total(static, threadgroup, artifact.name, pipeline._memory_limit)
        return Dispatch(pipeline._kernel, self._grid, group, buffers, threadgroup)

    def _uses(self) -> list[object]:
        return [self._pipeline, *self._bound]

    def _bindings(self) -> list[Binding]:
        return [
            Binding(address, buffer._address + buffer._length - address) if buffer else Binding()
            for address, buffer in zip(self._addresses, map(whole, self._bound), strict=True)
        ]

    def _copy_from(self, other: MTLIndirectComputeCommand) -> None:
        self._release(*self._uses())
        self._pipeline = other._pipeline
        self._addresses = list(other._addresses)
        self._bound = list(other._bound)
        self._threadgroup = list(other._threadgroup)
        self._grid, self._group, self._barrier = other._grid, other._group, other._barrier
        self._stale.add(self._index)


class MTLIndirectCommandBuffer(MTLResource):
    """Slots for dispatches, encoded on the host."""

    __slots__ = ("_bindings", "_commands", "_inherits_buffers", "_inherits_pipeline", "_items",
                 "_scratch_bindings", "_stale", "_types", "_users")  # fmt: skip

    def __init__(
        self,
        device: MTLDevice,
        descriptor: MTLIndirectCommandBufferDescriptor,
        count: int,
        options: int,
    ) -> None:
        super().__init__(device, options)
        self._inherits_pipeline: bool = descriptor.inheritPipelineState()
        self._inherits_buffers: bool = descriptor.inheritBuffers()
        self._bindings: int = descriptor.maxKernelBufferBindCount()
        self._types: int = descriptor.commandTypes()
        self._scratch_bindings: int = descriptor.maxKernelThreadgroupMemoryBindCount()
        self._commands = IndirectCommands([None] * count)
        self._items: dict[int, MTLIndirectComputeCommand] = {}
        self._stale: set[int] = set()
        self._users: set[MTLCommandBuffer] = set()  # those in flight that execute it

    # MTL: -size
    def size(self) -> int:
        return len(self._commands.slots)

    # MTL: -allocatedSize
    def allocatedSize(self) -> int:
        return self.size() * COMMAND_BYTES

    # MTL: -gpuResourceID
    def gpuResourceID(self) -> MTLResourceID:
        return MTLResourceID(id(self._commands))

    # MTL: -indirectComputeCommandAtIndex:
    def indirectComputeCommandAtIndex_(self, index: int) -> MTLIndirectComputeCommand:
        item = self._items.get(index)
        if item is None:
            check_range(index, 1, self.size(), "indirect commands")
            self._items[index] = item = MTLIndirectComputeCommand(self, index)
        return item

    # MTL: -resetWithRange:
    def resetWithRange_(self, range_: Sequence[int]) -> None:
        start, count = range_
        check_range(start, count, self.size(), "indirect commands")
        for index in range(start, start + count):
            if index in self._items:
                self._items[index].reset()

    def _flush(self, indices: range) -> None:
        """Encode the changed slots of this range again."""
        for index in [index for index in self._stale if index in indices]:
            self._commands.slots[index] = self._items[index]._encode(self._inherits_buffers)
            self._commands.dirty.add(index)
            self._stale.discard(index)

    def _check_inherited(
        self,
        start: int,
        count: int,
        pipeline: MTLComputePipelineState | None,
        buffers: Sequence[Binding],
    ) -> None:
        """Check the pipeline and buffers that slots inherit from the executing encoder."""
        for index in range(start, start + count):
            item = self._items.get(index)
            if item is None or item._grid is None:
                continue
            used = pipeline if self._inherits_pipeline else item._pipeline
            if used is None:
                raise ValidationError(
                    f"command {index} inherits its pipeline and the encoder has none: "
                    "call setComputePipelineState_ on the encoder"
                )
            used._checked_group(item._group)
            bound = buffers if self._inherits_buffers else item._bindings()
            artifact = used._artifact
            check_buffers(artifact.arguments, bound, artifact.name)
            check_scratch(artifact.arguments, item._threadgroup, artifact.name)

    def _renew(self) -> None:
        """Work that is already encoded keeps the present slots; later work gets copies."""
        self._flush(range(self.size()))
        used = (item for command in self._items.values() for item in command._uses())
        self._commands.kept = tuple(used)
        slots = list(self._commands.slots)
        self._commands = IndirectCommands(slots, set(range(len(slots))))


def command_types_supported(descriptor: MTLIndirectCommandBufferDescriptor) -> bool:
    """Compute commands only."""
    compute = (
        enums.MTLIndirectCommandTypeConcurrentDispatch
        | enums.MTLIndirectCommandTypeConcurrentDispatchThreads
    )
    return not descriptor.commandTypes() & ~compute
