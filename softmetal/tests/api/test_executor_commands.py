"""The commands of the CPU executor other than plain dispatches, its events, logs and errors."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from executor_device import Device, addresses
from executor_kernels import AXPY, COUNT_FIBERS, COUNT_FLAT
from seeds import generator

from softmetal.errors import ExecutionError
from softmetal.types import (
    Copy,
    Dispatch,
    Execute,
    Fill,
    Gemm,
    IndirectCommands,
    LogMessage,
    Signal,
    Timestamp,
    Wait,
)

ONE = (1, 1, 1)


@pytest.fixture(scope="module", params=[1, 3], ids="threads={}".format)
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Device:
    return Device(request.param, tmp_path_factory.mktemp("kernels"))


# ---- copies and fills -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 100, 5_000_001])
def test_copy_and_fill(device: Device, size: int) -> None:
    source = device.array(np.arange(size) % 251, np.uint8)
    target = device.zeros(size + 2, np.uint8)
    device.run(
        Fill(target.ctypes.data, size + 2, 0xAB),
        Copy(source.ctypes.data, target.ctypes.data + 1, size),
    )
    assert target[0] == target[-1] == 0xAB
    assert np.array_equal(target[1:-1], source)


@pytest.mark.parametrize("shift", [-3, 3])
def test_overlapping_copy(device: Device, shift: int) -> None:
    size = 3_000_000
    block = device.array(np.arange(size + 6) % 253, np.uint8)
    expected = block.copy()
    expected[3 + shift : 3 + shift + size] = block[3 : 3 + size]
    base = block.ctypes.data + 3
    device.run(Copy(base, base + shift, size))
    assert np.array_equal(block, expected)


# ---- dispatches -----------------------------------------------------------------------------


def test_indirect_dispatch_counts_threadgroups_when_it_runs(device: Device) -> None:
    out = device.zeros((3, 2, 40), np.uint32)
    counts, late = device.zeros(3, np.uint32), device.array([5, 2, 3], np.uint32)
    device.run(
        Copy(late.ctypes.data, counts.ctypes.data, 12),
        Dispatch(
            device.kernel(COUNT_FIBERS),
            (0, 0, 0),
            (8, 1, 1),
            addresses(out),
            (),
            counts.ctypes.data,
        ),
    )
    assert np.all(out == 1)


def test_unbound_buffers_are_null(device: Device) -> None:
    source = """
