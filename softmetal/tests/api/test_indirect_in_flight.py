"""Indirect command buffers that are encoded again while a command buffer executes them."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from metal_programs import Program, read
from test_api_icb import encode, make


@pytest.fixture(scope="module")
def program(metal, device):
    return Program(metal, device)


def start(program, commands, event=None, queue=None):
    """Commit the execution of all slots; it begins when the event, if there is one, is at 1."""
    buffer = (queue or program.queue).commandBuffer()
    if event is not None:
        buffer.encodeWaitForEvent_value_(event, 1)
    encoder = buffer.computeCommandEncoder()
    encoder.executeCommandsInBuffer_withRange_(commands, (0, commands.size()))
    encoder.endEncoding()
    buffer.commit()
    return buffer


def finish(*buffers):
    for buffer in buffers:
        buffer.waitUntilCompleted()
        assert buffer.error() is None, buffer.error()


def test_work_in_flight_executes_what_was_committed(program):
    add, times = (program.pipeline(n, indirect=True) for n in ("add_one", "times"))
    x, y, three = (program.buffer(np.array(v, "i4")) for v in ([1] * 8, [5] * 8, [3]))
    event, commands = program.device.newSharedEvent(), make(program, 2)
    encode(program, commands, 0, add, [x], 8)
    encode(program, commands, 1, add, [x], 8)
    first = start(program, commands, event)
    encode(program, commands, 1, times, [y, three], 4)
    second = start(program, commands)
    commands.indirectComputeCommandAtIndex_(0).reset()
    third = start(program, commands)
    event.setSignaledValue_(1)
    finish(first, second, third)
    np.testing.assert_array_equal(read(x), [1 + 2 + 1] * 8)
    np.testing.assert_array_equal(read(y), [5 * 3 * 3] * 4 + [5] * 4)


CHANGES = {
    "bound again": lambda program, commands, other: encode(program, commands, 0, None, [other], 8),
    "reset": lambda program, commands, other: commands.resetWithRange_((0, 1)),
    "pipeline": lambda program, commands, other: encode(
        program, commands, 0, program.pipeline("small", indirect=True), [other], 8
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_work_in_flight_keeps_what_it_uses(program, change):
    """Buffers and pipelines that a slot no longer names live until the work is done."""
    x, other = (program.buffer(np.zeros(8, "i4")) for _ in range(2))
    add, memory = program.pipeline("add_one", indirect=True), x._memory
    address, event, commands = memory.address, program.device.newSharedEvent(), make(program, 1)
    encode(program, commands, 0, add, [x], 8)
    first = start(program, commands, event)
    kept = weakref.ref(memory)
    handle, executor = add._kernel, program.device._executor
    CHANGES[change](program, commands, other)
    del x, add, memory
    gc.collect()
    assert kept() is not None
    assert kept().address == address
    assert handle not in executor._kernels._dropped
    event.setSignaledValue_(1)
    finish(first)
    del first
    gc.collect()
    assert kept() is None


def test_blits_that_change_commands_leave_encoded_work_as_it_was(program):
    x, add = program.buffer(np.zeros(8, "i4")), program.pipeline("add_one", indirect=True)
    kept, commands = weakref.ref(x._memory), make(program, 1)
    encode(program, commands, 0, add, [x], 8)
    buffer = program.queue.commandBuffer()
    encoder = buffer.computeCommandEncoder()
    encoder.executeCommandsInBuffer_withRange_(commands, (0, 1))
    encoder.endEncoding()
    blit = buffer.blitCommandEncoder()
    blit.resetCommandsInBuffer_withRange_(commands, (0, 1))
    blit.endEncoding()
    del x
    gc.collect()
    buffer.commit()
    assert kept() is not None
    finish(buffer)


def test_re_encoding_in_a_loop_while_other_threads_execute(program):
    """Each execution adds one to a whole buffer or multiplies a whole other one, never a mixture."""
    add, times = (program.pipeline(n, indirect=True) for n in ("add_one", "times"))
    sums, products = (program.buffer(np.full(64, v, "i4")) for v in (0, 1))
    two = program.buffer(np.array([-1], "i4"))
    commands, lock, started = make(program, 1), threading.Lock(), []

    def change(number):
        queue = program.device.newCommandQueue()
        for turn in range(100):
            with lock:  # the order of calls is the program's; that of the work is not
                if (turn + number) % 2:
                    encode(program, commands, 0, times, [products, two], 64)
                else:
                    encode(program, commands, 0, add, [sums], 64)
                started.append(start(program, commands, queue=queue if number else None))

    threads = [threading.Thread(target=change, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finish(*started)
    assert len(set(read(sums).tolist())) == 1
    assert set(read(products).tolist()) <= {1, -1}
