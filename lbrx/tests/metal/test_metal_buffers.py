"""Buffers of the pool, of heaps and over the host's memory."""

from __future__ import annotations

import gc
import mmap
import threading
from dataclasses import replace

import numpy as np
import pytest
from device_memory import shares_memory
from host_pages import shares_mapped_files

from lbrx.arrays.storage import empty_aligned
from lbrx.errors import DeviceError, OutOfMemory
from lbrx.memory.heap import FIRST_HEAP_BYTES, HEAP_BYTES
from lbrx.memory.zero_copy import PAGE, Span, page_span, shareable_span
from lbrx.metal import Context, stats
from lbrx.metal.binding import Metal, page_size
from lbrx.metal.mapped_buffers import MappedBuffers, view_over

GROUP = (64, 1, 1)

pytestmark = pytest.mark.metal


def aligned(count, dtype=np.float32):
    """An array in new memory pages."""
    size = max(1, count * np.dtype(dtype).itemsize)
    memory = mmap.mmap(-1, size)
    page = page_size()
    if np.frombuffer(memory, np.uint8).ctypes.data % page == 0:
        return np.frombuffer(memory, dtype)[:count]
    # Linux maps at multiples of 4 KiB, and pages have 16 with the rules of macOS.
    memory = mmap.mmap(-1, size + 2 * page)
    first = -np.frombuffer(memory, np.uint8).ctypes.data % page
    return np.frombuffer(memory, dtype, count, first)


def shares(buffer, array):
    """Whether the array lies within the buffer's memory."""
    start = array.ctypes.data
    return buffer.address <= start and start + array.nbytes <= buffer.address + buffer.size


def test_an_empty_buffer_and_an_empty_grid(gpu, fill):
    before = gpu.queue.counts()
    empty = gpu.upload(np.empty(0, np.float32))
    gpu.queue.dispatch(fill, [empty, bytes(4)], (0, 1, 1), GROUP)
    assert empty.array().size == 0
    assert gpu.queue.counts() == before


# ---- zero copy ----


@shares_memory
@shares_mapped_files
def test_an_array_sees_the_device_s_writes_and_back(gpu, fill):
    host = aligned(4096, np.uint32)
    buffer = gpu.share(host)
    gpu.queue.dispatch(fill, [buffer, np.uint32(9).tobytes()], (4096, 1, 1), GROUP)
    gpu.queue.wait()
    assert (host == 9).all()
    host[7] = 5
    view = buffer.array(np.uint32)
    assert view[7] == 5
    assert shares(buffer, host)
    assert np.shares_memory(view, host)


@shares_memory
def test_a_buffer_s_array_keeps_its_memory(gpu):
    view = gpu.upload(np.arange(1000, dtype=np.int32)).array(np.int32)
    gc.collect()
    others = [gpu.upload(np.zeros(1000, np.int32)) for _ in range(4)]
    np.testing.assert_array_equal(view, np.arange(1000))
    address = view.ctypes.data
    del view
    assert gpu.buffer(4000).address == address
    del others


@shares_memory
@shares_mapped_files
def test_a_mapped_file_is_one_buffer(gpu, copy, tmp_path):
    path = tmp_path / "weights"
    values = np.arange(10_000, dtype=np.float32)
    path.write_bytes(b"head" + values.tobytes())
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped = np.frombuffer(mapping, np.float32, offset=4)
    low, high = gpu.share(mapped[:100]), gpu.share(mapped[5000:])
    assert low.block is high.block
    assert shares(low, mapped[:100])
    assert shares(high, mapped[5000:])
    target = gpu.buffer(high.size)
    gpu.queue.dispatch(copy, [high, target], (5000, 1, 1), GROUP)
    np.testing.assert_array_equal(target.array(np.float32), values[5000:])
    assert not low.array(np.float32).flags.writeable
    with pytest.raises(BufferError):
        mapping.close()


@shares_memory
def test_pending_work_keeps_host_memory(gpu, copy, gate):
    target = gpu.buffer(4 << 20)
    host = aligned(1 << 20, np.uint32)
    host[:] = 3
    gpu.queue.dispatch(copy, [gpu.share(host), target], (1 << 20, 1, 1), GROUP)
    gpu.queue.commit()
    del host
    gc.collect()
    others = [aligned(1 << 20, np.uint32) for _ in range(3)]
    gate.release()
    assert (target.array(np.uint32) == 3).all()
    del others


