"""Indirect command buffers: encode, execute, change, execute again."""

from __future__ import annotations

import numpy as np
import pytest
from metal_programs import Program, read

import softmetal
from softmetal.errors import ValidationError


@pytest.fixture(scope="module")
def program(metal, device):
    return Program(metal, device)


def make(program, count, **properties):
    descriptor = program.metal.MTLIndirectCommandBufferDescriptor.new()
    descriptor.setCommandTypes_(
        program.metal.MTLIndirectCommandTypeConcurrentDispatch
        | program.metal.MTLIndirectCommandTypeConcurrentDispatchThreads
    )
    settings = {"InheritBuffers": False, "InheritPipelineState": False}
    for name, value in (settings | {"MaxKernelBufferBindCount": 4} | properties).items():
        getattr(descriptor, f"set{name}_")(value)
    return program.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
        descriptor, count, 0
    )


def encode(program, commands, index, pipeline, buffers, threads):
    command = commands.indirectComputeCommandAtIndex_(index)
    if pipeline is not None:
        command.setComputePipelineState_(pipeline)
    for position, buffer in enumerate(buffers):
        command.setKernelBuffer_offset_atIndex_(buffer, 0, position)
    command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(
        program.size(1), program.size(threads)
    )
    command.setBarrier()


def execute(program, commands, start, count, *before, resident=()):
    """On a Mac the buffers that only the commands bind must be made resident."""
    usage = program.metal.MTLResourceUsageRead | program.metal.MTLResourceUsageWrite
    uses = [lambda e, b=buffer: e.useResource_usage_(b, usage) for buffer in resident]
    run = lambda e: e.executeCommandsInBuffer_withRange_(commands, (start, count))  # noqa: E731
    program.run(*before, *uses, run)


@pytest.mark.metal
def test_ranges_and_re_encoding(program):
    add, times = (
        program.pipeline("add_one", indirect=True),
        program.pipeline("times", indirect=True),
    )
    x, two, five = (program.buffer(np.array(v, "i4")) for v in ([1] * 8, [2], [5]))
    commands = make(program, 3)
    assert commands.size() == 3
    encode(program, commands, 0, add, [x], 8)
    encode(program, commands, 1, times, [x, two], 8)
    encode(program, commands, 2, add, [x], 8)
    execute(program, commands, 0, 3, resident=(x, two, five))
    np.testing.assert_array_equal(read(x), [(1 + 1) * 2 + 1] * 8)
    execute(program, commands, 1, 1, resident=(x, two, five))
    np.testing.assert_array_equal(read(x), [10] * 8)
    commands.indirectComputeCommandAtIndex_(1).setKernelBuffer_offset_atIndex_(five, 0, 1)
    execute(program, commands, 0, 2, resident=(x, two, five))
    np.testing.assert_array_equal(read(x), [55] * 8)


def test_a_change_of_size_alone(program):
    add, x = program.pipeline("add_one", indirect=True), program.buffer(np.zeros(8, "i4"))
    commands = make(program, 1)
    encode(program, commands, 0, add, [x], 8)
    execute(program, commands, 0, 1)
    command = commands.indirectComputeCommandAtIndex_(0)
    command.concurrentDispatchThreads_threadsPerThreadgroup_((3, 1, 1), (2, 1, 1))
    execute(program, commands, 0, 1)
    np.testing.assert_array_equal(read(x), [2, 2, 2, 1, 1, 1, 1, 1])


def test_resets_leave_empty_slots(program):
    add, x = program.pipeline("add_one", indirect=True), program.buffer(np.zeros(4, "i4"))
    commands = make(program, 3)  # slot 1 is never encoded
    encode(program, commands, 0, add, [x], 4)
    encode(program, commands, 2, add, [x], 4)
    execute(program, commands, 0, 3)
    np.testing.assert_array_equal(read(x), [2] * 4)
    commands.resetWithRange_((0, 1))
    execute(program, commands, 0, 3)
    np.testing.assert_array_equal(read(x), [3] * 4)
    commands.indirectComputeCommandAtIndex_(2).reset()
    execute(program, commands, 0, 3)
    np.testing.assert_array_equal(read(x), [3] * 4)


