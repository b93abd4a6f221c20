"""Memory that kernels reach through addresses or inherit: correct programs have no findings."""

from __future__ import annotations

import numpy as np
import pytest
from fault_host import Host, size
from fault_model import HEAD

import softmetal

pytestmark = pytest.mark.skipif("sys.platform == 'darwin'", reason="checks are softmetal's own")

BY_ADDRESS = (
    HEAD
    + """
kernel void k(device float* o [[buffer(0)]], device const ulong* table [[buffer(1)]],
              constant uint& past [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  o[i] = ((device const float*)table[0])[i + past];
}
"""
)
FAR = 1 << 14  # floats: an address near a buffer is reported as the buffer's


def announced(host, how, encoder, commands, data):
    """Makes `data` resident, or not."""
    if how == "useResource":
        encoder.useResource_usage_(data, softmetal.MTLResourceUsageRead)
    elif how == "useHeap":
        encoder.useHeap_(data.heap())
    elif how != "nothing":
        made = host.device.newResidencySetWithDescriptor_error_
        residency, _ = made(softmetal.MTLResidencySetDescriptor.new(), None)
        residency.addAllocation_(data.heap() if how == "set with its heap" else data)
        residency.commit()
        if how == "set of the command buffer":
            commands.useResidencySet_(residency)
        else:
            host.queue.addResidencySet_(residency)


def indirect_list(host, inherits, pipeline, arguments, count=2):
    descriptor = softmetal.MTLIndirectCommandBufferDescriptor.new()
    descriptor.setCommandTypes_(softmetal.MTLIndirectCommandTypeConcurrentDispatchThreads)
    descriptor.setInheritBuffers_("buffers" in inherits)
    descriptor.setInheritPipelineState_("pipeline" in inherits)
    descriptor.setMaxKernelBufferBindCount_(3)
    make = host.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
    found = make(descriptor, count, 0)
    for number in range(count):
        slot = found.indirectComputeCommandAtIndex_(number)
        if "pipeline" not in inherits:
            slot.setComputePipelineState_(pipeline)
        if "buffers" not in inherits:
            for index, buffer in enumerate(arguments):
                slot.setKernelBuffer_offset_atIndex_(buffer, 0, index)
        slot.concurrentDispatchThreads_threadsPerThreadgroup_(size((64,)), size((32,)))
        slot.setBarrier()
    return found


def findings(how, inherits, past):
    """Of a kernel, encoded plainly if `inherits` is None, that reads `data` by its address."""
    with softmetal.checking("bounds"):
        host = Host(BY_ADDRESS)
        heap = host.heap(2 * FAR)
        kept = [heap.newBufferWithLength_options_(4 * FAR, 0)]  # in front of it
        data = heap.newBufferWithLength_options_(256, 0) if "eap" in how else host.buffer()
        kept.append(host.buffer(FAR))
        out, table, offset = host.buffer(), host.buffer(2), host.buffer(1)
        table.contents().as_buffer(8)[:] = data.gpuAddress().to_bytes(8, "little")
        offset.contents().as_buffer(4)[:] = past.to_bytes(4, "little")
        arguments = [out, table, offset]
        commands = host.commands()
        encoder = commands.computeCommandEncoder()
        announced(host, how, encoder, commands, data)
        pipeline = host.pipeline("k")
        encoder.setComputePipelineState_(pipeline)
        for index, buffer in enumerate(arguments):
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)
        if inherits is None:
            encoder.dispatchThreads_threadsPerThreadgroup_(size((64,)), size((32,)))
        else:
            found = indirect_list(host, inherits, pipeline, arguments)
            encoder.executeCommandsInBuffer_withRange_(found, (0, 2))
        encoder.endEncoding()
        host.commit(commands)
        return host.findings()


HOW = (
    *("useResource", "useHeap", "set of the queue", "set of the command buffer"),
    *("set with its heap", "nothing"),
)
INHERITS = (None, (), ("buffers",), ("pipeline",), ("buffers", "pipeline"))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("inherits", INHERITS)
def test_what_kernels_reach_by_addresses(how, inherits):
    assert bool(findings(how, inherits, past=0)) is (how == "nothing")
    far = findings(how, inherits, past=1 << 24)
    assert far
    assert all("reads 4 bytes" in line for line in far)


RANGE = (
    HEAD
    + """
kernel void limits(device uint* range [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  range[i] = i == 0 ? 1 : 2;
}
kernel void add(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += 1; }
"""
)


@pytest.mark.parametrize("modes", [(), ("bounds",), ("bounds", "race")])
@pytest.mark.parametrize("last", [3, 2])
def test_a_range_that_a_kernel_writes(modes, last):
    """Commands 1 and 2 of 4 are executed; the last one of these or of all is out of bounds."""
    with softmetal.checking(*modes):
        host = Host(RANGE)
        limits, x = host.buffer(2), host.buffer(64)
        listed = indirect_list(host, (), host.pipeline("add"), [x], 4)
        slot = listed.indirectComputeCommandAtIndex_(last)
        if modes:
            slot.concurrentDispatchThreads_threadsPerThreadgroup_(size((65,)), size((65,)))
        commands = host.commands()
        encoder = commands.computeCommandEncoder()
        host.dispatch(encoder, "limits", [limits], 2)
        execute = encoder.executeCommandsInBuffer_indirectBuffer_indirectBufferOffset_
        execute(listed, limits, 0)
        encoder.endEncoding()
        host.commit(commands)
        found = host.findings()
    assert bool(found) is (last == 2 and bool(modes)), found
    assert list(memoryview(x.contents().as_buffer(256)).cast("f")) == [2.0] * 64


@pytest.mark.parametrize("count", [3, 399, 600])
@pytest.mark.parametrize("past", [0, 1 << 24])
def test_many_resident_buffers(count, past):
    """Each thread reads the first element of another buffer."""
    source = (
        HEAD
        + """
    kernel void each(device float* o [[buffer(0)]], device const ulong* table [[buffer(1)]],
                     constant uint& past [[buffer(2)]], uint i [[thread_position_in_grid]]) {
      o[i] = ((device const float*)table[i])[past];
    }"""
    )
    with softmetal.checking("bounds"):
        host = Host(source)
        shared = [host.buffer(64 + 16 * (i % 5)) for i in range(count)]
        out, table, offset = host.buffer(count), host.buffer(2 * count), host.buffer(1)
        for i, buffer in enumerate(shared):
            buffer.contents().as_buffer(4)[:] = memoryview(np.float32(i)).cast("B")
            place = table.contents().as_buffer(8 * count)
            place[8 * i : 8 * i + 8] = buffer.gpuAddress().to_bytes(8, "little")
        offset.contents().as_buffer(4)[:] = past.to_bytes(4, "little")
        commands = host.commands()
        encoder = commands.computeCommandEncoder()
        encoder.useResources_count_usage_(shared, count, softmetal.MTLResourceUsageRead)
        encoder.setComputePipelineState_(host.pipeline("each"))
        for index, buffer in enumerate((out, table, offset)):
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)
        encoder.dispatchThreads_threadsPerThreadgroup_(size((count,)), size((32,)))
        encoder.endEncoding()
        host.commit(commands)
        assert bool(host.findings()) is bool(past)
    if not past:
        read = memoryview(out.contents().as_buffer(4 * count)).cast("f")
        assert list(read) == list(range(count))
