"""The command queue and events: order, laziness, errors, forks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from device_memory import DISCRETE, shares_memory, survives_faults

from lbrx.errors import DeviceError
from lbrx.metal.binding import Metal
from lbrx.metal.command_queue import CommandQueue
from lbrx.metal.commands import Encoded
from lbrx.metal.context import Context
from lbrx.metal.outcome import Outcome
from lbrx.metal.staging import CHUNK

GROUP = (64, 1, 1)
ADD = """
#include <metal_stdlib>
using namespace metal;
kernel void add_one(device uint* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += 1; }
kernel void reach_far(device uint* x [[buffer(0)]], constant ulong& far [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) { x[far + i] = 1; }
kernel void sum(device const uint* x [[buffer(0)]], device uint* out [[buffer(1)]],
                threadgroup uint* scratch [[threadgroup(0)]], uint i [[thread_position_in_threadgroup]]) {
  scratch[i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 0) { uint s = 0; for (uint j = 0; j < 64; j++) s += scratch[j]; out[0] = s; }
}
"""


def kernel(gpu, name):
    return gpu.shaders.pipeline("queue_tests", name, source=ADD)


def crash(gpu):
    buffer = gpu.upload(np.zeros(16, np.uint32))
    far = np.uint64(1 << 45).tobytes()
    gpu.queue.dispatch(kernel(gpu, "reach_far"), [buffer, far], (1, 1, 1), (1, 1, 1))
    return buffer


@pytest.mark.metal
@pytest.mark.parametrize("operations", [1, 3, 50])
@pytest.mark.parametrize("max_bytes", [1, 1 << 30])
def test_work_runs_in_order(gpu, operations, max_bytes):
    queue = CommandQueue(gpu.device.newCommandQueue(), operations, max_bytes)
    buffer = gpu.upload(np.zeros(1000, np.uint32))
    gpu.queue.wait()  # another queue
    tickets = [
        queue.dispatch(kernel(gpu, "add_one"), [buffer], (1000, 1, 1), GROUP) for _ in range(100)
    ]
    assert tickets == sorted(tickets)
    assert len(set(tickets)) == (100 if max_bytes == 1 else -(-100 // operations))
    queue.wait()
    assert (buffer.array(np.uint32) == 100).all()
    assert queue.completed() == tickets[-1]


@pytest.mark.metal
def test_nothing_waits_until_it_is_read(gpu, gate):
    buffer = gpu.upload(np.zeros(4, np.uint32))
    ticket = gpu.queue.dispatch(kernel(gpu, "add_one"), [buffer], (4, 1, 1), GROUP)
    gpu.queue.commit()
    time.sleep(0.02)
    assert gpu.queue.completed() < ticket
    gate.release()
    assert buffer.array(np.uint32).tolist() == [1] * 4


@pytest.mark.metal
@shares_memory
def test_freed_memory_serves_again_in_order(gpu, gate):
    """Memory that the device still uses may be written by its next kernel, not by the host."""
    first = gpu.upload(np.zeros(1000, np.uint32))
    gpu.queue.dispatch(kernel(gpu, "add_one"), [first], (1000, 1, 1), GROUP)
    gpu.queue.commit()
    address = first.address
    del first
    other = gpu.upload(np.ones(1000, np.uint32))
    assert other.address != address
    second = gpu.buffer(3600)
    assert second.address == address
    gate.release()
    assert second.array(np.uint32).tolist() == [1] * 900


@pytest.mark.metal
def test_threadgroup_memory_bytes_and_foreign_work(gpu):
    source, out = gpu.upload(np.arange(64, dtype=np.uint32)), gpu.upload(np.zeros(2, np.uint32))
    gpu.queue.dispatch(
        kernel(gpu, "sum"), [source, out], GROUP, GROUP, threadgroup_memory=[256], variant="group"
    )

    def copy(commands, _):
        encoder = commands.blitCommandEncoder()
        encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
            out.handle, out.offset, out.handle, out.offset + 4, 4
        )
        encoder.endEncoding()

    gpu.queue.run(Encoded("blit", (out,), copy, variant="copy"))
    assert out.array(np.uint32).tolist() == [2016, 2016]
    assert gpu.queue.counts() == {"sum:group": 1, "blit:copy": 1}


# ---- errors ----


@survives_faults
def test_a_failure_names_its_kernel_at_the_next_wait(gpu):
    fine = gpu.upload(np.zeros(4, np.uint32))
    gpu.queue.dispatch(kernel(gpu, "add_one"), [fine], (4, 1, 1), GROUP)
    broken = crash(gpu)
    gpu.queue.commit()
    with pytest.raises(DeviceError, match="kernel reach_far failed"):
        gpu.queue.wait()
    gpu.queue.wait()
    with pytest.raises(DeviceError, match="reach_far"):  # every wait for its result fails
        broken.array()
    address = broken.address
    del broken
    again = gpu.upload(np.ones(16, np.uint32))  # the block works again for new data
    assert again.address == address
    assert again.array(np.uint32).tolist() == [1] * 16
    later = gpu.upload(np.zeros(4, np.uint32))
    gpu.queue.dispatch(kernel(gpu, "add_one"), [later], (4, 1, 1), GROUP)
    assert later.array(np.uint32).tolist() == [1] * 4


@survives_faults
def test_a_failure_reaches_a_wait_for_something_else(gpu):
    crash(gpu)
    gpu.queue.commit()
    other = gpu.upload(np.zeros(4, np.uint32))
    gpu.queue.dispatch(kernel(gpu, "add_one"), [other], (4, 1, 1), GROUP)
    with pytest.raises(DeviceError, match="reach_far"):
        other.array()
    assert other.array(np.uint32).tolist() == [1] * 4


@survives_faults
def test_an_event_after_a_failure_does_not_hang(gpu):
    crash(gpu)
    event = gpu.event()
    event.record()
    with pytest.raises(DeviceError, match="reach_far"):
        event.wait()


@pytest.mark.metal
def test_what_a_check_finds_is_raised_by_the_next_wait(gpu, gate):
    """A check runs after its kernel has ended, and sees what it wrote."""
    seen = []

    def check():
        seen.append(buffer.unsynchronised().view(np.uint32).tolist())
        return IndexError("of the check") if len(seen) == 1 else None

    buffer = gpu.host_buffer(8)
    buffer.unsynchronised()[:] = 0
    for _ in range(2):
        gpu.queue.dispatch(kernel(gpu, "add_one"), [buffer], (2, 1, 1), GROUP, check=check)
        gpu.queue.commit()
    assert not seen
    other = gpu.upload(np.zeros(4, np.uint32))
    gate.release()
    with pytest.raises(IndexError, match="of the check"):
        gpu.queue.wait()
    assert seen == [[2, 2], [2, 2]]
    assert buffer.array(np.uint32).tolist() == [2, 2]  # raised once
    later = gpu.queue.dispatch(kernel(gpu, "add_one"), [other], (4, 1, 1), GROUP, check=check)
    gpu.queue.wait(later)
    assert len(seen) == 3


def test_wrong_calls_name_the_kernel(gpu):
    with pytest.raises(DeviceError, match=r"2048 threads exceeds 1024 for kernel add_one"):
        gpu.queue.dispatch(kernel(gpu, "add_one"), [gpu.buffer(4)], (1, 1, 1), (2048, 1, 1))


@survives_faults
def test_a_missing_argument_names_the_kernel(gpu):
    with pytest.raises(DeviceError, match=r"^add_one: "):
        gpu.queue.dispatch(kernel(gpu, "add_one"), [], (1, 1, 1), (1, 1, 1))
    buffer = gpu.upload(np.zeros(1, np.uint32))
    gpu.queue.dispatch(kernel(gpu, "add_one"), [buffer], (1, 1, 1), (1, 1, 1))
    assert buffer.array(np.uint32)[0] == 1


# ---- whose errors they are ----


def in_thread(work):
    """Run a function on a new thread; returns what it returned or raised."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        return future.exception() or future.result()


class Worker:
    """A thread that stays alive between calls."""

    def __init__(self):
        self.pool = ThreadPoolExecutor(1)

    def __call__(self, work):
        future = self.pool.submit(work)
        return future.exception() or future.result()


@pytest.fixture
def worker():
    made = Worker()
    yield made
    made.pool.shutdown()


def add(gpu, buffer, count=4):
    return gpu.queue.dispatch(kernel(gpu, "add_one"), [buffer], (count, 1, 1), GROUP)


@survives_faults
def test_a_failure_is_not_raised_on_another_thread(gpu, worker):
    """Neither by its waits nor by its results, even if both threads encode in turns."""
    mine = gpu.upload(np.zeros(4, np.uint32))
    add(gpu, mine)
    worker(lambda: crash(gpu))
    add(gpu, mine)
    gpu.queue.wait()
    assert mine.array(np.uint32).tolist() == [2] * 4
    assert "reach_far" in str(worker(gpu.queue.wait))
    assert worker(gpu.queue.wait) is None


@survives_faults
def test_a_result_of_failed_work_fails_on_every_thread(gpu, worker):
    broken = worker(lambda: crash(gpu))
    for _ in range(2):
        with pytest.raises(DeviceError, match="reach_far"):
            broken.array()
    assert worker(gpu.queue.wait) is None  # reported already, by the result


@survives_faults
def test_a_reported_failure_does_not_slow_later_waits(gpu, monkeypatch):
    crash(gpu)
    with pytest.raises(DeviceError, match="reach_far"):
        gpu.queue.wait()
    later = gpu.upload(np.zeros(4, np.uint32))
    add(gpu, later)
    later.wait()
    drained = []
    monkeypatch.setattr(gpu.queue, "drain", lambda ticket=None: drained.append(ticket))
    later.wait()
    assert not drained


@survives_faults
@shares_memory
def test_an_operand_of_failed_work_is_still_right(gpu):
    operand = gpu.upload(np.arange(64, dtype=np.uint32))
    out, far = gpu.upload(np.zeros(1, np.uint32)), np.uint64(1 << 45).tobytes()
    pipeline = kernel(gpu, "sum")
    gpu.queue.dispatch(pipeline, [operand, out], GROUP, GROUP, threadgroup_memory=[256])
    gpu.queue.dispatch(kernel(gpu, "reach_far"), [out, far], (1, 1, 1), (1, 1, 1))
    with pytest.raises(DeviceError, match="reach_far"):
        out.array()
    assert operand.array(np.uint32).tolist() == list(range(64))


@survives_faults
@pytest.mark.parametrize("known", [False, True])
def test_what_is_computed_from_a_failed_result_fails(gpu, gate, known):
    """Whether the failure is known when the dependent kernel is encoded or not."""
    broken = gpu.upload(np.zeros(64, np.uint32))
    out, other = gpu.upload(np.zeros(1, np.uint32)), gpu.upload(np.zeros(4, np.uint32))
    far = np.uint64(1 << 45).tobytes()
    gpu.queue.dispatch(kernel(gpu, "reach_far"), [broken, far], (1, 1, 1), (1, 1, 1))
    gpu.queue.commit()
    if known:
        gate.release()
        with pytest.raises(DeviceError, match="reach_far"):
            gpu.queue.wait()

    def dependent():
        pipeline = kernel(gpu, "sum")
        gpu.queue.dispatch(pipeline, [broken, out], GROUP, GROUP, threadgroup_memory=[256])

    if known:
        with pytest.raises(DeviceError, match="reach_far"):
            dependent()
    else:
        dependent()
        gpu.queue.commit()
        gate.release()
        with pytest.raises(DeviceError, match="reach_far"):
            out.array()
    with pytest.raises(DeviceError, match="reach_far"):
        broken.array()
    add(gpu, other)
    assert other.array(np.uint32).tolist() == [1] * 4


@survives_faults
def test_memory_that_is_written_again_works_again(gpu):
    broken = crash(gpu)
    with pytest.raises(DeviceError, match="reach_far"):
        broken.array()
    gpu.write(broken, np.zeros(16, np.uint32))
    add(gpu, broken, 16)
    assert broken.array(np.uint32).tolist() == [1] * 16


@pytest.mark.metal
def test_what_a_check_finds_is_not_raised_on_another_thread(gpu, worker):
    mine, theirs = (gpu.upload(np.zeros(2, np.uint32)) for _ in range(2))

    def checked():
        gpu.queue.dispatch(
            kernel(gpu, "add_one"), [theirs], (2, 1, 1), GROUP, check=lambda: IndexError("found")
        )

    worker(checked)
    add(gpu, mine, 2)
    gpu.queue.wait()
    assert mine.array(np.uint32).tolist() == [1, 1]
    assert str(worker(gpu.queue.wait)) == "found"
    worker(checked)
    with pytest.raises(IndexError, match="found"):  # or by the first who reads the result
        theirs.array()
    assert worker(gpu.queue.wait) is None
    assert theirs.array(np.uint32).tolist() == [2, 2]


@survives_faults
@pytest.mark.parametrize("apart", [False, True])
def test_an_event_of_another_thread_tells_that_its_work_failed(gpu, worker, apart):
    event = gpu.event()

    def work():
        crash(gpu)
        if apart:
            gpu.queue.commit()
        event.record()

    worker(work)
    with pytest.raises(DeviceError, match="reach_far"):
        event.wait()
    assert worker(gpu.queue.wait) is None


@survives_faults
def test_a_failure_of_a_thread_that_ended_is_logged(gpu, caplog):
    assert in_thread(lambda: crash(gpu) and None) is None
    gpu.queue.wait()
    gc.collect()
    assert "work failed that was not waited for: kernel reach_far failed" in caplog.text


# ---- events ----


@pytest.mark.metal
def test_an_event_marks_a_place(gpu, gate):
    buffer = gpu.upload(np.zeros(4, np.uint32))
    event = gpu.event()
    assert event.query()
    gpu.queue.dispatch(kernel(gpu, "add_one"), [buffer], (4, 1, 1), GROUP)
    event.record()
    assert not event.query()
    assert event.wait(timeout=0.01) is False
    gate.release()
    assert event.wait(timeout=30) is True
    assert event.query()
    assert buffer.array(np.uint32).tolist() == [1] * 4
    event.record()
    assert event.wait()


@pytest.mark.metal
def test_another_thread_lets_the_device_go(gpu, gate):
    buffer = gpu.upload(np.zeros(4, np.uint32))
    gpu.queue.dispatch(kernel(gpu, "add_one"), [buffer], (4, 1, 1), GROUP)
    timer = threading.Timer(0.05, gate.release)
    timer.start()
    assert buffer.array(np.uint32).tolist() == [1] * 4
    timer.join()


# ---- processes ----

FORK = """
import os, sys
import numpy as np
from lbrx.errors import DeviceError
from lbrx.metal import context, stats

gpu = context()
buffer = gpu.upload(np.ones(16, np.uint8))
pipeline = gpu.shaders.pipeline("random", "random_bernoulli_bool")
never = [buffer, bytes(16), bytes(8)]
gpu.queue.dispatch(pipeline, never, (4, 1, 1), (4, 1, 1))
child = os.fork()
if child == 0:
    for use in (context, buffer.array, gpu.queue.commit,
                lambda: gpu.queue.dispatch(pipeline, never, (4, 1, 1), (4, 1, 1))):
        try:
            use()
        except DeviceError as problem:
            assert "spawn" in str(problem), problem
        else:
            sys.exit(f"{use} was not refused")
    stats()
    del buffer, never
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert buffer.array().tolist() == [0] * 16
assert context() is gpu
gpu.close()
assert context() is not gpu
print("parent works")
"""


def run(program, **variables):
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **variables},
    )


