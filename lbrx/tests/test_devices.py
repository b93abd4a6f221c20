"""Devices: the default, moving and sharing tensors, waiting, and errors."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from device_memory import shares_files, shares_memory

import lbrx
from lbrx.arrays import shape as sh
from lbrx.arrays.storage import Array, MmapStorage, ViewStorage
from lbrx.tensors import Tensor
from lbrx.tensors import placement as devices


def run(code: str, **environment: str) -> str:
    """What a fresh process prints."""
    env = {k: v for k, v in os.environ.items() if k != "LBRX_DEVICE"} | environment
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).strip()


# ---- which device ----


def test_the_default_is_the_best_there_is(monkeypatch):
    monkeypatch.delenv("LBRX_DEVICE", raising=False)
    assert lbrx.default_device() == "metal"
    assert lbrx.ones(2).device == lbrx.random.normal(2).device == "metal"
    assert lbrx.where([True], 1, 2).device == "metal"
    monkeypatch.setenv("LBRX_DEVICE", "cpu")
    assert lbrx.default_device() == lbrx.ones(2).device == "cpu"
    lbrx.set_default_device("metal")
    assert lbrx.default_device() == "metal"
    lbrx.set_default_device(None)
    assert lbrx.default_device() == "cpu"
    monkeypatch.setenv("LBRX_DEVICE", "gpu")
    with pytest.raises(lbrx.SettingError, match="LBRX_DEVICE='gpu' is not a device: unset it"):
        lbrx.default_device()
    with pytest.raises(lbrx.DeviceError, match="no device 'tpu': use one of cpu, metal"):
        lbrx.set_default_device("tpu")


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac's device needs no package of ours")
def test_without_metal_everything_is_on_the_cpu():
    code = """
import importlib.util, logging
logging.basicConfig(format="%(levelname)s %(message)s")
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "ziglang" else find(name, *rest)
import lbrx
t = lbrx.ones(3) + 1
print(t.device, [device.name for device in lbrx.devices()], lbrx.Event().query())
with lbrx.deterministic():
    lbrx.eval(t)
try:
    t.to_device("metal")
except lbrx.DeviceError as error:
    print(error)
