"""Dispatches that use the same memory and are not ordered: the mistake is the host's."""

from __future__ import annotations

from typing import Any

from fault_host import CONCURRENT, UNTRACKED, Host, size
from fault_model import Fault

import softmetal

PAIR = """
kernel void produce(device float* x [[buffer(0)]], uint t [[thread_position_in_grid]]) {
  x[t] = t;  //!
}
kernel void consume(device float* o [[buffer(0)]], device const float* x [[buffer(1)]],
                    uint t [[thread_position_in_grid]]) {
  o[t] = x[63 - t];  //!
}
"""
BOTH = ("produce", "consume")
BUFFERS = softmetal.MTLBarrierScopeBuffers


def concurrent(host: Host, between: Any) -> None:
    """Producer and consumer in one concurrent encoder; `between` takes encoder and buffer."""
    x, o = host.buffer(), host.buffer()
    commands = host.commands()
    encoder = commands.computeCommandEncoderWithDispatchType_(CONCURRENT)
    host.dispatch(encoder, "produce", [x])
    between(encoder, x, o)
    host.dispatch(encoder, "consume", [o, x])
    encoder.endEncoding()
    host.commit(commands)


def no_memory_barrier(host: Host, fixed: bool) -> None:
    def between(encoder: Any, x: Any, o: Any) -> None:
        if fixed:
            encoder.memoryBarrierWithScope_(BUFFERS)

    concurrent(host, between)


def barrier_of_other_resource(host: Host, fixed: bool) -> None:
    concurrent(
        host,
        lambda encoder, x, o: encoder.memoryBarrierWithResources_count_([x if fixed else o], 1),
    )


def barrier_of_texture_scope(host: Host, fixed: bool) -> None:
    scope = BUFFERS if fixed else softmetal.MTLBarrierScopeTextures
    concurrent(host, lambda encoder, x, o: encoder.memoryBarrierWithScope_(scope))


def two_writers(host: Host, fixed: bool) -> None:
    """Two dispatches of a concurrent encoder write one buffer."""
    x, other = host.buffer(), host.buffer()
    commands = host.commands()
    encoder = commands.computeCommandEncoderWithDispatchType_(CONCURRENT)
    host.dispatch(encoder, "produce", [x])
    host.dispatch(encoder, "produce", [other if fixed else x])
    encoder.endEncoding()
    host.commit(commands)


def overwritten_input(host: Host, fixed: bool) -> None:
    """A concurrent encoder writes a buffer that an earlier dispatch may still read."""
    x, o = host.buffer(), host.buffer()
    commands = host.commands()
    encoder = commands.computeCommandEncoderWithDispatchType_(CONCURRENT)
    host.dispatch(encoder, "consume", [o, x])
    if fixed:
        encoder.memoryBarrierWithScope_(BUFFERS)
    host.dispatch(encoder, "produce", [x])
    encoder.endEncoding()
    host.commit(commands)


def fenced(host: Host, x: Any, updates: bool, waits: bool) -> None:
    """Producer and consumer in two encoders of one command buffer, with a fence or part of one."""
    fence, commands = host.device.newFence(), host.commands()
    for name, buffers, use, call in (
        ("produce", [x], updates, "updateFence_"),
        ("consume", [host.buffer(), x], waits, "waitForFence_"),
    ):
        encoder = commands.computeCommandEncoder()
        if use and call == "waitForFence_":
            encoder.waitForFence_(fence)
        host.dispatch(encoder, name, buffers)
        if use and call == "updateFence_":
            encoder.updateFence_(fence)
        encoder.endEncoding()
    host.commit(commands)


def heap_without_fence(host: Host, fixed: bool) -> None:
    heap = host.heap(1024, HazardTrackingMode=softmetal.MTLHazardTrackingModeUntracked)
    x = heap.newBufferWithLength_options_(256, heap.resourceOptions())
    fenced(host, x, fixed, fixed)


def fence_not_awaited(host: Host, fixed: bool) -> None:
    fenced(host, host.buffer(options=UNTRACKED), True, fixed)


def untracked_without_fence(host: Host, fixed: bool) -> None:
    """Hazard tracking is what orders encoders; an untracked buffer has none."""
    fenced(host, host.buffer(options=0 if fixed else UNTRACKED), False, False)


