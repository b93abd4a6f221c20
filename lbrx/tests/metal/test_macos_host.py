"""lbrx on a host that behaves as macOS does; the Makefile runs whole test files in this mode too."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from device_memory import shares_memory

import lbrx
from lbrx.arrays.storage import empty_aligned
from lbrx.arrays.storage.mapped import MmapStorage
from lbrx.memory.zero_copy import shareable_span
from lbrx.metal import Context
from lbrx.metal.buffer import bytes_at
from lbrx.scheduler import replay

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="it is the host itself there")

PROGRAM = """
import numpy as np
import lbrx
from softmetal.api import host

x = lbrx.from_numpy(lbrx.empty_aligned((256, 256)), device="metal", copy=False)
lbrx.eval(x)
step = lbrx.compile(lambda a: (a @ a + 1).softmax(axis=-1) * 2)  # MPS products between kernels
for _ in range(200):
    y = step(x) + 1
    lbrx.eval(y)
for _ in range(3000):
    y = y * 1.5
print(y.shape, host.findings, [type(item).__name__ for item in host.leaked()])
"""


@shares_memory
def test_nothing_leaks_and_nothing_outlives_its_buffer(monkeypatch):
    """Command buffers and encoders are autoreleased: without pools they would pile up."""
    monkeypatch.setenv("SOFTMETAL_STRICT", "host,bridge")
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "(256, 256) [] []\n"


def test_aligned_arrays_are_in_pages_of_macos():
    for shape in ((1,), (4097,), (100, 1000)):
        array = empty_aligned(shape)
        assert array.ctypes.data % (16 << 10) == 0
        assert shareable_span(array, page=16 << 10) is not None


@shares_memory
def test_pages_of_another_size_are_copied(monkeypatch):
    """What Linux maps starts at its own pages; the device of a Mac takes larger ones."""
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    gpu = Context()
    assert gpu.info.page == 16 << 10
    room = empty_aligned((64 << 10,), "uint8")
    assert gpu.share(room[4096 : 20 << 10]) is not None  # within complete pages of its base
    small = bytes_at(room.ctypes.data + 4096, 32 << 10)  # complete pages of Linux only
    foreign = np.frombuffer(small, np.uint8)
    assert shareable_span(foreign, page=4096) is not None
    assert gpu.share(foreign) is None
    gpu.close()


def test_long_recordings_are_several_indirect_command_buffers(monkeypatch):
    monkeypatch.setattr(replay, "MAX_COMMANDS", 3)
    step = lbrx.compile(lambda x: [x.softmax(axis=-1) + i for i in range(10)])
    x = lbrx.ones((4, 8), device="metal")
    for _ in range(3):
        for i, result in enumerate(step(x)):
            np.testing.assert_allclose(result.numpy(), 1 / 8 + i, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("terms", [32766, 32767])
def test_long_sums_on_old_gpus_are_not_mps(dtype, terms, monkeypatch):
    """MPS is wrong there from 32767 terms on, which softmetal refuses."""
    settings = {"SOFTMETAL_STRICT": "host", "SOFTMETAL_PROFILE": "apple-m1"}
    ran = subprocess.run(
        [sys.executable, "-c", LONG_SUM, dtype, str(terms)],
        env={**os.environ, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ("mps" in ran.stdout) == (terms < 32767)


LONG_SUM = """
import sys, numpy as np, lbrx
from lbrx.kernels import forced

dtype, terms = sys.argv[1], int(sys.argv[2])
x = np.random.default_rng(2).standard_normal((2, 8, terms)).astype(dtype) / 16
a, b = (lbrx.tensor(each, device="metal") for each in x)
want = x[0].astype(float) @ x[1].T.astype(float)
got = (a @ b.T).numpy()
np.testing.assert_allclose(got, want, rtol=1e-2, atol=0.05)
with forced(matmul="mps"):  # where it supports the problem
    np.testing.assert_allclose((a @ b.T).numpy(), want, rtol=1e-2, atol=0.05)
print(dict(lbrx.metal.context().queue.counts()))
"""


LARGE_TEAMS = """
import numpy as np, lbrx
from lbrx.metal import context

for dtype in ("float32", "float16"):
    x = np.random.default_rng(5).standard_normal((2, 16384)).astype(dtype)
    t = lbrx.tensor(x, device="metal")
    lbrx.eval(t)
    wide = x.astype(float)
    power = np.exp(wide * 2 - (wide * 2).max(axis=-1, keepdims=True))
    want = [power / power.sum(axis=-1, keepdims=True), wide - wide.mean(axis=-1, keepdims=True)]
    got = [(t * 2).softmax(axis=-1), t - t.mean(axis=-1, keepdims=True)]
    for found, expected in zip(got, want):
        np.testing.assert_allclose(found.numpy(), expected, rtol=5e-3, atol=2e-3)
    rows = t.softmax(axis=-1), t.layer_norm()
    np.testing.assert_allclose(rows[1].numpy().std(axis=-1), 1, rtol=1e-2)
    np.testing.assert_allclose(rows[0].numpy().sum(axis=-1), 1, rtol=1e-2)
