"""Storages: host pages, mapped files, parts of them, and Metal buffers."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest
from device_memory import shares_memory
from host_pages import shares_mapped_files

import lbrx
from lbrx.arrays import shape as sh
from lbrx.arrays.storage import Array, CpuStorage, MetalStorage, MmapStorage, ViewStorage
from lbrx.errors import FormatError
from lbrx.tensors import Tensor

pytestmark = pytest.mark.usefixtures("cpu_default")


@pytest.mark.parametrize("shape", [(), 0, 1, (3, 5), (1000, 7)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_empty_aligned(shape, dtype):
    a = lbrx.empty_aligned(shape, dtype)
    assert a.size == 0 or a.ctypes.data % mmap.PAGESIZE == 0
    assert np.shares_memory(lbrx.from_numpy(a, copy=False).numpy(), a) or a.size == 0
    assert a.shape == (shape if isinstance(shape, tuple) else (shape,))
    assert a.flags.writeable
    assert a.flags.c_contiguous


@pytest.mark.parametrize(
    "view",
    [lambda a: a, lambda a: a.T, lambda a: a[::-1, ::2], lambda a: a[:, :3], lambda a: a[1:, 1:]],
)
def test_from_numpy_shares_whole_pages(view):
    a = lbrx.empty_aligned((4, 6))
    a[:] = np.arange(24).reshape(4, 6)
    t = lbrx.from_numpy(view(a), copy=False)
    assert np.shares_memory(t.numpy(), a)
    np.testing.assert_array_equal(t.numpy(), view(a))
    a[:] = 9
    assert (t == 9).all()


def test_from_numpy_copies_the_rest_once():
    a = np.ones(10, np.float32)
    odd = lbrx.empty_aligned(10, "uint8")[1:9].view(np.float32)
    odd[:] = 1
    for source in (
        a,
        odd,
        np.ones(3)[::2],
        np.zeros(2, [("x", "i1"), ("y", "f4")])["y"],
        np.ones(2, ">i2"),
    ):
        t = lbrx.from_numpy(source)
        assert not np.shares_memory(t.numpy(), source)
        assert t.storage.address % mmap.PAGESIZE == 0
        np.testing.assert_array_equal(t.numpy(), source)
    with pytest.raises(
        ValueError, match=r"cannot share the memory of float32\[10\], it does not .*: create"
    ):
        lbrx.from_numpy(a, copy=False)
    aligned = lbrx.empty_aligned(3)
    assert not np.shares_memory(lbrx.from_numpy(aligned, copy=True).numpy(), aligned)


def test_memory_lives_as_long_as_a_view():
    t = lbrx.full(1 << 16, 5)
    part = t[100:200]
    array = part.numpy()
    del t, part
    lbrx.zeros(1 << 16)
    assert (array == 5).all()


def test_mapped_files_are_read_when_looked_at(tmp_path):
    path = tmp_path / "weights"
    values = np.arange(3000, dtype=np.float32)
    path.write_bytes(b"header.." + values.tobytes())
    storage = MmapStorage(path, 8, values.nbytes)
    t = Tensor(Array(storage, sh.contiguous((30, 100)), lbrx.float32))
    row = t[7]
    assert not storage.is_made
    np.testing.assert_array_equal(row.numpy(), values[700:800])
    assert storage.is_made
    assert storage.address % mmap.PAGESIZE == 8
    assert not t.storage.host().flags.writeable
    assert (t + 1).storage.host().flags.writeable
    assert t.device == "cpu"


def test_a_tensor_of_a_file_is_a_view_of_it(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)))
    whole = MmapStorage(path)
    part = ViewStorage(whole, 200, 40)
    assert not whole.is_made
    assert (whole.nbytes, part.nbytes, part.device) == (256, 40, "cpu")
    assert part.host().tolist() == list(range(200, 240))
    assert part.address == whole.address + 200
    assert "ViewStorage of 40 bytes at 200 of <MmapStorage of 256 bytes at 0" in repr(part)
    with pytest.raises(lbrx.ShapeError, match="bytes 250 to 260 are not within"):
        ViewStorage(whole, 250, 10)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 11), (11, 0), (-1, 2), (4, -1), (11, None)])
def test_ranges_beyond_a_file_are_refused(tmp_path, offset, nbytes):
    path = tmp_path / "short"
    path.write_bytes(b"0123456789")
    with pytest.raises(lbrx.FormatError, match=r"has 10 bytes, not .*cut short"):
        MmapStorage(path, offset, nbytes)
    assert MmapStorage(path, 10).host().size == 0


def test_metal_storage_is_a_range_of_a_buffer():
    class Buffer:
        def __init__(self):
            self.bytes = np.arange(64, dtype=np.uint8)
            self.address = self.bytes.ctypes.data
            self.size = 64

        def slice(self, offset, size):
            part = Buffer()
            part.bytes = self.bytes[offset : offset + size]
            return part

        def array(self):
            return self.bytes

    storage = MetalStorage(Buffer(), 16, 8)
    assert (storage.nbytes, storage.device) == (8, "metal")
    assert storage.host().tolist() == list(range(16, 24))
    assert storage.address == storage.buffer.address + 16


def test_storages_say_what_they_are():
    assert repr(CpuStorage.allocate(12)) == "<CpuStorage of 12 bytes>"
    assert CpuStorage.allocate(0).nbytes == 0


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 20_000), (5000, 1), (4096, 8192), (7, 0)])
def test_forgotten_pages_are_read_again(tmp_path, rng, offset, nbytes):
    data = rng.integers(0, 256, 20_000, np.uint8)
    (tmp_path / "f").write_bytes(data.tobytes())
    whole = MmapStorage(tmp_path / "f")
    whole.forget(offset, nbytes)  # before anything is mapped
    np.testing.assert_array_equal(whole.host(), data)
    whole.forget(offset, nbytes)
    np.testing.assert_array_equal(whole.host(), data)


# ---- a file that shrinks while it is mapped ----

FLOATS = 3 * mmap.PAGESIZE  # 12 pages


@pytest.fixture
def shrinking(tmp_path):
    """A mapped file of floats, and a function that cuts the file to one page."""
    path = tmp_path / "weights"
    path.write_bytes(np.ones(FLOATS, np.float32).tobytes())
    return MmapStorage(path), lambda: os.truncate(path, mmap.PAGESIZE)


USES = {
    "read": lambda x: x.numpy().sum(),
    "list": lambda x: x.tolist(),
    "compute": lambda x: (x + 1).numpy(),
    "slice": lambda x: x[-5:].numpy().sum(),
    "copy": lambda x: lbrx.asarray(x, copy=True).numpy(),
    "move": lambda x: x.to_device("metal").numpy().sum(),
    "product": lambda x: (x @ x).item(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("touched", [False, True])
def test_a_shrunken_file_is_an_error_on_the_cpu(shrinking, use, touched):
    storage, shrink = shrinking
    x = Tensor(Array(storage, sh.contiguous((FLOATS,)), lbrx.float32))
    if touched:
        USES[use](x)
    shrink()
    with pytest.raises(FormatError, match=r"weights was cut short.* has only 4096 bytes"):
        USES[use](x)


@shares_memory
@shares_mapped_files
def test_a_shrunken_file_is_an_error_for_host_reads_of_a_metal_tensor(shrinking):
    storage, shrink = shrinking
    x = lbrx.from_numpy(storage.host().view(np.float32), "metal", copy=False)
    lbrx.eval(x * 2)
    shrink()
    with pytest.raises(FormatError, match="has only 4096 bytes"):
        x.numpy()


def test_a_file_that_shrank_before_its_first_use(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(5 * mmap.PAGESIZE))
    storage = MmapStorage(path, mmap.PAGESIZE + 8, 100)
    os.truncate(path, mmap.PAGESIZE)
    with pytest.raises(FormatError, match="has only 4096 bytes"):
        storage.host()


def test_a_file_that_grows_or_is_replaced_does_no_harm(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"ab" * mmap.PAGESIZE)
    storage = MmapStorage(path, 2, 4)
    assert bytes(storage.host()) == b"abab"
    with path.open("ab") as file:
        file.write(b"more")
    other = tmp_path / "y"
    other.write_bytes(b"z")
    other.rename(path)
    assert bytes(storage.host()) == b"abab"