# Buffers are made before the first commit: making one lets softmetal notice that work has ended.
def queues(host: Host, signals: int, awaits: int) -> None:
    """Producer on one queue, consumer on another, with an event or part of one between them."""
    x, o, event = host.buffer(options=UNTRACKED), host.buffer(), host.device.newEvent()
    first = host.commands()
    host.run_one(first, "produce", [x])
    if signals:
        first.encodeSignalEvent_value_(event, signals)
    host.commit(first)
    second = host.commands(host.device.newCommandQueue())
    if awaits:
        second.encodeWaitForEvent_value_(event, awaits)
    host.run_one(second, "consume", [o, x])
    host.commit(second)


def queues_without_event(host: Host, fixed: bool) -> None:
    queues(host, int(fixed), int(fixed))


def event_of_earlier_value(host: Host, fixed: bool) -> None:
    """The consumer waits for a value that was signalled before the producer ran."""
    x, o, event = host.buffer(options=UNTRACKED), host.buffer(), host.device.newEvent()
    first = host.commands()
    first.encodeSignalEvent_value_(event, 1)
    host.run_one(first, "produce", [x])
    first.encodeSignalEvent_value_(event, 2)
    host.commit(first)
    second = host.commands(host.device.newCommandQueue())
    second.encodeWaitForEvent_value_(event, 2 if fixed else 1)
    host.run_one(second, "consume", [o, x])
    host.commit(second)


def queues_without_wait(host: Host, fixed: bool) -> None:
    """Without an event the host may also wait for the first command buffer."""
    x, o = host.buffer(options=UNTRACKED), host.buffer()
    first = host.commands()
    host.run_one(first, "produce", [x])
    host.commit(first)
    if fixed:
        first.waitUntilCompleted()
    second = host.commands(host.device.newCommandQueue())
    host.run_one(second, "consume", [o, x])
    host.commit(second)


def indirect_without_barrier(host: Host, fixed: bool) -> None:
    descriptor = softmetal.MTLIndirectCommandBufferDescriptor.new()
    descriptor.setCommandTypes_(softmetal.MTLIndirectCommandTypeConcurrentDispatch)
    descriptor.setInheritBuffers_(False)
    descriptor.setInheritPipelineState_(False)
    descriptor.setMaxKernelBufferBindCount_(2)
    make = host.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
    indirect, x, o = make(descriptor, 2, 0), host.buffer(), host.buffer()
    for index, (name, buffers) in enumerate((("produce", [x]), ("consume", [o, x]))):
        command = indirect.indirectComputeCommandAtIndex_(index)
        command.setComputePipelineState_(host.pipeline(name))
        for position, buffer in enumerate(buffers):
            command.setKernelBuffer_offset_atIndex_(buffer, 0, position)
        command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(size((1,)), size((64,)))
        if fixed:
            command.setBarrier()
    commands = host.commands()
    encoder = commands.computeCommandEncoder()
    for buffer in (x, o):
        encoder.useResource_usage_(buffer, softmetal.MTLResourceUsageWrite)
    encoder.executeCommandsInBuffer_withRange_(indirect, (0, 2))
    encoder.endEncoding()
    host.commit(commands)


def blit_on_another_queue(host: Host, fixed: bool) -> None:
    """A copy on one queue reads what a dispatch on another writes."""
    x, o, event = host.buffer(options=UNTRACKED), host.buffer(), host.device.newEvent()
    first = host.commands()
    host.run_one(first, "produce", [x])
    if fixed:
        first.encodeSignalEvent_value_(event, 1)
    host.commit(first)
    second = host.commands(host.device.newCommandQueue())
    if fixed:
        second.encodeWaitForEvent_value_(event, 1)
    blit = second.blitCommandEncoder()
    copy = blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_
    copy(x, 0, o, 0, 256)
    blit.endEncoding()
    host.commit(second)


def fill_without_fence(host: Host, fixed: bool) -> None:
    """A fill and a dispatch on an untracked buffer in one command buffer."""
    x, fence, commands = host.buffer(options=UNTRACKED), host.device.newFence(), host.commands()
    blit = commands.blitCommandEncoder()
    blit.fillBuffer_range_value_(x, (0, 256), 1)
    if fixed:
        blit.updateFence_(fence)
    blit.endEncoding()
    encoder = commands.computeCommandEncoder()
    if fixed:
        encoder.waitForFence_(fence)
    host.dispatch(encoder, "consume", [host.buffer(), x])
    encoder.endEncoding()
    host.commit(commands)


