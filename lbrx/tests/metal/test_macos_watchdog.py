"""Command buffers that macOS ends: bounded by modelled time, and work goes on in another queue."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

import lbrx
from lbrx.errors import DeviceError
from lbrx.metal import Context, context
from lbrx.scheduler import replay

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="nobody asks macOS to end work")
FILL = """
kernel void fill(device uint* out [[buffer(0)]], constant uint& value [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) { out[i] = value; }
"""


@pytest.fixture
def gpu(monkeypatch):
    context()  # which other tests use, too: not with the pages of macOS
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    made = Context()
    yield made
    made.close()


def test_work_goes_on_after_macos_has_ended_some(gpu):
    from softmetal.api.host import watchdog

    pipeline, out = gpu.shaders.pipeline("fill", "fill", source=FILL), gpu.buffer(16)

    def fill(value, buffer=out):
        gpu.queue.dispatch(pipeline, [buffer, np.uint32(value).tobytes()], (4, 1, 1), (4, 1, 1))

    fill(1)
    assert out.array(np.uint32).tolist() == [1] * 4
    event, other = gpu.device.newSharedEvent(), gpu.buffer(16)
    gpu.queue.hold(event, 1)
    gpu.queue.commit()
    watchdog.end()
    fill(2)
    gpu.queue.commit()
    fill(3, other)  # committed before anybody knows
    gpu.queue.commit()
    event.setSignaledValue_(1)
    with pytest.raises(DeviceError, match=r"kernel fill failed: Impacting .* smaller parts"):
        out.array()
    with pytest.raises(DeviceError, match=r"kernel fill failed: Ignored .* run it again"):
        other.array()
    for value in (4, 5):
        fill(value)
        fill(value + 10, other)
        assert out.array(np.uint32).tolist() == [value] * 4
        assert other.array(np.uint32).tolist() == [value + 10] * 4


def test_what_follows_ended_work_of_a_replay_runs(gpu):
    from softmetal.api.host import watchdog

    step = lbrx.compile(lambda x: [(x * 2).softmax(axis=-1) + i for i in range(9)])
    x = lbrx.tensor(np.linspace(0, 1, 32, dtype="f4").reshape(4, 8), device="metal")
    want = [y.numpy().copy() for y in step(x)]
    smaller = context().queue._max_operations
    watchdog.end()
    with pytest.raises(DeviceError, match="Impacting Interactivity"):
        [y.numpy() for y in step(x)]
    for _ in range(3):
        np.testing.assert_array_equal([y.numpy() for y in step(x)], want)
    assert context().queue._max_operations == smaller // 2
    context().queue._max_operations = smaller


def test_a_replay_is_cut_where_it_would_take_long(monkeypatch):
    """By the rates of the device, which a processor does not have."""
    info = context().info
    apple = replace(info, simd_hardware=True, cuda=None, bandwidth=1e11, fp32_peak=1e12)
    step = lbrx.compile(lambda x: [(x @ x + i).softmax(axis=-1) for i in range(12)])
    x = lbrx.tensor(np.linspace(-1, 1, 128 * 128, dtype="f4").reshape(128, 128), device="metal")
    want = [y.numpy().copy() for y in step(x)]

    seen = []
    bounded = replay._bounded
    monkeypatch.setattr(
        replay,
        "_bounded",
        lambda kernels, _: seen.append((kernels, bounded(kernels, apple))) or seen[-1][1],
    )
    monkeypatch.setattr(replay, "MAX_SECONDS", 1e-5)
    again = lbrx.compile(lambda x: [(x @ x + i).softmax(axis=-1) for i in range(12)])
    with lbrx.kernels.forced(matmul="serial"):
        got = [y.numpy() for y in again(x)]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    (kernels, runs), *_ = seen
    assert len(runs) > 2
    assert [kernel for run in runs for kernel in run] == list(kernels)
    for run in runs:
        seconds = [replay.modelled_seconds(kernel, apple) for kernel in run]
        assert len(run) == 1 or sum(seconds) <= 1e-5
    assert replay.modelled_seconds(kernels[0], replace(apple, cuda=0)) == 0
    assert sum(replay.modelled_seconds(kernel, apple) for kernel in kernels) > 2e-5