@survives_faults
def test_a_forked_child_is_told(lbrx_cache):
    done = run(FORK, LBRX_CACHE=lbrx_cache)
    assert (done.returncode, done.stdout) == (0, "parent works\n"), done.stderr


LEFT = """
import numpy as np
from lbrx.metal import context
gpu = context()
source = "kernel void reach(device int* x, constant ulong& far) { x[far] = 1; }"
pipeline = gpu.shaders.pipeline("left", "reach", source=source)
gpu.queue.dispatch(pipeline, [gpu.buffer(4), np.uint64(1 << 45).tobytes()], (1, 1, 1), (1, 1, 1))
"""


@survives_faults
def test_failed_work_without_a_wait_is_logged_at_exit(lbrx_cache):
    done = run(LEFT, LBRX_CACHE=lbrx_cache)
    assert done.returncode == 0
    assert "kernel reach failed" in done.stderr


def test_threads_get_one_context():
    program = """
import threading
from lbrx.metal import context
found = []
threads = [threading.Thread(target=lambda: found.append(context())) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print(len(set(map(id, found))))
"""
    done = run(program)
    assert done.stdout == "1\n", done.stderr


def test_the_binding_is_where_metal_is_named():
    assert Metal.MTLCreateSystemDefaultDevice() is not None