def overlapping_placement(host: Host, fixed: bool) -> None:
    """Two live buffers of a placement heap overlap."""
    heap = host.heap(1024, Type=softmetal.MTLHeapTypePlacement)
    options = heap.resourceOptions()
    x = heap.newBufferWithLength_options_offset_(512, options, 0)
    y = heap.newBufferWithLength_options_offset_(512, options, 512 if fixed else 256)
    commands = host.commands()
    encoder = commands.computeCommandEncoderWithDispatchType_(CONCURRENT)
    host.dispatch(encoder, "produce", [x], threads=128)
    host.dispatch(encoder, "consume", [host.buffer(), y])
    encoder.endEncoding()
    host.commit(commands)


def aliased_too_early(host: Host, fixed: bool) -> None:
    """A buffer is made aliasable while a dispatch that uses it is not ordered with the next."""
    heap = host.heap(1024)
    options = heap.resourceOptions()
    x = heap.newBufferWithLength_options_(256, options)
    commands = host.commands()
    encoder = commands.computeCommandEncoderWithDispatchType_(CONCURRENT)
    host.dispatch(encoder, "consume", [host.buffer(), x])
    if not fixed:
        x.makeAliasable()
    y = heap.newBufferWithLength_options_(256, options)
    host.dispatch(encoder, "produce", [y])
    encoder.endEncoding()
    host.commit(commands)


def old_contents_of_alias(host: Host, fixed: bool) -> None:
    """An alias is read for what the first buffer left there, with no fence between them."""
    heap = host.heap(1024, Type=softmetal.MTLHeapTypePlacement)
    options = heap.resourceOptions()
    x = heap.newBufferWithLength_options_offset_(256, options, 0)
    alias = heap.newBufferWithLength_options_offset_(256, options, 0)
    fence, commands = host.device.newFence(), host.commands()
    encoder = commands.computeCommandEncoder()
    host.dispatch(encoder, "produce", [x])
    if fixed:
        encoder.updateFence_(fence)
    encoder.endEncoding()
    encoder = commands.computeCommandEncoder()
    if fixed:
        encoder.waitForFence_(fence)
    host.dispatch(encoder, "consume", [host.buffer(), alias])
    encoder.endEncoding()
    host.commit(commands)


def order(name: str, about: str, host: Any, kernels: tuple[str, ...] = BOTH) -> Fault:
    return Fault(name, about, "race", PAIR, host=host, kernels=kernels)


ORDER = (
    order(
        "no_memory_barrier",
        "dependent dispatches of a concurrent encoder without memoryBarrier",
        no_memory_barrier,
    ),
    order(
        "barrier_of_other_resource",
        "memoryBarrierWithResources names another buffer",
        barrier_of_other_resource,
    ),
    order(
        "barrier_of_texture_scope",
        "memoryBarrierWithScope for textures only",
        barrier_of_texture_scope,
    ),
    order(
        "two_writers",
        "two dispatches of a concurrent encoder write one buffer",
        two_writers,
        ("produce",),
    ),
    order(
        "overwritten_input",
        "a concurrent dispatch overwrites what an earlier one reads",
        overwritten_input,
    ),
    order(
        "heap_without_fence",
        "two encoders share a buffer of an untracked heap without a fence",
        heap_without_fence,
    ),
    order("fence_not_awaited", "a fence that is updated and never awaited", fence_not_awaited),
    order(
        "untracked_without_fence",
        "two encoders share an untracked buffer without a fence",
        untracked_without_fence,
    ),
    order(
        "queues_without_event",
        "producer and consumer on two queues without an event",
        queues_without_event,
    ),
    order(
        "event_of_earlier_value",
        "the event's value waited for is signalled before the producer",
        event_of_earlier_value,
    ),
    order(
        "queues_without_wait",
        "the second queue is given its work before the first has finished",
        queues_without_wait,
    ),
    order(
        "indirect_without_barrier",
        "dependent commands of an indirect command buffer without setBarrier",
        indirect_without_barrier,
    ),
    order(
        "blit_on_another_queue",
        "a copy on another queue reads what a dispatch writes",
        blit_on_another_queue,
        ("produce",),
    ),
    order(
        "fill_without_fence",
        "a fill and a dispatch share an untracked buffer without a fence",
        fill_without_fence,
        ("consume",),
    ),
    order(
        "overlapping_placement",
        "two live buffers of a placement heap overlap",
        overlapping_placement,
    ),
    order(
        "aliased_too_early",
        "makeAliasable while the buffer is still in use",
        aliased_too_early,
    ),
    order(
        "old_contents_of_alias",
        "an alias is read for the old contents without a fence",
        old_contents_of_alias,
    ),
)
