"""Programs whose dispatches are ordered give no finding, in whichever way they are ordered."""

from __future__ import annotations

import pytest
from fault_host import ALL_MODES, CONCURRENT, UNTRACKED, Host
from fault_model import HEAD
from order_faults import BUFFERS, PAIR

import softmetal

pytestmark = pytest.mark.skipif("sys.platform == 'darwin'", reason="checks are softmetal's own")


def serial_encoder(host):
    """Dispatches of a serial encoder follow each other, for untracked resources too."""
    x, o = host.buffer(options=UNTRACKED), host.buffer()
    commands = host.commands()
    encoder = commands.computeCommandEncoder()
    for _ in range(3):
        host.dispatch(encoder, "produce", [x])
        host.dispatch(encoder, "consume", [o, x])
    encoder.endEncoding()
    host.commit(commands)


def tracked_encoders(host):
    x, o = host.buffer(), host.buffer()
    commands = host.commands()
    host.run_one(commands, "produce", [x])
    host.run_one(commands, "consume", [o, x])
    blit = commands.blitCommandEncoder()
    blit.fillBuffer_range_value_(x, (0, 256), 0)
    blit.endEncoding()
    host.run_one(commands, "consume", [o, x])
    host.commit(commands)


def command_buffers_of_one_queue(host):
    x, o = host.buffer(), host.buffer()
    for _ in range(3):
        for name, buffers in (("produce", [x]), ("consume", [o, x])):
            commands = host.commands()
            host.run_one(commands, name, buffers)
            host.commit(commands)


def untracked_and_the_host_waits(host):
    x, o = host.buffer(options=UNTRACKED), host.buffer()
    for name, buffers in (("produce", [x]), ("consume", [o, x]), ("produce", [x])):
        commands = host.commands()
        host.run_one(commands, name, buffers)
        host.commit(commands)
        commands.waitUntilCompleted()


def untracked_and_an_event_on_one_queue(host):
    x, o, event = host.buffer(options=UNTRACKED), host.buffer(), host.device.newEvent()
    commands = host.commands()
    host.run_one(commands, "produce", [x])
    commands.encodeSignalEvent_value_(event, 1)
    commands.encodeWaitForEvent_value_(event, 1)
    host.run_one(commands, "consume", [o, x])
    host.commit(commands)


def shared_event_with_the_host(host):
    """The host waits for one queue's event and starts the other."""
    x, o, event = host.buffer(options=UNTRACKED), host.buffer(), host.device.newSharedEvent()
    first, second = host.commands(), host.commands(host.device.newCommandQueue())
    host.run_one(first, "produce", [x])
    first.encodeSignalEvent_value_(event, 1)
    second.encodeWaitForEvent_value_(event, 2)
    host.run_one(second, "consume", [o, x])
    host.commit(first)
    assert event.waitUntilSignaledValue_timeoutMS_(1, 60_000)
    event.setSignaledValue_(2)
    host.commit(second)


def events_back_and_forth(host):
    x, o, event = host.buffer(options=UNTRACKED), host.buffer(), host.device.newEvent()
    other = host.device.newCommandQueue()
    for step in range(0, 40, 2):
        first, second = host.commands(), host.commands(other)
        first.encodeWaitForEvent_value_(event, step)
        host.run_one(first, "produce", [x])
        first.encodeSignalEvent_value_(event, step + 1)
        second.encodeWaitForEvent_value_(event, step + 1)
        host.run_one(second, "consume", [o, x])
        second.encodeSignalEvent_value_(event, step + 2)
        host.commit(first)
        host.commit(second)


def readers_on_two_queues(host):
    """Reading the same buffer needs no order."""
    x, outs = host.buffer(options=UNTRACKED), [host.buffer(), host.buffer()]
    for queue, o in zip((host.queue, host.device.newCommandQueue()), outs, strict=True):
        commands = host.commands(queue)
        host.run_one(commands, "consume", [o, x])
        host.commit(commands)


def halves_of_a_buffer(host):
    """Concurrent dispatches that write different halves of one buffer."""
    x = host.buffer(128)
    commands = host.commands()
    encoder = commands.computeCommandEncoderWithDispatchType_(CONCURRENT)
    for offset in (0, 256):
        encoder.setComputePipelineState_(host.pipeline("produce"))
        encoder.setBuffer_offset_atIndex_(x, offset, 0)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (64, 1, 1))
    encoder.endEncoding()
    host.commit(commands)


def several_barriers(host):
    x, o = host.buffer(), host.buffer()
    commands = host.commands()
    encoder = commands.computeCommandEncoderWithDispatchType_(CONCURRENT)
    for _ in range(5):
        host.dispatch(encoder, "produce", [x])
        encoder.memoryBarrierWithResources_count_([o, x], 2)
        host.dispatch(encoder, "consume", [o, x])
        encoder.memoryBarrierWithScope_(BUFFERS)
    encoder.endEncoding()
    host.commit(commands)


def fence_through_a_third_encoder(host):
    x, o, other = host.buffer(options=UNTRACKED), host.buffer(), host.buffer()
    one, two, commands = host.device.newFence(), host.device.newFence(), host.commands()
    for name, buffers, wait, update in (
        ("produce", [x], None, one),
        ("produce", [other], one, two),
        ("consume", [o, x], two, None),
    ):
        encoder = commands.computeCommandEncoder()
        if wait is not None:
            encoder.waitForFence_(wait)
        host.dispatch(encoder, name, buffers)
        if update is not None:
            encoder.updateFence_(update)
        encoder.endEncoding()
    host.commit(commands)


def memory_used_again(host):
    """Buffers that go and come at the same address, on changing queues."""
    for _ in range(12):
        commands = host.commands(host.device.newCommandQueue())
        x = host.buffer(options=UNTRACKED)
        host.run_one(commands, "produce", [x])
        host.commit(commands)
        assert host.findings() == []
        del x, commands
        host.committed.clear()


ORDERED = (
    serial_encoder,
    tracked_encoders,
    command_buffers_of_one_queue,
    untracked_and_the_host_waits,
    untracked_and_an_event_on_one_queue,
    shared_event_with_the_host,
    events_back_and_forth,
    readers_on_two_queues,
    halves_of_a_buffer,
    several_barriers,
    fence_through_a_third_encoder,
    memory_used_again,
)


@pytest.mark.parametrize("program", ORDERED, ids=lambda program: program.__name__)
def test_ordered_programs_are_clean(program):
    for seed in (1, 4):
        with softmetal.checking(*ALL_MODES, seed=seed) as check:
            host = Host(HEAD + PAIR)
            program(host)
            assert host.findings() == []
            assert check.findings == []


def test_a_race_is_found_after_hundreds_of_dispatches():
    """The shadow forgets the oldest dispatches, never the latest."""
    with softmetal.checking("race"):
        host = Host(HEAD + PAIR)
        x, o = host.buffer(), host.buffer()
        for count in (253, 254, 255, 256, 257, 300, 600):
            commands = host.commands()
            encoder = commands.computeCommandEncoder()
            for _ in range(count):
                host.dispatch(encoder, "produce", [o])
            encoder.endEncoding()
            host.commit(commands)
            assert host.findings() == []
            commands = host.commands()
            encoder = commands.computeCommandEncoderWithDispatchType_(CONCURRENT)
            host.dispatch(encoder, "produce", [x])
            host.dispatch(encoder, "consume", [o, x])
            encoder.endEncoding()
            host.commit(commands)
            assert host.findings(), count
            host.committed.clear()
