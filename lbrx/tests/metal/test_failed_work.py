"""Failed kernels and the tensors, replays and threads around them."""

from __future__ import annotations

import mmap
import os
import threading

import numpy as np
import pytest
from device_memory import shares_memory, survives_faults
from host_pages import shares_mapped_files

import lbrx
from lbrx.arrays.storage import MmapStorage

PAGE = mmap.PAGESIZE
pytestmark = [
    pytest.mark.usefixtures("metal_default"),
    survives_faults,
]

# Writes beyond its memory where `far` is not 0.
REACH = """kernel void reach(device const float* x [[buffer(0)]], constant ulong& far [[buffer(1)]],
                  device float* out [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  out[far + i] = x[i] + 1;
}
"""
FAR = 1 << 45


@pytest.fixture(scope="module")
def reach():
    kernel = lbrx.kernel(REACH)
    return lambda x, far: kernel(x, lbrx.tensor([far], dtype="uint64"), shapes=[x.shape])


def test_tensors_computed_from_a_failed_one_fail(reach):
    x = lbrx.ones(8) + 0
    lbrx.eval(x)  # in a command buffer before: all results of a failed one are lost
    failed = reach(x, FAR)
    doubled = failed * 2
    with pytest.raises(lbrx.DeviceError, match="kernel reach failed"):
        failed.numpy()
    for _ in range(2):
        with pytest.raises(lbrx.DeviceError, match="kernel reach failed"):
            doubled.numpy()
        with pytest.raises(lbrx.DeviceError, match="kernel reach failed"):
            (failed @ x).item()
    assert (x + 1).tolist() == [2.0] * 8
    assert reach(x, 0).tolist() == [2.0] * 8


@shares_memory
@shares_mapped_files
def test_a_replay_works_again_after_a_failed_run(tmp_path):
    """A kernel that reads a mapped file fails after the file has become shorter."""
    captured = lbrx.full((2 * PAGE,), 3.0) + 0
    function = lbrx.compile(lambda x: ((x * 2 + captured).softmax(axis=-1) + captured) * 10)
    fine = lbrx.ones(2 * PAGE) + 0
    expected = [30 + 10 / (2 * PAGE)] * 3
    for run in range(2):
        path = tmp_path / str(run)
        path.write_bytes(bytes(8 * PAGE))
        lost = lbrx.from_numpy(MmapStorage(path).host().view(np.float32), copy=False)
        np.testing.assert_allclose(function(fine)[:3].numpy(), expected, rtol=1e-6)
        os.truncate(path, PAGE)
        failed = function(lost)
        with pytest.raises(lbrx.DeviceError, match="failed"):
            failed.numpy()
        assert captured[:2].tolist() == [3.0] * 2  # read by the failed run, and still right
    np.testing.assert_allclose(function(fine)[:3].numpy(), expected, rtol=1e-6)


def test_threads_do_not_disturb_each_other(reach):
    """Some compute, eagerly and by replays, while kernels of others crash."""
    replayed = lbrx.compile(lambda x: (x * 2).softmax(axis=-1).sum() + x.max())
    problems: list[object] = []
    raised: list[Exception] = []

    def compute(k):
        for i in range(30):
            x = lbrx.full((16, 16), float(k))
            if ((x + i) @ x).sum().item() != 16**3 * (k + i) * k:
                problems.append((k, i))
            if not np.isclose(replayed(x).item(), 16 + k):
                problems.append((k, i, "replayed"))

    def crash():
        x = lbrx.ones(8)
        for _ in range(30):
            try:
                reach(x, FAR).numpy()
            except lbrx.DeviceError as problem:
                raised.append(problem)

    def guarded(work, *arguments):
        try:
            work(*arguments)
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=guarded, args=(compute, k)) for k in range(1, 5)]
    threads += [threading.Thread(target=guarded, args=(crash,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert len(raised) == 90
