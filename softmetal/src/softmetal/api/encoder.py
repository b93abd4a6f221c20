"""MTLComputeCommandEncoder and MTLBlitCommandEncoder: they write a command buffer's list.

Serial and concurrent encoders behave alike: commands run in order, each using all cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from softmetal import checks
from softmetal.api import enums, host
from softmetal.api.buffer import MTLBuffer, MTLResource
from softmetal.api.checked import Inherited, blitted, order, resources
from softmetal.api.counters import MTLCounterSampleBuffer, _SampleAttachments
from softmetal.api.event import MTLFence
from softmetal.api.extents import Extent, whole
from softmetal.api.heap import MTLHeap, used_memory
from softmetal.api.icb import MTLIndirectCommandBuffer
from softmetal.api.layer import driver_length, validation_layer
from softmetal.api.memory import copied_bytes
from softmetal.api.objects import Explaining, Labelled
from softmetal.api.pipeline import MTLComputePipelineState
from softmetal.api.structs import MTLSize, integer
from softmetal.types import (
    MAX_BUFFERS,
    MAX_THREADGROUP_ARGUMENTS,
    Copy,
    Dispatch,
    Execute,
    Fill,
)
from softmetal.validation import (
    MAX_GRID,
    MAX_INLINE_BYTES,
    Binding,
    Size3,
    check_buffer,
    check_buffer_index,
    check_buffers,
    check_copy,
    check_fence,
    check_fill,
    check_grid,
    check_indirect,
    check_indirect_pipeline,
    check_inline_bytes,
    check_managed,
    check_offset,
    check_open,
    check_pipeline,
    check_range,
    check_scratch,
    check_threadgroup_length,
    check_threadgroup_total,
)

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice
    from softmetal.api.queue import MTLCommandBuffer

_ENDLESS = MAX_GRID + 1
_new_tuple = tuple.__new__


class MTLCommandEncoder(Labelled):
    """What both encoders have. `_append` adds a command, `_retain` an object to keep alive."""

    __slots__ = ("_append", "_attachments", "_command_buffer", "_ended", "_fences", "_retain")
    _order = "serial"  # how its commands are ordered, for the checking modes

    def __init__(
        self, command_buffer: MTLCommandBuffer, attachments: _SampleAttachments | None
    ) -> None:
        self._label = None
        self._command_buffer = command_buffer
        self._append = command_buffer._commands.append
        self._retain = command_buffer._retain
        self._ended = False
        self._fences: list[MTLFence] = []  # updated here
        self._attachments = attachments
        command_buffer._commands += order(self._order)
        if attachments is not None:
            self._sample_clock(attachments, "start")

    def _sample_clock(self, attachments: _SampleAttachments, which: str) -> None:
        for command in attachments._samples(which):
            self._append(command)

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._command_buffer._queue._device

    # MTL: -endEncoding
    def endEncoding(self) -> None:
        if self._ended:
            check_open(True, "endEncoding")
        if self._attachments is not None:
            self._sample_clock(self._attachments, "end")
        self._ended = True
        self._command_buffer._encoder = None

    # MTL: -pushDebugGroup:
    def pushDebugGroup_(self, name: str) -> None:
        return None

    # MTL: -popDebugGroup
    def popDebugGroup(self) -> None:
        return None

    # MTL: -insertDebugSignpost:
    def insertDebugSignpost_(self, name: str) -> None:
        return None

    # MTL: -updateFence:
    def updateFence_(self, fence: MTLFence) -> None:
        check_open(self._ended, "updateFence_")
        self._command_buffer._commands += order("update", id(fence))
        fence._updated = True
        self._fences.append(fence)

    # MTL: -waitForFence:
    # DEVIATION: waiting for a fence that no encoder has updated is an error, as it would have no
    # effect.
    def waitForFence_(self, fence: MTLFence) -> None:
        check_open(self._ended, "waitForFence_")
        check_fence(fence._updated, fence in self._fences)
        self._command_buffer._commands += order("wait", id(fence))

    # MTL: -sampleCountersInBuffer:atSampleIndex:withBarrier:
    def sampleCountersInBuffer_atSampleIndex_withBarrier_(
        self, samples: MTLCounterSampleBuffer, index: int, barrier: bool
    ) -> None:
        check_open(self._ended, "sampleCountersInBuffer")
        self._append(samples._sample(index))
        self._retain(samples)


class MTLComputeCommandEncoder(MTLCommandEncoder):
    """Binds arguments and dispatches kernels."""

    __slots__ = ("_addresses", "_bound", "_emptied", "_lengths", "_order", "_pipeline",
                 "_threadgroup", "_touched", "_type", "_used")  # fmt: skip
    _absent = (
        *("setTexture_atIndex_", "setTextures_withRange_"),
        *("setSamplerState_atIndex_", "setSamplerStates_withRange_"),
        "setSamplerState_lodMinClamp_lodMaxClamp_atIndex_",
        "setSamplerStates_lodMinClamps_lodMaxClamps_withRange_",
        *("setVisibleFunctionTable_atBufferIndex_", "setVisibleFunctionTables_withBufferRange_"),
        "setIntersectionFunctionTable_atBufferIndex_",
        "setIntersectionFunctionTables_withBufferRange_",
        "setAccelerationStructure_atBufferIndex_",
        *("setStageInRegion_", "setStageInRegionWithIndirectBuffer_indirectBufferOffset_"),
        "setImageblockWidth_height_",
    )

    def __init__(
        self,
        command_buffer: MTLCommandBuffer,
        dispatch_type: int,
        attachments: _SampleAttachments | None = None,
    ) -> None:
        concurrent = dispatch_type == enums.MTLDispatchTypeConcurrent
        self._order = "concurrent" if concurrent else "serial"
        super().__init__(command_buffer, attachments)
        self._type = dispatch_type
        self._used: list[MTLResource | MTLHeap] = []
        self._pipeline: MTLComputePipelineState | None = None
        self._addresses = [0] * MAX_BUFFERS
        self._lengths = [0] * MAX_BUFFERS  # bytes from the address on
        self._bound: list[MTLBuffer | Extent | None] = [None] * MAX_BUFFERS
        self._threadgroup = [0] * MAX_THREADGROUP_ARGUMENTS
        profile = self.device()._profile
        self._touched = host.touched(profile) if command_buffer._played else None
        self._emptied = 0  # a bit for each length that the program set to 0

    # MTL: -endEncoding
    def endEncoding(self) -> None:
        super().endEncoding()
        self._bound.clear()  # an ended encoder must not keep buffers alive
        if self._command_buffer._played:
            self._command_buffer._announced += self._used
        self._used.clear()

    # MTL: -dispatchType
    def dispatchType(self) -> int:
        return self._type

    _converts = frozenset(
        (
            "setBuffer_offset_atIndex_",
            "setBytes_length_atIndex_",
            "dispatchThreadgroups_threadsPerThreadgroup_",
            "dispatchThreads_threadsPerThreadgroup_",
        )
    )

    # MTL: -setComputePipelineState:
    def setComputePipelineState_(self, pipeline: MTLComputePipelineState) -> None:
        if self._ended:
            check_open(True, "setComputePipelineState_")
        if pipeline is None:
            check_pipeline(0, "setComputePipelineState_(None)")
        if pipeline is not self._pipeline:
            self._pipeline = pipeline
            self._retain(pipeline)

    # MTL: -setBuffer:offset:atIndex:
    def setBuffer_offset_atIndex_(self, buffer: MTLBuffer | None, offset: int, index: int) -> None:
        if not type(offset) is type(index) is int:
            offset, index = integer(offset), integer(index)
        if self._ended or not 0 <= index < MAX_BUFFERS:
            check_open(self._ended, "setBuffer_offset_atIndex_")
            check_buffer_index(index)
        if buffer is None:
            self._addresses[index] = self._lengths[index] = 0
            self._bound[index] = None
            return
        length = buffer._length - offset
        if length <= 0 or offset < 0:
            check_offset(offset, buffer._length)
        self._addresses[index] = buffer._address + offset
        self._lengths[index] = length
        bound = self._bound
        if bound[index] is not buffer:
            bound[index] = buffer
            self._retain(buffer)

    # MTL: -setBufferOffset:atIndex:
    def setBufferOffset_atIndex_(self, offset: int, index: int) -> None:
        check_open(self._ended, "setBufferOffset_atIndex_")
        check_buffer_index(index)
        buffer = whole(self._bound[index])
        check_buffer(buffer, f"setBufferOffset_atIndex_ at index {index}")
        self.setBuffer_offset_atIndex_(buffer, offset, index)

    # MTL: -setBuffers:offsets:withRange:
    def setBuffers_offsets_withRange_(
        self,
        buffers: Sequence[MTLBuffer | None],
        offsets: Sequence[int],
        range_: Sequence[int],
    ) -> None:
        start, count = range_
        check_range(0, count, min(len(buffers), len(offsets)), "buffers")
        for i in range(count):
            self.setBuffer_offset_atIndex_(buffers[i], offsets[i], start + i)

    # MTL: -setBytes:length:atIndex:
    def setBytes_length_atIndex_(self, data: Any, length: int, index: int) -> None:
        if self._ended:
            check_open(True, "setBytes_length_atIndex_")
        if not type(length) is type(index) is int:
            length, index = integer(length), integer(index)
        if not 0 <= index < MAX_BUFFERS:
            check_buffer_index(index)
        whole = type(data) is bytes and len(data) == length
        copy = data if whole else copied_bytes(data, length)
        if not 0 < length <= MAX_INLINE_BYTES or len(copy) < length:
            check_inline_bytes(length, len(copy))
        self._addresses[index] = self._command_buffer._inline(copy)
        self._lengths[index] = length
        self._bound[index] = None

    # MTL: -setThreadgroupMemoryLength:atIndex:
    def setThreadgroupMemoryLength_atIndex_(self, length: int, index: int) -> None:
        if self._ended:
            check_open(True, "setThreadgroupMemoryLength_atIndex_")
        length = driver_length(length)
        check_threadgroup_length(length, index, self.device().maxThreadgroupMemoryLength())
        self._threadgroup[index] = length
        self._emptied = self._emptied & ~(1 << index) | (length == 0) << index

    # MTL: -dispatchThreadgroups:threadsPerThreadgroup:
    def dispatchThreadgroups_threadsPerThreadgroup_(
        self, groups: Sequence[int], threads: Sequence[int]
    ) -> None:
        across, down, deep = groups if type(groups) is MTLSize else map(integer, groups)
        width, height, depth = threads if type(threads) is MTLSize else map(integer, threads)
        self._dispatch((across * width, down * height, deep * depth), (width, height, depth), 0)

    # MTL: -dispatchThreads:threadsPerThreadgroup:
    def dispatchThreads_threadsPerThreadgroup_(
        self, grid: Sequence[int], threads: Sequence[int]
    ) -> None:
        across, down, deep = grid if type(grid) is MTLSize else map(integer, grid)
        width, height, depth = threads if type(threads) is MTLSize else map(integer, threads)
        self._dispatch((across, down, deep), (width, height, depth), 0)

    # MTL: -dispatchThreadgroupsWithIndirectBuffer:indirectBufferOffset:threadsPerThreadgroup:
    def dispatchThreadgroupsWithIndirectBuffer_indirectBufferOffset_threadsPerThreadgroup_(
        self, buffer: MTLBuffer, offset: int, threads: Sequence[int]
    ) -> None:
        check_buffer(buffer, "an indirect dispatch")
        check_indirect(offset, 12, buffer._length)
        width, height, depth = threads
        self._retain(buffer)
        self._dispatch((1, 1, 1), (width, height, depth), buffer._address + offset)

    def _dispatch(self, grid: Size3, group: Size3, indirect: int) -> None:
        pipeline = self._pipeline
        if pipeline is None or self._ended:
            check_open(self._ended, "a dispatch")
            check_pipeline(0, "a dispatch")
            return
        if self._touched is not None:
            self._touched.add(pipeline)
        width, height, depth = grid
        if not (0 < width < _ENDLESS and 0 < height < _ENDLESS and 0 < depth < _ENDLESS):
            if not validation_layer() and 0 in (*grid, *group):
                return  # Apple's driver runs nothing
            check_grid(grid)
        checked = pipeline._groups.get(group) or pipeline._checked_group(group)
        addresses, lengths, owners = self._addresses, self._lengths, self._bound
        for index, size, low_bits, written in pipeline._wanted:
            if (
                lengths[index] < size
                or addresses[index] & low_bits
                or (written and owners[index] is None)
            ):
                artifact = pipeline._artifact
                check_buffers(artifact.arguments, self._bindings(), artifact.name)
        scratch = self._scratch(pipeline) if pipeline._threadgroup_count else ()
        bound = tuple(addresses[: pipeline._buffer_count])
        if pipeline._checked:
            inline = tuple(zip(addresses, self._lengths, strict=True))
            self._append(resources(pipeline, self._bound, inline, self._used))
        # Twice as fast as calling Dispatch.
        fields = (pipeline._kernel, grid, checked, bound, scratch, indirect)
        self._append(_new_tuple(Dispatch, fields))

    def _bindings(self) -> list[Binding]:
        inline = (owner is None for owner in self._bound)
        return list(map(Binding, self._addresses, self._lengths, inline))

    def _scratch(self, pipeline: MTLComputePipelineState) -> tuple[int, ...]:
        """The threadgroup memory lengths that the kernel has arguments for."""
        artifact = pipeline._artifact
        lengths = tuple(self._threadgroup[: pipeline._threadgroup_count])
        static = artifact.static_threadgroup_memory
        check_scratch(artifact.arguments, lengths, artifact.name, self._emptied)
        check_threadgroup_total(static, lengths, artifact.name, pipeline._memory_limit)
        return lengths

    # MTL: -executeCommandsInBuffer:withRange:
    def executeCommandsInBuffer_withRange_(
        self, commands: MTLIndirectCommandBuffer, range_: Sequence[int]
    ) -> None:
        start, count = range_
        check_range(start, count, commands.size(), "indirect commands")
        self._execute(commands, start, count, 0)

    # MTL: -executeCommandsInBuffer:indirectBuffer:indirectBufferOffset:
    def executeCommandsInBuffer_indirectBuffer_indirectBufferOffset_(
        self, commands: MTLIndirectCommandBuffer, buffer: MTLBuffer, offset: int
    ) -> None:
        """The range is read from the buffer when the commands run: two uint32, start and length."""
        check_buffer(buffer, "an indirect execution")
        check_indirect(offset, 8, buffer._length)
        self._retain(buffer)
        self._execute(commands, 0, commands.size(), buffer._address + offset)

    def _execute(
        self, commands: MTLIndirectCommandBuffer, start: int, count: int, address: int
    ) -> None:
        check_open(self._ended, "executeCommandsInBuffer")
        pipeline = self._pipeline
        if pipeline is not None and commands._inherits_pipeline:
            check_indirect_pipeline(pipeline._indirect, pipeline._artifact.name)
        if self._touched is not None:
            host.check_touched(commands, range(start, start + count), self._touched)
        kernel = pipeline._kernel if pipeline is not None else 0
        bound = tuple(self._addresses) if commands._inherits_buffers else ()
        inherited = Dispatch(kernel, (1, 1, 1), (1, 1, 1), bound)
        self._append(Execute(commands._commands, start, count, inherited, address))
        self._retain(commands)
        inherited_bindings = self._bindings() if commands._inherits_buffers else []
        checked = self._inherited() if checks.current() is not None else None
        self._command_buffer._indirect.append(
            (commands, start, count, pipeline, inherited_bindings, checked)
        )

    def _inherited(self) -> Inherited:
        """What indirect commands may take from here, for the checking modes."""
        inline = tuple(zip(self._addresses, self._lengths, strict=True))
        return Inherited(self._pipeline, tuple(self._bound), inline, tuple(self._used))

    # MTL: -memoryBarrierWithScope:
    # Commands run in order: only the checking modes use the barrier.
    def memoryBarrierWithScope_(self, scope: int) -> None:
        check_open(self._ended, "memoryBarrierWithScope_")
        if scope & enums.MTLBarrierScopeBuffers:
            self._command_buffer._commands += order("barrier")

    # MTL: -memoryBarrierWithResources:count:
    def memoryBarrierWithResources_count_(
        self, resources: Sequence[MTLResource], count: int
    ) -> None:
        check_open(self._ended, "memoryBarrierWithResources_count_")
        for resource in resources[:count]:
            if isinstance(resource, MTLBuffer):
                end = resource._address + resource._length
                self._command_buffer._commands += order("from", resource._address)
                self._command_buffer._commands += order("to", end)

    # MTL: -useResource:usage:
    def useResource_usage_(self, resource: MTLResource, usage: int) -> None:
        check_open(self._ended, "useResource_usage_")
        self._retain(resource)
        self._used.append(resource)
        self._announce((resource,), usage)

    # MTL: -useResources:count:usage:
    def useResources_count_usage_(
        self, resources: Sequence[MTLResource], count: int, usage: int
    ) -> None:
        check_open(self._ended, "useResources_count_usage_")
        given = resources[:count]
        for resource in given:
            self._retain(resource)
        self._used += given
        self._announce(given, usage)

    # MTL: -useHeap:
    def useHeap_(self, heap: MTLHeap) -> None:
        check_open(self._ended, "useHeap_")
        self._retain(heap)
        self._used.append(heap)
        self._announce((heap,), enums.MTLResourceUsageWrite)

    # MTL: -useHeaps:count:
    def useHeaps_count_(self, heaps: Sequence[MTLHeap], count: int) -> None:
        check_open(self._ended, "useHeaps_count_")
        for heap in heaps[:count]:
            self._retain(heap)
        self._used += heaps[:count]
        self._announce(heaps[:count], enums.MTLResourceUsageWrite)

    def _announce(self, resources: Iterable[MTLResource | MTLHeap], usage: int) -> None:
        """Tell a device with its own memory what kernels may reach through addresses."""
        if self._command_buffer._queue._executor.unified:
            return
        written = bool(usage & enums.MTLResourceUsageWrite)
        self._command_buffer._commands += used_memory(resources, written)


class MTLBlitCommandEncoder(MTLCommandEncoder, Explaining):
    """Copies and fills."""

    __slots__ = ()

    # MTL: -copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:
    def copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        self, source: MTLBuffer, offset: int, target: MTLBuffer, target_offset: int, size: int
    ) -> None:
        check_open(self._ended, "copyFromBuffer")
        check_buffer(source, "copying from")
        check_buffer(target, "copying to")
        check_copy(offset, source._length, target_offset, target._length, size)
        self._retain(source)
        self._retain(target)
        if size:
            self._command_buffer._commands += blitted(source, target)
            self._append(Copy(source._address + offset, target._address + target_offset, size))

    # MTL: -fillBuffer:range:value:
    def fillBuffer_range_value_(self, buffer: MTLBuffer, range_: Sequence[int], value: int) -> None:
        check_open(self._ended, "fillBuffer_range_value_")
        start, count = range_
        check_buffer(buffer, "filling")
        check_range(start, count, buffer._length, "filling bytes")
        check_fill(value)
        self._retain(buffer)
        if count:
            self._command_buffer._commands += blitted(buffer)
            self._append(Fill(buffer._address + start, count, value))

    # MTL: -synchronizeResource:
    def synchronizeResource_(self, resource: MTLResource) -> None:
        check_open(self._ended, "synchronizeResource_")
        check_managed(resource.storageMode(), "synchronizeResource_")

    # MTL: -resetCommandsInBuffer:withRange:
    # DEVIATION: resetting or copying indirect commands with a blit encoder takes effect for work
    # that is encoded after the call; on Apple's devices for work that executes after it.
    def resetCommandsInBuffer_withRange_(
        self, commands: MTLIndirectCommandBuffer, range_: Sequence[int]
    ) -> None:
        check_open(self._ended, "resetCommandsInBuffer_withRange_")
        commands._renew()
        commands.resetWithRange_(range_)

    # MTL: -copyIndirectCommandBuffer:sourceRange:destination:destinationIndex:
    def copyIndirectCommandBuffer_sourceRange_destination_destinationIndex_(
        self,
        source: MTLIndirectCommandBuffer,
        range_: Sequence[int],
        target: MTLIndirectCommandBuffer,
        index: int,
    ) -> None:
        check_open(self._ended, "copyIndirectCommandBuffer")
        start, count = range_
        check_range(start, count, source.size(), "indirect commands")
        check_range(index, count, target.size(), "indirect commands")
        target._renew()
        for i in range(count):
            command = target.indirectComputeCommandAtIndex_(index + i)
            command._copy_from(source.indirectComputeCommandAtIndex_(start + i))

    # MTL: -optimizeIndirectCommandBuffer:withRange:
    def optimizeIndirectCommandBuffer_withRange_(
        self, commands: MTLIndirectCommandBuffer, range_: Sequence[int]
    ) -> None:
        check_open(self._ended, "optimizeIndirectCommandBuffer_withRange_")

    # MTL: -resolveCounters:inRange:destinationBuffer:destinationOffset:
    def resolveCounters_inRange_destinationBuffer_destinationOffset_(
        self,
        samples: MTLCounterSampleBuffer,
        range_: Sequence[int],
        target: MTLBuffer,
        offset: int,
    ) -> None:
        check_open(self._ended, "resolveCounters")
        start, count = range_
        check_range(start, count, samples.sampleCount(), "samples")
        check_buffer(target, "resolving counters to")
        check_copy(start * 8, samples._memory.length, offset, target._length, count * 8)
        self._retain(samples)
        self._retain(target)
        if count:
            source = samples._memory.address + start * 8
            self._append(Copy(source, target._address + offset, count * 8))