@pytest.fixture
def private(monkeypatch, lbrx_cache):
    """A device whose memory the host does not see."""
    monkeypatch.setenv("LBRX_CACHE", lbrx_cache)
    if not DISCRETE:
        monkeypatch.setenv("SOFTMETAL_DEVICE", "discrete")
    context = Context()
    yield context
    context.close()


@pytest.mark.metal
@pytest.mark.parametrize("encoded", [True, False], ids=["open", "committed"])
def test_a_read_joins_the_command_buffer_of_the_work(private, worker, encoded):
    buffer = private.upload(np.zeros(4, np.uint32))
    ticket = add(private, buffer)
    if not encoded:
        private.queue.commit()
    assert buffer.array(np.uint32).tolist() == [1] * 4
    assert private.queue.commit() == ticket + (not encoded)
    add(private, buffer)  # another thread's command buffer is open when this one reads
    assert worker(lambda: buffer.array(np.uint32).tolist()) == [2] * 4


@survives_faults
@pytest.mark.parametrize("nbytes", [64, CHUNK + 64])
def test_a_read_of_failed_work_is_one_failure(private, nbytes):
    """The copy fails with the work, and neither leaves an error for the next operation."""
    broken, other = (private.upload(np.zeros(nbytes // 4, np.uint32)) for _ in range(2))
    far = np.uint64(1 << 45).tobytes()
    private.queue.dispatch(kernel(private, "reach_far"), [broken, far], (1, 1, 1), (1, 1, 1))
    for _ in range(2):
        with pytest.raises(DeviceError, match="reach_far"):
            broken.array()
    private.queue.wait()
    add(private, other)
    assert other.array(np.uint32)[:5].tolist() == [1] * 4 + [0]


def test_work_on_failed_operands_has_their_error():
    """Also where the device refuses it for another reason, as a GPU does after a fault."""
    cause, dependent = Outcome(), Outcome()
    dependent.sources.add(cause)
    cause.end(DeviceError("the cause"), [])
    dependent.end(DeviceError("the GPU is lost"), [])
    assert not dependent.unreported
    with pytest.raises(DeviceError, match="the cause"):
        dependent.check()
    assert not cause.unreported