FLAT {
  BUFFER(sm_u64, out, 1);
  out[0] = launch->buffers[0] == 0;
  for (int i = 2; i < SM_BUFFERS; i++) out[0] += launch->buffers[i] == 0;
}"""
    out = device.zeros(1, np.uint64)
    device.run(Dispatch(device.kernel(source), ONE, ONE, (0, out.ctypes.data)))
    assert out[0] == 30


# ---- indirect command buffers ---------------------------------------------------------------

APPEND = """
FLAT {
  BUFFER(sm_u32, log, 0); BUFFER(sm_u32, value, 1);
  log[++log[0]] = *value;
}"""


class Recorder:
    """Slots that append numbers to a list in device memory."""

    def __init__(self, device: Device, count: int) -> None:
        self.device = device
        self.log = device.zeros(64, np.uint32)
        self.values = device.array(np.arange(100), np.uint32)
        self.kernel = device.kernel(APPEND)
        self.commands = IndirectCommands([self.slot(i) for i in range(count)])

    def slot(self, value: int, inherit: str = "") -> Dispatch:
        buffers = () if "buffers" in inherit else self.bind(value)
        return Dispatch(0 if "kernel" in inherit else self.kernel, ONE, ONE, buffers)

    def bind(self, value: int) -> tuple[int, int]:
        return self.log.ctypes.data, self.values.ctypes.data + 4 * value

    def run(self, start: int, count: int, value: int = 99, range_address: int = 0) -> list[int]:
        self.log[0] = 0
        inherited = Dispatch(self.kernel, ONE, ONE, self.bind(value))
        self.device.run(Execute(self.commands, start, count, inherited, range_address))
        return self.log[1 : self.log[0] + 1].tolist()


def test_indirect_commands_run_by_range(device: Device) -> None:
    recorder = Recorder(device, 10)
    assert recorder.run(0, 10) == list(range(10))
    assert recorder.run(3, 4) == [3, 4, 5, 6]
    assert recorder.run(10, 0) == []


def test_only_dirty_slots_are_encoded_again(device: Device) -> None:
    recorder = Recorder(device, 4)
    recorder.run(0, 4)
    recorder.commands.slots[1] = recorder.slot(50)
    recorder.commands.slots[2] = None
    assert recorder.run(0, 4) == [0, 1, 2, 3]
    recorder.commands.dirty.update({1, 2})
    assert recorder.run(0, 4) == [0, 50, 3]
    assert not recorder.commands.dirty


@pytest.mark.parametrize("inherit", ["kernel", "buffers", "kernel buffers"])
def test_slots_inherit(device: Device, inherit: str) -> None:
    recorder = Recorder(device, 2)
    recorder.commands.slots[1] = recorder.slot(7, inherit)
    assert recorder.run(0, 2, value=42) == [0, 42 if "buffers" in inherit else 7]


def test_range_from_memory(device: Device) -> None:
    recorder = Recorder(device, 10)
    where = device.array([4, 2], np.uint32)
    assert recorder.run(0, 10, range_address=where.ctypes.data) == [4, 5]


def test_range_beyond_the_commands(device: Device) -> None:
    recorder = Recorder(device, 3)
    inherited = Dispatch(0, ONE, ONE, ())
    error = device.outcome([Execute(recorder.commands, 2, 2, inherited)]).error
    assert error == "commands 2 to 4 of an indirect command buffer that holds 3"


def test_encoded_slots_go_with_their_commands(device: Device) -> None:
    recorder = Recorder(device, 3)
    recorder.run(0, 3)
    dead = weakref.ref(recorder.commands)
    del recorder
    gc.collect()
    assert dead() is None


def test_forgotten_submissions_still_run(device: Device) -> None:
    recorder = Recorder(device, 5)
    event = device.executor.new_event()
    inherited = Dispatch(0, ONE, ONE, ())
    commands = [Wait(event, 1), Execute(recorder.commands, 0, 5, inherited), Signal(event, 2)]
    device.executor.forget(device.executor.submit(device.queue, commands))
    del commands
    recorder.commands = IndirectCommands([])
    gc.collect()
    device.executor.signal_event(event, 1)
    assert device.executor.wait_event(event, 2, None)
    assert recorder.log[:6].tolist() == [5, 0, 1, 2, 3, 4]
    device.run()
    assert not device.executor._tickets._abandoned


# ---- events ---------------------------------------------------------------------------------


def test_queues_wait_for_each_other(device: Device) -> None:
    executor = device.executor
    queues = [executor.new_queue() for _ in range(2)]
    events = [executor.new_event() for _ in range(2)]
    recorder = Recorder(device, 0)
    tickets = []
    for i, queue in enumerate(queues):
        commands = []
        for step in range(10):  # queue 0 appends even numbers, queue 1 odd ones
            commands.append(Wait(events[1 - i], step + i))
            commands.append(recorder.slot(2 * step + i))
            commands.append(Signal(events[i], step + 1))
        tickets.append(executor.submit(queue, commands))
    for ticket in tickets:
        assert executor.wait(ticket, None)
    assert recorder.log[:21].tolist() == [20, *range(20)]
    for queue in queues:
        executor.free_queue(queue)


def test_host_and_queue_wait_for_each_other(device: Device) -> None:
    executor = device.executor
    event = executor.new_event()
    assert executor.event_value(event) == 0
    assert not executor.wait_event(event, 1, 0.01)
    ticket = executor.submit(device.queue, [Wait(event, 5), Signal(event, 9)])
    assert executor.wait(ticket, 0.01) is None
    threading.Timer(0.02, executor.signal_event, (event, 5)).start()
    assert executor.wait_event(event, 9, None)
    assert executor.wait(ticket, None)
    assert executor.wait(ticket, 0)  # repeatable
    executor.signal_event(event, 3)
    assert executor.event_value(event) == 9
    executor.free_event(event)


def test_a_freed_queue_still_runs_what_it_has(device: Device) -> None:
    executor = device.executor
    queue, event = executor.new_queue(), executor.new_event()
    ticket = executor.submit(queue, [Wait(event, 1), Signal(event, 2)])
    executor.free_queue(queue)
    executor.signal_event(event, 1)
    assert executor.wait(ticket, None)
    assert executor.event_value(event) == 2


# ---- errors ---------------------------------------------------------------------------------


def test_an_error_stops_the_list_but_signals_are_sent(device: Device) -> None:
    event = device.executor.new_event()
    stamp = device.zeros(1, np.uint64)
    commands = [
        Dispatch(device.kernel(COUNT_FLAT), (2000, 1, 1), (32, 33, 1), ()),
        Timestamp(stamp.ctypes.data),
        Signal(event, 1),
    ]
    completion = device.outcome(commands)
    assert completion.error == "threadgroup of 32 x 33 x 1 threads exceeds 1024 threads"
    assert stamp[0] == 0
    assert device.executor.event_value(event) == 1
    device.run(Timestamp(stamp.ctypes.data))


def test_an_indirect_grid_that_is_too_large(device: Device) -> None:
    counts = device.array([1 << 31, 1, 1], np.uint32)
    command = Dispatch(device.kernel(COUNT_FLAT), ONE, (4, 1, 1), (), (), counts.ctypes.data)
    error = device.outcome([command]).error
    assert error is not None
    assert "2147483648 threadgroups of 4 threads" in error


def test_refused_before_they_run(device: Device) -> None:
    executor = device.executor
    kernel = device.kernel(COUNT_FLAT)
    bad = [
        Dispatch(kernel, (1 << 40, 1, 1), ONE, ()),
        Dispatch(kernel, ONE, ONE, (0,) * 32),
        Copy(-1, 0, 0),
    ]
    for command in bad:
        with pytest.raises(ExecutionError):
            executor.submit(device.queue, [command])
    with pytest.raises(ExecutionError, match="unknown"):
        executor.wait(12345, 0)
    with pytest.raises(ExecutionError, match="unknown"):
        executor.forget(12345)
    with pytest.raises(MemoryError, match="1152921504606846976 bytes"):
        executor.allocate(1 << 60)


def test_loading_what_is_not_a_kernel(device: Device) -> None:
    with pytest.raises(ExecutionError, match=r"softmetal_entry or softmetal_info is missing"):
        device.kernel("int nothing(void) { return 0; }")
    wrong = """