most = {p.max_threads for p in context().shaders._pipelines.values()}
print(sorted(most), context().queue.counts())
"""


@pytest.mark.parametrize("profile", ["apple-m1", "apple-m5"])
def test_teams_that_registers_would_limit_are_declared(profile):
    ran = subprocess.run(
        [sys.executable, "-c", LARGE_TEAMS], env={**os.environ, "SOFTMETAL_PROFILE": profile},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "512" in ran.stdout.split("]")[0]
    assert "softmax:threadgroup" in ran.stdout


# ---- files above 4 GiB ----

PLACES = (4096, (5 << 30) + 4096, (9 << 30) - (4 << 20))  # bytes of the file, 4 MiB each


@pytest.fixture
def weights(tmp_path):
    """Matrices in a file of 9 GiB that takes few blocks on the disk."""
    values = np.random.default_rng(3).standard_normal((3, 1024, 1024)).astype(np.float32)
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.truncate(9 << 30)
        for place, matrix in zip(PLACES, values, strict=True):
            file.seek(place)
            file.write(matrix.tobytes())
    return path, values


@shares_memory
@pytest.mark.parametrize("mode", ["", "host"])
def test_a_long_file_is_shared_by_buffers_below_4_gib(weights, mode, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_STRICT", mode)
    monkeypatch.setenv("SOFTMETAL_PROFILE", "apple-m3-max:64")  # which takes 9 GB in a buffer
    gpu, host = Context(), MmapStorage(weights[0]).host()
    for place in (*PLACES, (3 << 30) - 4096, (4 << 30) - 4096):
        array = host[place : place + (4 << 20)]
        buffer = gpu.share(array)
        assert buffer is not None, "the file would be copied"
        assert buffer.block.address % gpu.info.page == 0
        assert buffer.offset + buffer.size < 4 << 30
        assert bytes(buffer.array()[:9]) == bytes(array[:9])
    whole = gpu.share(host)
    assert (whole.offset, whole.size) == (0, 9 << 30)
    own = gpu.share(host[(1 << 30) : (4 << 30)])  # in no view
    assert own is not None
    assert own.block.length == 3 << 30
    gpu.close()


LONG_FILE = """
import sys, numpy as np, lbrx
from lbrx.arrays.storage.mapped import MmapStorage

host = MmapStorage(sys.argv[1]).host()
parts = [host[int(place) :][: 4 << 20].view(np.float32) for place in sys.argv[2:]]
matrices = [part.reshape(1024, 1024) for part in parts]
weights = [lbrx.from_numpy(matrix, device="metal", copy=False) for matrix in matrices]
step = lbrx.compile(lambda x: [((x + i) @ w).relu() * 2 for w in weights for i in range(3)])
x = lbrx.tensor(np.linspace(-1, 1, 1024, dtype=np.float32).reshape(1, 1024), device="metal")
for _ in range(3):
    found = [y.numpy() for y in step(x)]
np.save(sys.argv[1] + ".npy", found)
print(lbrx.metal.stats()["bytes_in_use"] < 64 << 20)
"""


@shares_memory
def test_replays_read_the_right_weights_of_a_long_file(weights):
    """Indirect commands keep 32 bits of an offset."""
    path, values = weights
    settings = {"SOFTMETAL_STRICT": "host", "SOFTMETAL_PROFILE": "apple-m3-max:64"}
    ran = subprocess.run(
        [sys.executable, "-c", LONG_FILE, str(path), *map(str, PLACES)],
        env={**os.environ, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stdout == "True\n", ran.stderr
    x = np.linspace(-1, 1, 1024).reshape(1, 1024)
    want = [np.maximum((x + i) @ w.astype(float), 0) * 2 for w in values for i in range(3)]
    np.testing.assert_allclose(np.load(f"{path}.npy"), want, rtol=1e-4, atol=1e-3)


# ---- residency ----


def members(gpu):
    gpu.trim()
    return list(gpu.residency.members._committed.values())


@shares_memory
def test_heaps_and_mapped_files_stay_resident(weights, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    gpu, host = Context(), MmapStorage(weights[0]).host()
    if gpu.residency.members is None:
        pytest.skip("macOS 14 has no residency sets")
    queue = gpu.queue._queue
    assert queue._residency == [gpu.residency.members]
    assert members(gpu) == []
    first, second = gpu.share(host[: 4 << 20]), gpu.share(host[8 << 30 : (8 << 30) + 4096])
    cache = gpu.heap_buffer(1 << 20, "cache")
    handles = [first.handle, second.handle, cache.handle.heap()]
    assert len(set(map(id, handles))) == 3
    assert {id(each) for each in members(gpu)} == set(map(id, handles))
    gpu.share(empty_aligned((1000,)))
    assert len(members(gpu)) == 3
    del cache, first, handles
    assert [each is second.handle for each in members(gpu)] == [True]
    gpu.queue._renew()
    assert gpu.queue._queue is not queue
    assert gpu.queue._queue._residency == [gpu.residency.members]
    gpu.close()


def test_without_residency_sets_nothing_is_kept(monkeypatch):
    """As on macOS 14, and without the rules of a Mac."""
    monkeypatch.delenv("SOFTMETAL_STRICT", raising=False)
    gpu = Context()
    assert gpu.residency.members is None
    assert gpu.heap_buffer(1 << 20, "cache").size == 1 << 20
    gpu.close()
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    device = Context().device
    monkeypatch.delattr(type(device), "newResidencySetWithDescriptor_error_")
    old = Context()
    assert old.residency.members is None
    old.close()
