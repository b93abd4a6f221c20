"""Queues, command buffers, encoders and events."""

from __future__ import annotations

import ctypes
import struct
import threading

import numpy as np
import pytest
from metal_programs import Program, read

import softmetal
from softmetal.errors import ValidationError


@pytest.fixture(scope="module")
def program(metal, device):
    return Program(metal, device)


def bind(program, name, *buffers):
    pipeline = program.pipeline(name)

    def step(encoder):
        encoder.setComputePipelineState_(pipeline)
        for index, buffer in enumerate(buffers):
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)

    return step


# ---- dispatch and arguments ----


@pytest.mark.metal
@pytest.mark.parametrize("grid", [(1, 1, 1), (33, 1, 1), (7, 5, 3), (129, 2, 1)])
def test_ragged_grids(program, grid):
    out = program.buffer(np.zeros(np.prod(grid), "u4"))
    program.run(
        bind(program, "where", out),
        lambda e: e.dispatchThreads_threadsPerThreadgroup_(
            program.size(*grid), program.size(8, 4, 2)
        ),
    )
    z, y, x = np.mgrid[: grid[2], : grid[1], : grid[0]]
    np.testing.assert_array_equal(read(out, "u4"), (x + 100 * y + 10000 * z).ravel())


@pytest.mark.metal
def test_inline_bytes_are_copied_when_they_are_set(program):
    x, value = program.buffer(np.arange(8, dtype="i4")), ctypes.c_int32(3)

    def step(encoder):
        encoder.setBytes_length_atIndex_(value, 4, 1)
        value.value = 1000
        encoder.dispatchThreads_threadsPerThreadgroup_(program.size(8), program.size(8))
        encoder.setBytes_length_atIndex_(struct.pack("i", 5), 4, 1)
        encoder.dispatchThreads_threadsPerThreadgroup_(program.size(8), program.size(8))

    program.run(bind(program, "times", x), step)
    np.testing.assert_array_equal(read(x), np.arange(8) * 15)


def test_more_inline_bytes_than_one_arena_holds(program):
    x = program.buffer(np.ones(4, "i4"))

    def step(encoder):
        for _ in range(40):
            encoder.setBytes_length_atIndex_(struct.pack("i", 1) + bytes(4092), 4096, 1)
            encoder.dispatchThreads_threadsPerThreadgroup_((4, 1, 1), (4, 1, 1))
        encoder.setBytes_length_atIndex_(memoryview(struct.pack("i", 7)), 4, 1)
        encoder.dispatchThreads_threadsPerThreadgroup_((4, 1, 1), (4, 1, 1))

    program.run(bind(program, "times", x), step)
    np.testing.assert_array_equal(read(x), [7] * 4)


@pytest.mark.metal
def test_threadgroup_memory(program):
    x = program.buffer(np.arange(96, dtype="i4"))

    def step(encoder):
        encoder.setThreadgroupMemoryLength_atIndex_(384, 0)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(program.size(1), program.size(96))

    program.run(bind(program, "reverse", x), step)
    np.testing.assert_array_equal(read(x), np.arange(96)[::-1])


@pytest.mark.metal
def test_indirect_dispatch_and_offsets(program):
    x = program.buffer(np.zeros(40, "i4"))
    counts = program.buffer(np.array([9, 2, 1, 1], "u4"))

    def step(encoder):
        encoder.setBuffers_offsets_withRange_([x], [16], (0, 1))
        encoder.setBufferOffset_atIndex_(32, 0)
        encoder.dispatchThreadgroupsWithIndirectBuffer_indirectBufferOffset_threadsPerThreadgroup_(
            counts, 4, program.size(16)
        )

    program.run(bind(program, "add_one", x), step)
    np.testing.assert_array_equal(read(x), [0] * 8 + [1] * 32)


def test_concurrent_encoders_and_barriers(program):
    x = program.buffer(np.zeros(64, "i4"))
    commands = program.queue.commandBuffer()
    encoder = commands.computeCommandEncoderWithDispatchType_(softmetal.MTLDispatchTypeConcurrent)
    bind(program, "add_one", x)(encoder)
    for _ in range(5):
        encoder.dispatchThreads_threadsPerThreadgroup_(program.size(64), program.size(32))
        encoder.memoryBarrierWithScope_(softmetal.MTLBarrierScopeBuffers)
        encoder.memoryBarrierWithResources_count_([x], 1)
    encoder.useResource_usage_(x, softmetal.MTLResourceUsageRead)
    assert encoder.dispatchType() == softmetal.MTLDispatchTypeConcurrent
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    np.testing.assert_array_equal(read(x), [5] * 64)