EXPORT const sm_info softmetal_info = {99, SM_FLAT, 0, 0};
EXPORT void softmetal_entry(void) {}"""
    with pytest.raises(ExecutionError, match="kernel ABI 99"):
        device.kernel(wrong)
    with pytest.raises(ExecutionError, match="no_such_function"):
        device.kernel("int no_such_function(void);" + AXPY.replace("*factor", "no_such_function()"))


def test_allocations_are_aligned_and_zeroed(device: Device) -> None:
    for length in (1, 16384, 16385, 3 << 20):
        address = device.executor.allocate(length)
        assert address % 16384 == 0
        device.executor.free(address, length)
        assert not device.zeros(length, np.uint8).any()


# ---- matrix products ------------------------------------------------------------------------

FLOATS = (np.float32, np.float16)


def expected_gemm(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, alpha: float, beta: float
) -> np.ndarray:
    product = alpha * np.matmul(a.astype(np.float64), b.astype(np.float64))
    return product + beta * c.astype(np.float64) if beta else product


@pytest.mark.parametrize("types", [(0, 0, 0), (1, 1, 1), (1, 1, 0), (0, 1, 0), (1, 0, 1)], ids=str)
@pytest.mark.parametrize("transpose", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize(
    ("shape", "batch", "alpha", "beta"),
    [
        ((1, 1, 1), 1, 1.0, 0.0),
        ((7, 5, 3), 1, -0.5, 2.0),
        ((1, 300, 64), 1, 1.0, 0.0),
        ((300, 1, 64), 1, 1.0, 1.0),
        ((33, 65, 17), 4, 1.0, 0.5),
        ((300, 210, 40), 1, 1.0, 0.0),
        ((15, 33, 1030), 2, 1.0, 0.0),
    ],
    ids=str,
)
def test_gemm(
    device: Device,
    types: tuple[int, int, int],
    transpose: tuple[int, int],
    shape: tuple[int, int, int],
    batch: int,
    alpha: float,
    beta: float,
) -> None:
    check_gemm(device, types, transpose, shape, batch, alpha, beta)


@pytest.mark.full
@pytest.mark.parametrize(
    ("shape", "batch", "transpose"),
    [((50, 40, 300_000), 1, (0, 1)), ((3, 60, 120_000), 4, (1, 0))],
    ids=str,
)
def test_gemm_that_is_packed_in_parts(
    device: Device, shape: tuple[int, int, int], batch: int, transpose: tuple[int, int]
) -> None:
    check_gemm(device, (1, 1, 0), transpose, shape, batch, 1.0, 0.0)


def check_gemm(
    device: Device,
    types: tuple[int, int, int],
    transpose: tuple[int, int],
    shape: tuple[int, int, int],
    batch: int,
    alpha: float,
    beta: float,
) -> None:
    m, n, k = shape
    random = generator(7)
    pad = (2, 1, 3)  # rows are longer than the matrices
    sides = [(k, m) if transpose[0] else (m, k), (n, k) if transpose[1] else (k, n), (m, n)]
    full = [
        device.array(random.uniform(-1, 1, (batch, rows, columns + extra)), FLOATS[kind])
        for (rows, columns), extra, kind in zip(sides, pad, types, strict=True)
    ]
    a, b, c = (array[..., : side[1]] for array, side in zip(full, sides, strict=True))
    if not beta:
        c[...] = np.nan  # must not be read
    padding = full[2][..., n:].copy()
    expected = expected_gemm(
        a.swapaxes(1, 2) if transpose[0] else a,
        b.swapaxes(1, 2) if transpose[1] else b,
        c,
        alpha,
        beta,
    )
    rows = [array.strides[1] // array.itemsize for array in full]
    strides = [array.strides[0] for array in full]
    flags = (bool(transpose[0]), bool(transpose[1]))
    device.run(
        Gemm(*addresses(*full), m, n, k, *rows, *flags, alpha, beta, *types, batch, *strides)
    )
    tolerance = 2e-3 if types[2] else 1e-5
    np.testing.assert_allclose(c, expected, rtol=tolerance, atol=tolerance * np.sqrt(k))
    assert np.array_equal(full[2][..., n:], padding)


def test_gemm_of_nothing(device: Device) -> None:
    c = device.array([[3.0, 4.0]], np.float32)
    address = c.ctypes.data
    sizes = [(0, 2, 1), (1, 0, 1)]
    for m, n, k in sizes:
        device.run(Gemm(0, 0, address, m, n, k, 1, 2, 2, False, False, 1.0, 0.0, 0, 0, 0))
    assert c.tolist() == [[3.0, 4.0]]
    device.run(Gemm(address, address, address, 1, 2, 0, 1, 2, 2, False, False, 1.0, 2.0, 0, 0, 0))
    assert c.tolist() == [[6.0, 8.0]]


# ---- printing -------------------------------------------------------------------------------

PRINT = """
FLAT {
  const sm_u8 kinds[] = {%s};
  sm_u64 values[] = {%s};
  softmetal_log("sub", "cat", 2, "%s", kinds, values, sizeof kinds - 1);
}"""


def bits(value: object) -> tuple[str, str]:
    """C texts for the kind and the bits of one argument."""
    if isinstance(value, float):
        return "'f'", f"{np.float64(value).view(np.uint64)}ull"
    if isinstance(value, str):
        return "'s'", f'(sm_u64)"{value}"'
    assert isinstance(value, int)
    return ("'i'" if value < 0 else "'u'"), f"{value % 2**64}ull"


@pytest.mark.parametrize(
    ("template", "arguments", "text"),
    [
        ("plain, 100%%", (), "plain, 100%"),
        ("%d %i %u", (-5, 7, 8), "-5 7 8"),
        ("%5d|%-5d|%05d|%+d", (1, 2, 3, 4), "    1|2    |00003|+4"),
        ("%x %X %#x %o", (255, 255, 255, 8), "ff FF 0xff 10"),
        ("%x %lx", (-1, -1), "ffffffff ffffffffffffffff"),
        ("%ld %lld %hd %hhd %hlu", (-1, -2, 3, 4, 5), "-1 -2 3 4 5"),
        ("%f %.2f %8.3f %e %g", (1.5, 2.0, 3.14159, 1e10, 0.25), None),
        ("%a %F %G", (0.5, 1.0, 1e-9), "0x1p-1 1.000000 1E-09"),
        ("%*d|%.*f", (6, 42, 1, 2.25), "    42|2.2"),
        ("%c%c", (72, 105), "Hi"),
        ("%s|%8s|%.2s", ("abc", "de", "fgh"), "abc|      de|fg"),
        ("%p", (4096,), "0x1000"),
        ("%v4hld", (1, 2, 3, 4), "1,2,3,4"),
        ("%d", (2.75,), "2"),
        ("%f", (3,), "3.000000"),
        ("%d %d", (1,), "1 (missing)"),
        ("%y and %", (1,), "%y and %"),
    ],
)
def test_printed_formats(device: Device, template: str, arguments: tuple, text: str | None) -> None:
    parts = [bits(argument) for argument in arguments]
    kinds = ",".join([*(kind for kind, _ in parts), "0"])
    values = ",".join([*(value for _, value in parts), "0"])
    source = PRINT.replace("%s", "\0").replace("\0", kinds, 1).replace("\0", values, 1)
    completion = device.dispatch(source.replace("\0", template), ONE, ONE)
    assert completion.log == (LogMessage("sub", "cat", 2, text or template % arguments),)


def test_messages_belong_to_their_submission_and_overflow_is_told(device: Device) -> None:
    source = """
FIBERS {
  const sm_u8 kinds[] = {'u'};
  sm_u64 values[] = {thread->index};
  softmetal_barrier();
  softmetal_log(0, 0, 0, "thread %u", kinds, values, 1);
}"""
    log = device.dispatch(source, (64, 1, 1), (32, 1, 1)).log
    assert sorted(message.text for message in log) == sorted(
        f"thread {i}" for i in range(32) for _ in range(2)
    )
    assert device.run().log == ()
    count = 64 * 1024
    log = device.dispatch(source, (count, 1, 1), (32, 1, 1)).log
    assert log[-1].text.startswith(f"{count - len(log) + 1} messages were dropped")
    assert all(message.text.startswith("thread ") for message in log[:-1])