"""
    lines = run(code).splitlines()
    assert "cpu ['cpu'] True" in lines
    assert "no Metal device: the package 'ziglang' is not installed: pip install ziglang" in lines
    assert any(
        line.startswith("WARNING tensors are created on the cpu: no Metal") for line in lines
    )


def test_what_there_is():
    first = lbrx.devices()[0]
    assert isinstance(first, lbrx.DeviceInfo)
    assert first == lbrx.metal.context().info
    assert first.name
    assert first.memory_limit > 0


def test_metal_is_imported_when_it_is_used():
    code = "import sys, lbrx; lbrx.ones(2, device='cpu') + 1; print('lbrx.metal' in sys.modules)"
    assert run(code, LBRX_DEVICE="cpu") == "False"
    assert run("import lbrx; print(lbrx.metal.stats()['dispatches'])") == "0"
    assert "'metal'" in run("import lbrx; print(dir(lbrx))")
    with pytest.raises(AttributeError, match="module 'lbrx' has no attribute 'mettal'"):
        lbrx.mettal  # noqa: B018


# ---- element types ----


def test_float64_is_the_cpus_alone():
    x = np.array([1.5, 2.5])
    for t in (
        lbrx.tensor(x, device="metal"),
        lbrx.from_numpy(x, device="metal"),
        lbrx.tensor([0.5, 1.0], device="metal") + x - [0.5, 1.0],
    ):
        assert (t.dtype, t.device, t.tolist()) == (lbrx.float32, "metal", [1.5, 2.5])
    assert lbrx.tensor(x, device="cpu").dtype is lbrx.float64
    for wrong in (
        lambda: lbrx.tensor(x, dtype="float64", device="metal"),
        lambda: lbrx.zeros(2, "float64", device="metal"),
        lambda: lbrx.tensor(x, device="cpu").to_device("metal"),
        lambda: lbrx.ones(2, device="metal").astype("float64").numpy(),
    ):
        with pytest.raises(lbrx.DtypeError, match=r"Metal has no float64, cast to float32 or use"):
            wrong()
    aligned = lbrx.empty_aligned(2, "float64")
    with pytest.raises(ValueError, match=r"memory of float64\[2\], it would become float32"):
        lbrx.from_numpy(aligned, device="metal", copy=False)


# ---- moving and sharing ----


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.T, lambda t: t[::-1, 1::2]])
def test_there_and_back(view, rng):
    x = rng.standard_normal((300, 70)).astype(np.float32)
    t = lbrx.tensor(x, device="cpu").with_metadata(name="w", source="here")
    there = view(t).to_device("metal")
    back = there.to_device("cpu")
    np.testing.assert_array_equal(there.numpy(), view(x))
    np.testing.assert_array_equal(back.numpy(), view(x))
    assert (there.device, type(there.storage).__name__) == ("metal", "MetalStorage")
    assert (back.device, type(back.storage).__name__) == ("cpu", "CpuStorage")
    assert view(t).with_metadata(name="w", source="here").to_device("metal").metadata == t.metadata
    assert there.to_device("metal") is there
    assert not np.shares_memory(back.numpy(), there.numpy())  # to the host is a copy


@shares_memory
@pytest.mark.parametrize("shape", [(3,), (1000, 7)], ids=str)
def test_pages_of_the_host_are_shared(shape):
    page = lbrx.empty_aligned(shape)
    page[:] = 1
    t = lbrx.from_numpy(page, device="metal", copy=False)
    before = lbrx.metal.stats()["bytes_in_use"]
    assert np.shares_memory(t.numpy(), page)
    page[-1] = 5
    np.testing.assert_array_equal((t + 1).numpy(), page + 1)
    again = lbrx.from_numpy(page[1:], device="metal", copy=False)
    np.testing.assert_array_equal((again * 2).numpy(), page[1:] * 2)
    assert lbrx.metal.stats()["bytes_in_use"] <= before + 2 * page.nbytes + 4096


@shares_files
def test_tensors_of_a_mapped_file_are_parts_of_one_buffer(tmp_path, rng):
    values = rng.standard_normal(200_000).astype(np.float32)
    path = tmp_path / "weights"
    path.write_bytes(b"16 bytes of head" + values.tobytes() + b"tail")
    whole = MmapStorage(path)
    in_use = lbrx.metal.stats()["bytes_in_use"]
    tensors = []
    for first, count in ((0, 100_000), (100_000, 100_000)):
        storage = ViewStorage(whole, 16 + 4 * first, 4 * count)
        on_cpu = Tensor(Array(storage, sh.contiguous((count,)), lbrx.float32))
        tensors.append(on_cpu.to_device("metal"))
    for t, part in zip(tensors, np.split(values, 2), strict=True):
        assert t.storage.address != 0
        np.testing.assert_array_equal(t.numpy(), part)
        assert not t.storage.host().flags.writeable
    assert lbrx.metal.stats()["bytes_in_use"] == in_use
    blocks = {id(t.storage.buffer.block) for t in tensors}
    assert len(blocks) == 1
    np.testing.assert_array_equal((tensors[1] * 2).numpy(), values[100_000:] * 2)


def test_a_misaligned_tensor_of_a_file_is_copied(tmp_path, rng):
    values = rng.standard_normal(50_000).astype(np.float32)
    path = tmp_path / "weights"
    path.write_bytes(b"odd" + values.tobytes())
    storage = ViewStorage(MmapStorage(path), 3, values.nbytes)
    t = Tensor(Array(storage, sh.contiguous((50_000,)), lbrx.float32)).to_device("metal")
    assert t.storage.buffer.block.host is None
    np.testing.assert_array_equal(t.numpy(), values)


@shares_memory
def test_numpy_and_other_libraries_see_the_same_memory():
    t = lbrx.arange(12, dtype="int32", device="metal").reshape(3, 4)
    t = (t + 1).with_metadata(name="w")
    assert np.shares_memory(np.from_dlpack(t), t.numpy())
    assert np.asarray(t) is not None
    np.testing.assert_array_equal(np.asarray(t[::2].T), np.arange(1, 13).reshape(3, 4)[::2].T)
    shared = lbrx.from_dlpack(t)
    assert (shared.device, shared.tolist()) == ("cpu", t.tolist())
    copy = pickle.loads(pickle.dumps(t[1:]))
    assert (copy.device, copy.dtype, copy.metadata.name) == ("metal", lbrx.int32, None)
    assert pickle.loads(pickle.dumps(t)).metadata.name == "w"
    assert copy.tolist() == t[1:].tolist()
    assert repr(t) == (
        "tensor([[ 1,  2,  3,  4],\n        [ 5,  6,  7,  8],\n        [ 9, 10, 11, 12]],\n"
        "       shape=(3, 4), dtype=int32, device='metal', name='w')"
    )


# ---- errors ----


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda a, b: a + b,
            lbrx.ShapeError,
            r"add\(float32\[2, 3\], float32\[4\]\): shapes \(2, 3\) and \(4,\) do not broadcast",
        ),
        (lambda a, b: a @ a, lbrx.ShapeError, r"\(2, 3\) and \(2, 3\) differ, 3 and 2: transpose"),
        (
            lambda a, b: a + b.to_device("cpu"),
            lbrx.DeviceError,
            r"\(2, 3\) and \(4,\) are on 'metal' and 'cpu': move one",
        ),
        (lambda a, b: a & a, lbrx.DtypeError, r"bitwise_and\(float32\[2, 3\], float32\[2, 3\]\)"),
        (lambda a, b: a.gelu("erf"), ValueError, "give 'none' or 'tanh'"),
        (lambda a, b: a.norm(ord=0), ValueError, "give one above 0"),
    ],
)
def test_errors_name_both_operands_and_come_at_the_call(call, error, message):
    a, b = lbrx.ones((2, 3), device="metal"), lbrx.ones(4, device="metal")
    with pytest.raises(error, match=message):
        call(a, b)


def _in_child(results):
    try:
        lbrx.ones(2, device="metal")
    except lbrx.DeviceError as error:
        results.put(str(error))
    results.put((lbrx.ones(2, device="cpu") + 1).tolist())


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac's frameworks do not survive a fork")
def test_a_fork_is_refused_with_the_remedy():
    lbrx.ones(2, device="metal").numpy()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_in_child, args=(results,))
    child.start()
    assert "does not survive a fork: start the process with multiprocessing's" in results.get()
    assert results.get() == [2.0, 2.0]
    child.join()
    assert lbrx.ones(2, device="metal").tolist() == [1, 1]


# ---- waiting ----


def test_eval_looks_into_containers_and_waits():
    a, b, c = (lbrx.full(1000, v, device="metal") + 1 for v in (1.0, 2.0, 3.0))
    queue = lbrx.metal.context().queue
    lbrx.eval(a, [b, {"c": (c, None, 3)}], lbrx.ones(2, device="cpu"))
    last = max(t.storage.buffer.block.ticket for t in (a, b, c))
    assert queue.completed() >= last > 0
    lbrx.eval()


def test_events_between_host_and_device():
    gate, done = lbrx.Event("metal"), lbrx.Event("metal")
    assert done.query()
    assert done.wait()
    gate.hold()
    t = lbrx.ones(1000, device="metal") * 3
    done.record(t)
    assert not done.query()
    assert not done.wait(timeout=0.01)
    assert repr(done) == "<Event on metal, pending>"
    gate.release()
    assert done.wait()
    assert done.query()
    assert t.tolist() == [3.0] * 1000
    on_cpu = lbrx.Event("cpu")
    on_cpu.hold()
    on_cpu.record(t)
    on_cpu.release()
    assert on_cpu.query()
    assert on_cpu.wait(0)


def test_the_same_call_gives_the_same_bits_whatever_the_batch(rng):
    x = rng.standard_normal((64, 300)).astype(np.float32)
    w = rng.standard_normal((300, 40)).astype(np.float32)
    a, b = lbrx.tensor(x, device="metal"), lbrx.tensor(w, device="metal")
    for compute in (lambda t: t @ b, lambda t: t.softmax(), lambda t: t.rms_norm()):
        np.testing.assert_array_equal(compute(a).numpy(), compute(a).numpy())
        with lbrx.deterministic():
            whole = compute(a).numpy()
            for rows in (slice(0, 1), slice(7, 10), slice(31, 64)):
                np.testing.assert_array_equal(compute(a[rows]).numpy(), whole[rows])


# ---- many tensors and threads ----


def test_nothing_leaks():
    def work() -> None:
        t = lbrx.ones((64, 64), device="metal")
        u = (t + 1)[::2].T
        del t
        u.tolist()
        cycle: list[object] = [lbrx.zeros(1000, device="metal")]
        cycle.append(cycle)

    work()
    gc.collect()
    before = lbrx.metal.stats()["bytes_in_use"]
    for _ in range(1000):
        work()
    gc.collect()
    stats = lbrx.metal.stats()
    assert stats["bytes_in_use"] == before
    assert stats["pool_hits"] > 1000


def test_what_is_made_of_numbers_counts_as_the_devices_memory(monkeypatch):
    mega = 1 << 20
    pool = lbrx.metal.context().pool
    gc.collect()
    pool.trim()  # blocks that earlier tests left would be taken without a request
    before = pool.statistics().in_use
    made = [lbrx.ones(mega // 4), lbrx.tensor(np.ones(mega // 4)), lbrx.arange(mega // 8)]
    made += [lbrx.tensor([0.0] * (mega // 4)), lbrx.eye(512)]
    assert pool.statistics().in_use >= before + 5 * mega
    monkeypatch.setattr(pool, "limit", pool.statistics().in_use + 4 * mega)
    with pytest.raises(lbrx.OutOfMemory, match=f"{mega:,} bytes requested"):
        made += [lbrx.zeros(mega // 4) for _ in range(5)]
    with pytest.raises(lbrx.OutOfMemory, match=f"{1 << 42:,} bytes requested"):
        lbrx.zeros(1 << 40)
    assert lbrx.zeros(mega // 4).sum().item() == 0


def test_threads_compute_side_by_side(rng):
    x = rng.standard_normal((8, 200, 30)).astype(np.float32)
    results: dict[int, list[np.ndarray]] = {}

    def work(index: int) -> None:
        own = []
        for step in range(20):
            t = lbrx.tensor(x[index], device="metal")
            own.append(((t * step + 1).T - index).numpy())
        results[index] = own

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(8):
        for step, values in enumerate(results[index]):
            np.testing.assert_allclose(
                values, (x[index] * step + 1).T - index, rtol=1e-5, atol=1e-5
            )


def test_the_cpu_is_described_where_nothing_else_is(monkeypatch):
    def refuse():
        raise lbrx.DeviceError("none")

    monkeypatch.setattr(lbrx.metal, "devices", refuse)
    (info,) = lbrx.devices()
    assert (info.name, info.simd_hardware, info.chip) == ("cpu", False, None)
    assert info.cores
    assert info.memory_limit > 0
    assert devices.get("cpu").name == "cpu"