REFUSED = [
    ("no pipeline", lambda e, b: e.dispatchThreads_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1)),
     "setComputePipelineState_"),
    ("index", lambda e, b: e.setBuffer_offset_atIndex_(b, 0, 31), "31"),
    ("offset", lambda e, b: e.setBuffer_offset_atIndex_(b, 64, 0), "64"),
    ("long bytes", lambda e, b: e.setBytes_length_atIndex_(bytes(5000), 5000, 0), "5000"),
    ("short bytes", lambda e, b: e.setBytes_length_atIndex_(b"abc", 4, 0), "only 3"),
    ("odd memory", lambda e, b: e.setThreadgroupMemoryLength_atIndex_(7, 0), "multiple of 16"),
    ("ended", lambda e, b: (e.endEncoding(), e.setBuffer_offset_atIndex_(b, 0, 0)), "endEncoding"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call", "text"), REFUSED, ids=[row[0] for row in REFUSED])
def test_encoders_refuse(program, name, call, text):
    encoder = program.queue.commandBuffer().computeCommandEncoder()
    with pytest.raises(ValidationError, match=text):
        call(encoder, program.buffer(np.zeros(16, "i4")))


@pytest.mark.parametrize(
    ("kernel", "grid", "group", "text"),
    [
        ("add_one", (4, 1, 1), (4, 1, 1), "`x`.*setBuffer_offset_atIndex_"),
        ("where", (4, 1, 1), (2048, 1, 1), "2048 threads.*1024.*`where`"),
        ("small", (4, 1, 1), (65, 1, 1), "65 threads.*64.*`small`"),
        ("reverse", (4, 1, 1), (0, 1, 1), "0 x 1 x 1"),
    ],
)
def test_dispatches_refuse(program, kernel, grid, group, text):
    encoder = program.queue.commandBuffer().computeCommandEncoder()
    encoder.setComputePipelineState_(program.pipeline(kernel))
    with pytest.raises(ValidationError, match=text):
        encoder.dispatchThreads_threadsPerThreadgroup_(grid, group)


def test_missing_threadgroup_memory_is_named(program):
    encoder = program.queue.commandBuffer().computeCommandEncoder()
    bind(program, "reverse", program.buffer(np.zeros(4, "i4")))(encoder)
    with pytest.raises(ValidationError, match="`t`"):
        encoder.dispatchThreads_threadsPerThreadgroup_((4, 1, 1), (4, 1, 1))


# ---- blits ----


@pytest.mark.metal
def test_copies_and_fills(program, metal):
    a, b = program.buffer(np.arange(64, dtype="u1")), program.buffer(np.zeros(100, "u1"))
    commands = program.queue.commandBuffer()
    blit = commands.blitCommandEncoder()
    blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(a, 4, b, 8, 60)
    blit.fillBuffer_range_value_(b, metal.NSMakeRange(72, 28), 100)
    blit.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    wanted = np.zeros(100, "u1")
    wanted[8:68], wanted[72:] = np.arange(4, 64), 100
    np.testing.assert_array_equal(read(b, "u1"), wanted)


def test_blits_out_of_range(program):
    blit = program.queue.commandBuffer().blitCommandEncoder()
    a = program.buffer(np.zeros(8, "u1"))
    copy = blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_
    for bad in ((a, 1, a, 0, 8), (a, 0, a, 1, 8), (a, -1, a, 0, 1), (a, 0, a, 0, -1)):
        with pytest.raises(ValidationError):
            copy(*bad)
    with pytest.raises(ValidationError, match="256"):
        blit.fillBuffer_range_value_(a, (0, 8), 256)


# ---- command buffers ----


@pytest.mark.metal
def test_the_life_of_a_command_buffer(program, metal):
    seen = []
    commands = program.queue.commandBuffer()
    assert commands.status() == metal.MTLCommandBufferStatusNotEnqueued
    commands.enqueue()
    assert commands.status() == metal.MTLCommandBufferStatusEnqueued
    commands.addScheduledHandler_(lambda c: seen.append("scheduled"))
    commands.addCompletedHandler_(lambda c: seen.append(c.status()))
    commands.commit()
    commands.waitUntilScheduled()
    commands.waitUntilCompleted()
    assert commands.status() == metal.MTLCommandBufferStatusCompleted
    assert seen == ["scheduled", metal.MTLCommandBufferStatusCompleted]
    assert commands.error() is None
    assert commands.GPUEndTime() >= commands.GPUStartTime() > 0


def test_times_are_in_order(program):
    x = program.buffer(np.zeros(1 << 16, "i4"))
    step = bind(program, "add_one", x)
    commands = program.run(
        step,
        lambda e: e.dispatchThreads_threadsPerThreadgroup_((1 << 16, 1, 1), (256, 1, 1)),
    )
    assert 0 < commands.kernelStartTime() <= commands.GPUStartTime() <= commands.GPUEndTime()


def test_handlers_run_without_a_wait(program):
    done = threading.Event()
    commands = program.queue.commandBuffer()
    commands.addCompletedHandler_(lambda c: done.set())
    commands.commit()
    assert done.wait(60)


def test_handlers_run_in_order_and_may_commit(program):
    seen, last = [], threading.Event()

    def handler(number):
        def run(commands):
            seen.append(number)
            if number == 4:
                follower = program.queue.commandBuffer()
                follower.addCompletedHandler_(lambda c: last.set())
                follower.commit()

        return run

    for number in range(5):
        commands = program.queue.commandBuffer()
        commands.addCompletedHandler_(handler(number))
        commands.commit()
    assert last.wait(60)
    assert seen == [0, 1, 2, 3, 4]


def test_a_handler_may_wait_for_a_later_command_buffer(program):
    seen = []
    first, second = program.queue.commandBuffer(), program.queue.commandBuffer()

    def wait(commands):
        seen.append("first")
        second.waitUntilCompleted()

    first.addCompletedHandler_(wait)
    second.addCompletedHandler_(lambda commands: seen.append("second"))
    first.enqueue()
    second.commit()  # which waits for its turn
    first.commit()
    first.waitUntilCompleted()
    assert seen == ["first", "second"]


def test_a_failing_handler_is_logged(program, caplog):
    commands = program.queue.commandBuffer()
    commands.addCompletedHandler_(lambda c: 1 / 0)
    commands.commit()
    commands.waitUntilCompleted()
    assert "handler of a command buffer failed" in caplog.text


@pytest.mark.metal
def test_enqueued_order_is_kept(program):
    x = program.buffer(np.array([1], "i4"))
    first, second = program.queue.commandBuffer(), program.queue.commandBuffer()
    first.enqueue()
    second.enqueue()
    for commands, name in ((second, "times"), (first, "add_one")):
        encoder = commands.computeCommandEncoder()
        bind(program, name, x)(encoder)
        encoder.setBytes_length_atIndex_(struct.pack("i", 10), 4, 1)
        encoder.dispatchThreads_threadsPerThreadgroup_(program.size(1), program.size(1))
        encoder.endEncoding()
    second.commit()
    assert second.status() < softmetal.MTLCommandBufferStatusCompleted
    first.commit()
    second.waitUntilCompleted()
    assert read(x)[0] == 20  # (1 + 1) * 10


def test_command_buffers_refuse_misuse(program):
    commands = program.queue.commandBuffer()
    with pytest.raises(ValidationError, match="before commit"):
        commands.waitUntilCompleted()
    encoder = commands.computeCommandEncoder()
    for call in (commands.commit, commands.blitCommandEncoder):
        with pytest.raises(ValidationError, match="endEncoding"):
            call()
    encoder.endEncoding()
    commands.commit()
    for call in (commands.commit, commands.computeCommandEncoder, commands.enqueue):
        with pytest.raises(ValidationError, match="after commit"):
            call()
    with pytest.raises(ValidationError, match="after commit"):
        commands.addCompletedHandler_(print)
    commands.waitUntilCompleted()
    with pytest.raises(ValidationError, match="after endEncoding"):
        encoder.endEncoding()


def test_a_queue_holds_as_many_as_it_was_told(program):
    queue = program.device.newCommandQueueWithMaxCommandBufferCount_(2)
    x = program.buffer(np.zeros(8, "i4"))
    step = bind(program, "add_one", x)
    for _ in range(20):
        commands = queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        step(encoder)
        encoder.dispatchThreads_threadsPerThreadgroup_((8, 1, 1), (8, 1, 1))
        encoder.endEncoding()
        commands.commit()
        assert len(queue._in_flight) <= 2
    commands.waitUntilCompleted()
    np.testing.assert_array_equal(read(x), [20] * 8)


def test_many_threads_and_queues(program):
    pipeline, results = program.pipeline("add_one"), []

    def work():
        queue = program.device.newCommandQueue()
        x = program.buffer(np.zeros(100, "i4"))
        for _ in range(25):
            commands = queue.commandBuffer()
            encoder = commands.computeCommandEncoder()
            encoder.setComputePipelineState_(pipeline)
            encoder.setBuffer_offset_atIndex_(x, 0, 0)
            encoder.dispatchThreads_threadsPerThreadgroup_((100, 1, 1), (32, 1, 1))
            encoder.endEncoding()
            commands.commit()
        commands.waitUntilCompleted()
        results.append((read(x) == 25).all())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_several_threads_wait_for_one_command_buffer(program):
    event, seen, states = program.device.newSharedEvent(), [], []
    commands = program.queue.commandBuffer()
    commands.encodeWaitForEvent_value_(event, 1)
    commands.addCompletedHandler_(lambda c: seen.append(1))
    commands.commit()

    def wait():
        commands.waitUntilCompleted()
        states.append((commands.status(), list(seen)))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    event.setSignaledValue_(1)
    for thread in threads:
        thread.join()
    assert states == [(softmetal.MTLCommandBufferStatusCompleted, [1])] * 3


def test_a_wait_goes_on_after_an_interrupt(program, monkeypatch):
    """Which may come while a command buffer's end is noted."""
    queue = program.device.newCommandQueue()
    commands = queue.commandBuffer()
    commands.commit()
    ordinary = type(commands)._finish

    def interrupted(self, outcome):
        monkeypatch.setattr(type(commands), "_finish", ordinary)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(commands), "_finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        commands.waitUntilCompleted()
    commands.waitUntilCompleted()
    assert commands.status() == program.metal.MTLCommandBufferStatusCompleted