def test_inherited_pipeline_and_buffers(program):
    x = program.buffer(np.zeros(4, "i4"))
    commands = make(program, 2, InheritBuffers=True, InheritPipelineState=True)
    encode(program, commands, 0, None, [], 4)
    encode(program, commands, 1, None, [], 2)
    add = program.pipeline("add_one", indirect=True)

    def bind(encoder):
        encoder.setComputePipelineState_(add)
        encoder.setBuffer_offset_atIndex_(x, 0, 0)

    execute(program, commands, 0, 2, bind)
    np.testing.assert_array_equal(read(x), [2, 2, 1, 1])
    for before, text in (
        ((), "the encoder has none"),
        ((lambda e: e.setComputePipelineState_(add),), "`x`"),
    ):
        with pytest.raises(ValidationError, match=text):
            execute(program, commands, 0, 2, *before)


def test_threadgroup_memory_in_a_slot(program):
    x = program.buffer(np.arange(32, dtype="i4"))
    commands = make(program, 1)
    encode(program, commands, 0, program.pipeline("reverse", indirect=True), [x], 32)
    with pytest.raises(ValidationError, match="`t`"):
        execute(program, commands, 0, 1)
    commands.indirectComputeCommandAtIndex_(0).setThreadgroupMemoryLength_atIndex_(128, 0)
    execute(program, commands, 0, 1)
    np.testing.assert_array_equal(read(x), np.arange(32)[::-1])


def test_a_range_from_a_buffer(program):
    add, x = program.pipeline("add_one", indirect=True), program.buffer(np.zeros(4, "i4"))
    commands = make(program, 4)
    for index in range(4):
        encode(program, commands, index, add, [x], index + 1)
    where = program.buffer(np.array([9, 2, 2], "u4"))
    program.run(
        lambda e: e.executeCommandsInBuffer_indirectBuffer_indirectBufferOffset_(commands, where, 4)
    )
    np.testing.assert_array_equal(read(x), [2, 2, 2, 1])


def test_blits_of_commands(program):
    add, x = program.pipeline("add_one", indirect=True), program.buffer(np.zeros(4, "i4"))
    source, target = make(program, 2), make(program, 2)
    encode(program, source, 0, add, [x], 4)
    commands = program.queue.commandBuffer()
    for call in (
        lambda b: b.copyIndirectCommandBuffer_sourceRange_destination_destinationIndex_(
            source, (0, 1), target, 1
        ),
        lambda b: b.optimizeIndirectCommandBuffer_withRange_(target, (0, 2)),
    ):
        blit = commands.blitCommandEncoder()
        call(blit)
        blit.endEncoding()
    encoder = commands.computeCommandEncoder()
    encoder.executeCommandsInBuffer_withRange_(target, (0, 2))
    encoder.endEncoding()
    blit = commands.blitCommandEncoder()
    blit.resetCommandsInBuffer_withRange_(target, (0, 2))
    blit.endEncoding()
    encoder = commands.computeCommandEncoder()
    encoder.executeCommandsInBuffer_withRange_(target, (0, 2))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    np.testing.assert_array_equal(read(x), [1] * 4)


def test_refusals(program):
    commands = make(program, 2)
    command = commands.indirectComputeCommandAtIndex_(0)
    with pytest.raises(ValidationError, match="setSupportIndirectCommandBuffers_"):
        command.setComputePipelineState_(program.pipeline("add_one"))
    with pytest.raises(ValidationError, match="0 to 3"):
        command.setKernelBuffer_offset_atIndex_(program.buffer(np.zeros(1, "i4")), 0, 4)
    with pytest.raises(ValidationError, match="2"):
        commands.indirectComputeCommandAtIndex_(2)
    encoder = program.queue.commandBuffer().computeCommandEncoder()
    with pytest.raises(ValidationError, match="1 to 3"):
        encoder.executeCommandsInBuffer_withRange_(commands, (1, 2))
    command.concurrentDispatchThreads_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    with pytest.raises(ValidationError, match="no pipeline"):
        execute(program, commands, 0, 1)
    inheriting = make(program, 1, InheritPipelineState=True)
    with pytest.raises(ValidationError, match="inherits"):
        inheriting.indirectComputeCommandAtIndex_(0).setComputePipelineState_(
            program.pipeline("add_one", indirect=True)
        )
    render = softmetal.MTLIndirectCommandTypeDraw
    assert make(program, 1, CommandTypes=render) is None