def test_memory_in_part_of_a_page_is_copied(gpu):
    # An array that owns all of a page but its first byte, wherever the memory is.
    memory = bytearray(2 * PAGE)
    first = -np.frombuffer(memory, np.uint8).ctypes.data % PAGE + 1
    odd = np.frombuffer(memoryview(memory)[first : first + PAGE - 1], np.uint8)
    assert gpu.share(odd) is None
    assert gpu.share(aligned(64)[::2]) is None
    assert gpu.share(np.empty(0)) is None


@shares_memory
def test_lbrx_s_own_arrays_are_shared(gpu):
    for shape in ((3,), (100, 100), (PAGE // 4,)):
        host = empty_aligned(shape)
        assert shares(gpu.share(host), host)


def test_the_page_rule():
    assert page_span(4096, 4096, 4096) == Span(4096, 4096)
    assert page_span(5000, 10, 4096) == Span(4096, 4096)
    assert page_span(8191, 2, 4096) == Span(4096, 8192)
    own = np.empty(3 * PAGE, np.uint8)
    start = -own.ctypes.data % PAGE
    # A page within the array, then the pages at its ends, which it does not own completely.
    page = Span(own.ctypes.data + start, PAGE)
    assert shareable_span(own[start + 8 : start + PAGE - 1]) == page
    assert own.ctypes.data % PAGE == 0 or shareable_span(own[:PAGE]) is None
    assert own.ctypes.data % PAGE == 0 or shareable_span(own[2 * PAGE :]) is None
    mapped = aligned(PAGE, np.uint8)
    assert shareable_span(mapped[5:9]) == Span(mapped.ctypes.data, PAGE)


@shares_memory
@shares_mapped_files
def test_a_mapping_longer_than_any_buffer_is_taken_in_parts(gpu, monkeypatch):
    host = aligned(4 * PAGE, np.uint8)
    monkeypatch.setattr(gpu, "info", replace(gpu.info, max_buffer=2 * PAGE))
    monkeypatch.setattr(gpu, "_mapped", MappedBuffers(gpu._host_block, PAGE, 2 * PAGE))
    assert gpu.share(host) is None
    part = gpu.share(host[PAGE + 8 : 2 * PAGE])
    assert part.block.length == 2 * PAGE
    assert shares(part, host[PAGE + 8 : 2 * PAGE])
    assert gpu.share(host[2 * PAGE : 3 * PAGE]).block is not part.block
    assert gpu.share(host[:9]).block is part.block
    across = gpu.share(host[PAGE : 3 * PAGE])  # in no view: it has a buffer of its own
    assert (across.block.address, across.block.length) == (host.ctypes.data + PAGE, 2 * PAGE)


@pytest.mark.parametrize("length", [1, 39, 40, 41, 70, 71, 100, 333])
def test_views_contain_what_is_not_longer_than_their_overlap(length):
    whole = Span(1000, length)
    for start in range(length):
        for nbytes in range(1, min(10, length - start) + 1):
            view = view_over(whole, Span(1000 + start, nbytes), longest=40, overlap=10)
            assert 1000 <= view.address <= 1000 + start
            assert view.length <= 40
            assert start + nbytes <= view.address - 1000 + view.length <= length


# ---- accounting ----


def test_thousands_of_buffers_leave_nothing(gpu):
    gpu.pool.trim()
    start = gpu.device.currentAllocatedSize()
    for size in range(1, 200_000, 61):
        gpu.buffer(size)
    kept = [gpu.buffer(10_000) for _ in range(2000)]
    assert gpu.pool.statistics().in_use >= 2000 * 10_000
    del kept
    assert gpu.pool.statistics().in_use == 0
    gpu.pool.trim()
    assert gpu.pool.statistics().cached == 0
    assert gpu.device.currentAllocatedSize() <= start


def test_thousands_of_uploads_through_a_kernel(gpu, fill):
    for number in range(2000):
        buffer = gpu.upload(np.full(100, number, np.uint32))
        gpu.queue.dispatch(fill, [buffer.slice(0, 4), bytes(4)], (1, 1, 1), GROUP)
        if number % 100 == 0:
            assert buffer.array(np.uint32).tolist() == [0, *[number] * 99]
    gpu.queue.wait()
    del buffer
    assert gpu.pool.statistics().in_use == 0
    assert gpu.pool.statistics().high_water < 2000 * 512


def test_heap_buffers(gpu):
    sizes = (1, 100_000, 0, 300_001)
    buffers = [gpu.heap_buffer(size, "weights") for size in sizes]
    for number, buffer in enumerate(buffers):
        gpu.write(buffer, np.full(buffer.size, number, np.uint8))
    for number, buffer in enumerate(buffers):
        assert (buffer.array() == number).all()
    assert len({id(buffer.handle.heap()) for buffer in buffers}) == 1
    books = gpu.pool.statistics()
    assert sum(sizes) < books.in_use < sum(sizes) + len(sizes) * 16384
    assert books.in_use + books.heaps_idle == FIRST_HEAP_BYTES
    assert gpu.pool.holders() == [("weights", books.in_use)]
    part = buffers[1].slice(5, 10)
    del buffer, buffers
    assert 100_000 <= gpu.pool.statistics().in_use < 116_384
    del part
    gpu.trim()
    books = gpu.pool.statistics()
    assert (books.in_use, books.heaps_idle) == (0, 0)


def test_a_large_heap_buffer_is_freed_at_once(gpu):
    gc.collect()  # memory of earlier tests' contexts must not be freed in between
    start = gpu.device.currentAllocatedSize()
    buffer = gpu.heap_buffer(HEAP_BYTES + 3, "caches")
    assert buffer.size == HEAP_BYTES + 3
    assert buffer.handle.heap() is not None
    assert buffer.handle.hazardTrackingMode() == Metal.MTLHazardTrackingModeTracked
    assert gpu.device.currentAllocatedSize() >= start + HEAP_BYTES
    books = gpu.pool.statistics()
    assert HEAP_BYTES < books.in_use < HEAP_BYTES + 70_000
    assert books.heaps_idle == 0
    del buffer
    assert gpu.pool.statistics().in_use == gpu.pool.statistics().heaps_idle == 0
    assert gpu.device.currentAllocatedSize() <= start


def test_pending_work_keeps_its_heap(gpu, gate, fill, copy):
    """Memory of a heap must not be reused while the device still uses it."""
    result = gpu.upload(np.zeros(1000, np.uint32))
    buffer = gpu.heap_buffer(4000, "weights")
    gpu.queue.dispatch(fill, [buffer, np.uint32(7).tobytes()], (1000, 1, 1), GROUP)
    gpu.queue.dispatch(copy, [buffer, result], (1000, 1, 1), GROUP)
    gpu.queue.commit()
    del buffer
    gpu.trim()
    others = [gpu.heap_buffer(4000, "weights") for _ in range(3)]
    for other in others:
        gpu.write(other, np.ones(other.size, np.uint8))
    gate.release()
    assert (result.array(np.uint32) == 7).all()
    assert all((other.array() == 1).all() for other in others)


def test_out_of_memory_says_what_holds_it():
    gpu = Context(memory_limit=10 << 20)
    weights = gpu.buffer(6 << 20, "weights")
    gpu.buffer(3 << 20, "scratch")
    again = gpu.buffer(4 << 20, "scratch")  # fits because the 3 MiB block was returned
    with pytest.raises(OutOfMemory, match=r"weights 6,291,456, scratch 4,194,304") as caught:
        gpu.buffer(1 << 20)
    assert (caught.value.requested, caught.value.in_use) == (1 << 20, 10 << 20)
    with pytest.raises(OutOfMemory):
        gpu.heap_buffer(1 << 20, "weights")
    del weights
    assert gpu.buffer(5 << 20).size == 5 << 20
    del again
    gpu.close()


def test_more_than_the_longest_buffer(gpu):
    with pytest.raises(OutOfMemory):
        gpu.buffer(gpu.info.max_buffer + 1)
    with pytest.raises(OutOfMemory):
        gpu.heap_buffer(gpu.info.max_buffer + 1, "caches")


def test_many_threads_share_a_context(gpu, fill):
    wrong = []

    def work(seed: int) -> None:
        for i in range(60):
            count = 1 + (seed * 31 + i * 97) % 5000
            buffer = gpu.upload(np.zeros(count, np.uint32))
            value = np.uint32(seed * 1000 + i)
            gpu.queue.dispatch(fill, [buffer, value.tobytes()], (count, 1, 1), GROUP)
            if not (buffer.array(np.uint32) == value).all():
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert gpu.queue.counts()["fill"] == 360


def test_wrong_ranges_are_refused(gpu):
    buffer = gpu.buffer(100)
    with pytest.raises(ValueError, match="bytes 50 to 101 are not within a buffer of 100 bytes"):
        buffer.slice(50, 51)


def test_a_closed_context_is_refused(gpu):
    gpu.close()
    with pytest.raises(DeviceError, match="closed"):
        gpu.buffer(4)


def test_stats_has_the_agreed_names():
    figures = stats()
    assert {"dispatches", "bytes_in_use", "pool_hits", "kernels"} <= set(figures)
