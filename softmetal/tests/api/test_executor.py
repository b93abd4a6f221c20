"""The CPU executor runs kernels of every mode over every shape of grid."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from executor_device import Device, addresses
from executor_kernels import AXPY, COUNT_FIBERS, COUNT_FLAT, COUNT_GROUPS
from seeds import generator

from softmetal.types import Dispatch, Timestamp


@pytest.fixture(scope="module", params=[1, 2, 5], ids="threads={}".format)
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Device:
    return Device(request.param, tmp_path_factory.mktemp("kernels"))


# ---- grids ----------------------------------------------------------------------------------

GRIDS = [
    ((1, 1, 1), (1, 1, 1)),
    ((7, 1, 1), (32, 1, 1)),
    ((1000, 1, 1), (64, 1, 1)),
    ((70001, 1, 1), (1024, 1, 1)),
    ((33, 17, 1), (8, 8, 1)),
    ((3, 500, 1), (1, 1, 1)),
    ((65, 9, 5), (16, 4, 3)),
    ((1, 1, 77), (1, 1, 64)),
    ((5000, 3, 2), (100, 1, 1)),
]
MODES = {"flat": COUNT_FLAT, "groups": COUNT_GROUPS, "fibers": COUNT_FIBERS}


@pytest.mark.parametrize(("grid", "group"), GRIDS)
@pytest.mark.parametrize("mode", MODES)
def test_every_thread_of_a_grid_runs_once(
    device: Device, mode: str, grid: tuple[int, int, int], group: tuple[int, int, int]
) -> None:
    counts = device.zeros(grid, np.uint32)
    for times in (1, 2):  # a kernel of known cost is cut differently
        device.dispatch(MODES[mode], grid, group, counts)
        assert np.all(counts == times)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_a_zero_dimension_runs_nothing(device: Device, mode: str, zero: int) -> None:
    counts = device.zeros(64, np.uint32)
    empty = tuple(0 if d == zero else 4 for d in range(3))
    device.dispatch(MODES[mode], empty, (4, 4, 4), counts)
    device.dispatch(MODES[mode], (4, 4, 4), empty, counts)
    assert not counts.any()


RENDEZVOUS = """
int gettid(void);
FLAT {
  BUFFER(sm_u32, out, 0); BUFFER(sm_u32, seen, 1); BUFFER(sm_u32, workers, 2);
  sm_u32 self = (sm_u32)gettid(), other = 1;
  for (sm_u32 i = 0; other && other != self; i++) {
    other = 0;
    __atomic_compare_exchange_n(&seen[i], &other, self, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  }
  for (sm_u32 i = x0; i < x1; i++) out[i] = self;
  if (x0 == 0) {
    for (volatile sm_u32 k = 0; k < 1000000; k++) {}
  } else {
    while (!__atomic_load_n(&seen[*workers - 1], __ATOMIC_SEQ_CST)) {}
  }
}"""


def test_heavy_threads_are_shared_although_they_are_few(device: Device) -> None:
    """All chunks but the first wait until every worker has taken one. The cost of a kernel is
    unknown at its first run, which is shared after a long chunk; the second is shared at once."""
    workers = device.array([device.threads], np.uint32)
    for _ in range(2):
        out, seen = device.zeros(40, np.uint32), device.zeros(8, np.uint32)
        device.dispatch(RENDEZVOUS, (40, 1, 1), (40, 1, 1), out, seen, workers)
        assert out.all()
        assert len(set(out.tolist())) == device.threads


def test_axpy(device: Device) -> None:
    count = 300_007
    x = device.array(generator(1).standard_normal(count), np.float32)
    y = device.array(np.ones(count), np.float32)
    alpha = device.array([0.5], np.float32)
    device.dispatch(AXPY, (count, 1, 1), (256, 1, 1), x, y, alpha)
    np.testing.assert_allclose(y, 1 + 0.5 * x.astype(np.float64), rtol=1e-6)


# ---- threadgroups ---------------------------------------------------------------------------

BUILTINS = """
FIBERS {
  BUFFER(sm_u32, out, 0);
  sm_u64 at = ((sm_u64)GLOBAL(2) * launch->grid[1] + GLOBAL(1)) * launch->grid[0] + GLOBAL(0);
  sm_u32 row[] = {thread->group_position[0], thread->group_position[1], thread->group_position[2],
                  thread->group_size[0], thread->group_size[1], thread->group_size[2],
                  thread->position[0], thread->position[1], thread->position[2],
                  thread->index, launch->groups[0], launch->groups[1], launch->groups[2],
                  softmetal_lane()};
  for (int i = 0; i < 14; i++) out[at * 14 + i] = row[i];
}"""


def test_what_a_fiber_is_told_at_ragged_edges(device: Device) -> None:
    grid, group = np.array([20, 7, 3]), np.array([8, 5, 2])
    out = device.zeros((3, 7, 20, 14), np.uint32)
    device.dispatch(BUILTINS, tuple(grid.tolist()), tuple(group.tolist()), out)
    z, y, x = np.indices((3, 7, 20))
    position = np.stack([x, y, z], -1)
    size = np.minimum(group, grid - position // group * group)
    local = position % group
    index = (local[..., 2] * size[..., 1] + local[..., 1]) * size[..., 0] + local[..., 0]
    groups = np.broadcast_to([3, 2, 2], position.shape)
    expected = np.concatenate(
        [position // group, size, local, index[..., None], groups, index[..., None] % 32], -1
    )
    assert np.array_equal(out, expected)


SCRATCH_SUM = """
FIBERS {
  BUFFER(sm_u32, in, 0); BUFFER(sm_u32, out, 1);
  sm_u32 *low = (sm_u32 *)(thread->scratch + launch->scratch_offset[0]);
  sm_u32 *high = (sm_u32 *)(thread->scratch + launch->scratch_offset[2]);
  sm_u32 n = thread->group_size[0], i = thread->index;
  low[i] = in[GLOBAL(0)];
  high[i] = i;
  for (sm_u32 step = 1; step < n; step *= 2) {
    softmetal_barrier();
    sm_u32 other = i + step < n && i % (2 * step) == 0 ? low[i + step] : 0;
    softmetal_barrier();
    low[i] += other;
  }
  softmetal_barrier();
  out[GLOBAL(0)] = low[0] + high[n - 1];
}"""


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 100, 1023, 1024])
def test_reduction_in_dynamic_threadgroup_memory(device: Device, size: int) -> None:
    count = 3 * size + size // 2
    values = device.array(np.arange(count) % 97, np.uint32)
    out = device.zeros(count, np.uint32)
    lengths = (size * 4, 0, size * 4)
    device.dispatch(SCRATCH_SUM, (count, 1, 1), (size, 1, 1), values, out, threadgroup=lengths)
    for first in range(0, count, size):
        part = values[first : first + size]
        assert np.all(out[first : first + size] == part.sum() + len(part) - 1)


def test_scratch_of_a_groups_kernel(device: Device) -> None:
    source = """
GROUPS {
  BUFFER(sm_u64, out, 0);
  for (sm_u32 gx = gx0; gx < gx1; gx++) {
    sm_u32 *memory = (sm_u32 *)(scratch + launch->scratch_offset[1]);
    for (int i = 0; i < 30000; i++) memory[i] = gx;
    out[2 * gx] = (sm_u64)memory % 256;
    out[2 * gx + 1] = memory[29999];
  }
}"""
    out = device.zeros((50, 2), np.uint64)
    device.dispatch(source, (50, 1, 1), (1, 1, 1), out, threadgroup=(100, 120000))
    assert np.array_equal(out, [[0, i] for i in range(50)])


# ---- barriers and simdgroups ----------------------------------------------------------------

# kernel, expected out[i] for thread i of one threadgroup of n threads
COOPERATION = {
    "threads that end early do not count at a barrier": (
        """
FIBERS {
  BUFFER(sm_u32, out, 0);
  if (thread->index % 3 == 0) return;
  out[thread->index] = 1;
  softmetal_barrier();
  sm_u32 n = thread->group_size[0], before = out[(thread->index + 1) % n];
  softmetal_barrier();
  out[thread->index] = 10 + before;
}""",
        lambda i, n: 0 if i % 3 == 0 else 10 + ((i + 1) % n % 3 != 0),
    ),
    "barriers at different sites release each other": (
        """
FIBERS {
  BUFFER(sm_u32, out, 0);
  if (thread->index & 1) { softmetal_barrier(); out[thread->index] = 1; }
  else { softmetal_barrier(); out[thread->index] = 2; }
  softmetal_barrier();
  sm_u32 first = out[0];
  softmetal_barrier();
  out[thread->index] += 10 * first;
}""",
        lambda i, n: (1 if i & 1 else 2) + 20,
    ),
    "a sum over whole and partial simdgroups": (
        "FIBERS { BUFFER(sm_u32, out, 0); SUM(s, thread->index); out[thread->index] = s.value; }",
        lambda i, n: sum(range(i // 32 * 32, min(i // 32 * 32 + 32, n))),
    ),
    "the mask of active lanes": (
        "FIBERS { BUFFER(sm_u32, out, 0); SUM(s, 1); out[thread->index] = s.active; }",
        lambda i, n: 2 ** min(32, n - i // 32 * 32) - 1,
    ),
    "divergent sites are separate sums": (
        """
FIBERS {
  BUFFER(sm_u32, out, 0);
  if (thread->index % 4 == 1) { SUM(s, 100); out[thread->index] = s.value; }
  else { SUM(t, 1); out[thread->index] = t.value; }
}""",
        lambda i, n: sum(
            100 if i % 4 == 1 else 1
            for j in range(i // 32 * 32, min(i // 32 * 32 + 32, n))
            if (j % 4 == 1) == (i % 4 == 1)
        ),
    ),
    "lanes that ended are not active": (
        """
FIBERS {
  BUFFER(sm_u32, out, 0);
  sm_u32 lane = softmetal_lane();
  for (sm_u32 round = 0; round < lane; round++) { SUM(s, 1); out[thread->index] += s.value; }
}""",
        # In round r the lanes above r of the simdgroup take part.
        lambda i, n: sum(min(32, n - i // 32 * 32) - 1 - r for r in range(i % 32)),
    ),
    "lanes at a threadgroup barrier stay blocked": (
        """
FIBERS {
  BUFFER(sm_u32, out, 0);
  if (softmetal_lane() < 5) softmetal_barrier();
  SUM(s, 1);
  out[thread->index] = s.value;
  if (softmetal_lane() >= 5) softmetal_barrier();
}""",
        lambda i, n: min(5, n - i // 32 * 32) if i % 32 < 5 else min(32, n - i // 32 * 32) - 5,
    ),
    "barriers and sums in a loop": (
        """
FIBERS {
  BUFFER(sm_u32, out, 0);
  sm_u32 n = thread->group_size[0], total = 0;
  for (sm_u32 round = 0; round < 20; round++) {
    SUM(s, round);
    out[(thread->index + round) % n] = s.value;
    softmetal_barrier();
    total += out[thread->index] > 0;
    softmetal_barrier();
  }
  out[thread->index] = total;
}""",
        lambda i, n: 19,
    ),
}


@pytest.mark.parametrize("size", [1, 5, 32, 45, 64, 257, 1024])
@pytest.mark.parametrize("case", COOPERATION)
def test_cooperation(device: Device, case: str, size: int) -> None:
    source, expected = COOPERATION[case]
    out = device.zeros(size, np.uint32)
    device.dispatch(source, (size, 1, 1), (size, 1, 1), out)
    for i in range(size):
        assert out[i] == expected(i, size), i


def test_one_site_with_two_operations_is_two_collectives(device: Device) -> None:
    source = """
static void mark(const sm_lanes *lanes) {
  for (int i = 0; i < SM_LANES; i++)
    if (lanes->slot[i]) ((lane_sum *)lanes->slot[i])->value = 7;
}
FIBERS {
  BUFFER(sm_u32, out, 0);
  void (*volatile operate)(const sm_lanes *) = softmetal_lane() & 1 ? mark : sum_lanes;
  lane_sum s = {1, 0};
  softmetal_collective(operate, &s, 0);
  out[thread->index] = s.value;
}"""
    out = device.zeros(32, np.uint32)
    device.dispatch(source, (32, 1, 1), (32, 1, 1), out)
    assert out.tolist() == [16, 7] * 16


def test_fibers_have_deep_stacks(device: Device) -> None:
    source = """
FIBERS {
  BUFFER(sm_u32, out, 0);
  volatile sm_u32 local[40000];
  for (sm_u32 i = 0; i < 40000; i++) local[i] = thread->index;
  softmetal_barrier();
  sm_u32 wrong = 0;
  for (sm_u32 i = 0; i < 40000; i++) wrong += local[i] != thread->index;
  out[thread->index] = wrong;
}"""
    out = device.array(np.ones(48), np.uint32)
    device.dispatch(source, (48, 1, 1), (48, 1, 1), out)
    assert not out.any()


# ---- lists and threads ----------------------------------------------------------------------


def test_long_lists_run_in_order(device: Device) -> None:
    source = "FLAT { BUFFER(sm_u32, out, 0); out[0] = out[0] * 3 + *(sm_u32 *)launch->buffers[1]; }"
    kernel = device.kernel(source)
    out, numbers = device.zeros(1, np.uint32), device.array(np.arange(3000), np.uint32)
    base = numbers.ctypes.data
    one = (1, 1, 1)
    device.run(*(Dispatch(kernel, one, one, (out.ctypes.data, base + 4 * i)) for i in range(3000)))
    expected = 0
    for i in range(3000):
        expected = (expected * 3 + i) % 2**32
    assert out[0] == expected


def test_queues_from_several_python_threads(device: Device) -> None:
    kernel, rounds, size = device.kernel(COUNT_FIBERS), 20, 4096
    counts = [device.zeros(size, np.uint32) for _ in range(4)]

    def work(counter: np.ndarray) -> None:
        queue = device.executor.new_queue()
        command = Dispatch(kernel, (size, 1, 1), (128, 1, 1), addresses(counter))
        for _ in range(rounds):
            ticket = device.executor.submit(queue, [command] * 3)
            completion = device.executor.wait(ticket, None)
            device.executor.forget(ticket)
            assert completion is not None
            assert completion.error is None
        device.executor.free_queue(queue)

    threads = [threading.Thread(target=work, args=(counter,)) for counter in counts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for counter in counts:
        assert np.all(counter == 3 * rounds)


def test_times_are_of_one_clock(device: Device) -> None:
    stamps = device.zeros(2, np.uint64)
    completion = device.run(Timestamp(stamps.ctypes.data), Timestamp(stamps.ctypes.data + 8))
    assert completion.start <= stamps[0] / 1e9 <= stamps[1] / 1e9 <= completion.end


def test_loading_twice_gives_the_same_handle(device: Device) -> None:
    assert device.kernel(COUNT_FLAT) == device.kernel(COUNT_FLAT)


def test_compiled_runtime_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from softmetal.executors import runtime_build

    monkeypatch.setenv("SOFTMETAL_CACHE", str(tmp_path))
    first = runtime_build.build()
    stamp = first.stat().st_mtime_ns
    assert runtime_build.build() == first
    assert first.stat().st_mtime_ns == stamp
    names = sorted(path.name for path in first.parent.iterdir())
    assert names == ["manifest", first.name]  # no intermediate files
