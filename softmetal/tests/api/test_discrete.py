"""A device with its own memory, on the CPU: what the host wrote and what kernels wrote both arrive."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

import softmetal
from softmetal.api.device import MTLDevice
from softmetal.errors import ValidationError
from softmetal.executors.cpu import CpuExecutor

SHARED = softmetal.MTLResourceStorageModeShared
PRIVATE = softmetal.MTLResourceStorageModePrivate
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add(device uint* x [[buffer(0)]], constant uint& n [[buffer(1)]],
                uint i [[thread_position_in_grid]]) { x[i] += n; }
kernel void total(device const uint* x [[buffer(0)]], device atomic_uint* sum [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(sum, x[i], memory_order_relaxed);
}
struct Reach { device uint* there; };
kernel void reach(constant Reach& r [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  r.there[i] = r.there[i] * 2 + i;
}
"""


class Discrete:
    """The device, its kernels, and views of its buffers."""

    def __init__(self) -> None:
        self.executor = CpuExecutor(unified=False)
        self.device = MTLDevice(self.executor)
        self.queue = self.device.newCommandQueue()
        library, error = self.device.newLibraryWithSource_options_error_(SOURCE, None, None)
        assert library is not None, error
        self.pipelines = {}
        for name in ("add", "total", "reach"):
            function = library.newFunctionWithName_(name)
            made = self.device.newComputePipelineStateWithFunction_error_(function, None)
            self.pipelines[name] = made[0]

    def buffer(self, count: int, mode: int = SHARED):
        return self.device.newBufferWithLength_options_(4 * count, mode)

    def commands(self, name: str, bindings, count: int, offset: int = 0, used=()):
        buffer = self.queue.commandBuffer()
        encoder = buffer.computeCommandEncoder()
        encoder.setComputePipelineState_(self.pipelines[name])
        for index, bound in enumerate(bindings):
            if isinstance(bound, bytes):
                encoder.setBytes_length_atIndex_(bound, len(bound), index)
            else:
                encoder.setBuffer_offset_atIndex_(bound, offset if index == 0 else 0, index)
        for resource in used:
            encoder.useResource_usage_(resource, softmetal.MTLResourceUsageWrite)
        size = softmetal.MTLSizeMake
        encoder.dispatchThreads_threadsPerThreadgroup_(
            size(count, 1, 1), size(min(count, 64), 1, 1)
        )
        encoder.endEncoding()
        return buffer

    def run(self, *arguments, **options) -> None:
        buffer = self.commands(*arguments, **options)
        buffer.commit()
        buffer.waitUntilCompleted()
        assert buffer.error() is None, buffer.error()

    def moved(self, work) -> tuple[int, int]:
        """The bytes that `work` moves to the device and from it."""
        before = self.executor.mirror_traffic()
        work()
        after = self.executor.mirror_traffic()
        return after[0] - before[0], after[1] - before[1]


@pytest.fixture(scope="module")
def discrete() -> Discrete:
    return Discrete()


def numbers(buffer) -> np.ndarray:
    return np.frombuffer(buffer.contents().as_buffer(buffer.length()), np.uint32)


def word(value: int) -> bytes:
    return np.uint32(value).tobytes()


def test_memory_is_the_devices(discrete):
    buffer = discrete.buffer(16)
    assert not discrete.device.hasUnifiedMemory()
    assert buffer.gpuAddress() != int(buffer.contents())
    with pytest.raises(ValidationError):
        discrete.buffer(16, PRIVATE).contents()


@pytest.mark.parametrize("count", [1, 63, 1000, 5000])
def test_both_sides_see_what_the_other_wrote(discrete, count):
    buffer = discrete.buffer(count)
    view = numbers(buffer)
    view[:] = np.arange(count)
    for step in range(3):
        discrete.run("add", [buffer, word(7)], count)
        np.testing.assert_array_equal(view, np.arange(count) + 7 * (step + 1) + step)
        view += 1


def test_only_changes_move(discrete):
    count = 1 << 16
    buffer, rest = discrete.buffer(count), discrete.buffer(count)
    view = numbers(buffer)
    view[:] = 1
    numbers(rest)[:] = 1
    sums = discrete.buffer(1, PRIVATE)
    discrete.run("total", [buffer, sums], count)
    sent, back = discrete.moved(lambda: discrete.run("total", [buffer, sums], count))
    assert (sent, back) == (0, 0)
    view[5] = 0x01010101
    sent, back = discrete.moved(lambda: discrete.run("total", [buffer, sums], count))
    assert (sent, back) == (3, 0)  # one byte of four stays as it is
    small = discrete.moved(lambda: discrete.run("add", [buffer, word(1)], 10, offset=400))
    assert small[1] == 10
    np.testing.assert_array_equal(view[100:110], 2)


def test_neither_side_overwrites_the_other(discrete):
    """The host writes one half of a buffer while a kernel writes the other."""
    buffer, gate = discrete.buffer(2048), discrete.device.newSharedEvent()
    view = numbers(buffer)
    view[:] = 5
    first = discrete.queue.commandBuffer()
    first.encodeWaitForEvent_value_(gate, 1)
    first.commit()
    work = discrete.commands("add", [buffer, word(1)], 1024)
    work.commit()
    view[1024:] = 9
    later = discrete.commands("add", [buffer, word(100)], 1024, offset=4096)
    later.commit()
    view[1024] = 77  # after the commit: the kernel in flight gets 9
    gate.setSignaledValue_(1)
    later.waitUntilCompleted()
    np.testing.assert_array_equal(view[:1024], 6)
    np.testing.assert_array_equal(view[1025:], 109)


def test_an_event_announces_what_was_written(discrete):
    buffer, event = discrete.buffer(256), discrete.device.newSharedEvent()
    view = numbers(buffer)
    for step in range(1, 20):
        work = discrete.commands("add", [buffer, word(1)], 256)
        work.encodeSignalEvent_value_(event, step)
        work.commit()
        assert event.waitUntilSignaledValue_timeoutMS_(step, 60_000)
        assert (view == step).all()


def test_addresses_in_memory_reach_announced_resources(discrete):
    there = discrete.buffer(100)
    numbers(there)[:] = 3
    address = np.uint64(there.gpuAddress()).tobytes()
    discrete.run("reach", [address], 100, used=[there])
    np.testing.assert_array_equal(numbers(there), 6 + np.arange(100))


def test_arrays_of_the_program_and_heaps(discrete):
    array = np.arange(3000, dtype=np.uint32)
    make = discrete.device.newBufferWithBytesNoCopy_length_options_deallocator_
    discrete.run("add", [make(array, array.nbytes, SHARED, None), word(2)], 3000)
    np.testing.assert_array_equal(array, np.arange(3000) + 2)
    descriptor = softmetal.MTLHeapDescriptor.alloc().init()
    descriptor.setSize_(1 << 16)
    descriptor.setStorageMode_(softmetal.MTLStorageModeShared)
    heap = discrete.device.newHeapWithDescriptor_(descriptor)
    parts = [heap.newBufferWithLength_options_(1024, SHARED) for _ in range(3)]
    for index, part in enumerate(parts):
        numbers(part)[:] = index
    discrete.run("add", [parts[1], word(10)], 256)
    assert [int(numbers(part)[7]) for part in parts] == [0, 11, 2]


def test_a_private_buffer_is_filled_and_read_by_copies(discrete):
    staging, private = discrete.buffer(500), discrete.buffer(500, PRIVATE)
    numbers(staging)[:] = 4
    copy = "copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_"
    for source, target in ((staging, private), (private, staging)):
        buffer = discrete.queue.commandBuffer()
        encoder = buffer.blitCommandEncoder()
        getattr(encoder, copy)(source, 0, target, 0, 2000)
        encoder.endEncoding()
        buffer.commit()
        buffer.waitUntilCompleted()
        if target is private:
            discrete.run("add", [private, word(1)], 500)
            numbers(staging)[:] = 0
    np.testing.assert_array_equal(numbers(staging), 5)


def blit(discrete, *copies, commands=None):
    """Copies of (source, target, words) in a command buffer."""
    buffer = commands or discrete.queue.commandBuffer()
    encoder = buffer.blitCommandEncoder()
    for source, target, words in copies:
        encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
            source, 0, target, 0, 4 * words
        )
    encoder.endEncoding()
    return buffer


def test_copies_use_the_hosts_side_directly(discrete):
    """A buffer that only copies use is never mirrored, so nothing of it is compared or moved."""
    staging, private, back = (discrete.buffer(4000, m) for m in (SHARED, PRIVATE, SHARED))
    numbers(staging)[:] = np.arange(4000)
    numbers(back)[:] = 7

    def work():
        commands = blit(discrete, (staging, private, 4000), (private, back, 3000))
        commands.commit()
        commands.waitUntilCompleted()

    assert discrete.moved(work) == (0, 0)
    np.testing.assert_array_equal(numbers(back)[:3000], np.arange(3000))
    np.testing.assert_array_equal(numbers(back)[3000:], 7)


def test_a_kernel_uses_what_was_copied_to_a_staging_buffer(discrete):
    """Also in a list that is submitted before the copy has run; and a copy to a buffer that a kernel
    has used."""
    source = discrete.buffer(300)
    numbers(source)[:] = 5
    for together in (True, False):
        target = discrete.buffer(300)
        numbers(target)[:] = 1
        first = blit(discrete, (source, target, 300))
        if not together:
            first.commit()
        last = discrete.commands("add", [target, word(2)], 300)
        for each in [first, last] if together else [last]:
            each.commit()
        last.waitUntilCompleted()
        np.testing.assert_array_equal(numbers(target), 7)
        numbers(source)[:] = 6
        again = blit(discrete, (source, target, 200))
        again.commit()
        again.waitUntilCompleted()
        np.testing.assert_array_equal(numbers(target)[:200], 6)
        np.testing.assert_array_equal(numbers(target)[200:], 7)
        numbers(source)[:] = 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_contents_asked_for_while_a_kernel_runs(discrete, when):
    buffer, gate = discrete.buffer(500), discrete.device.newSharedEvent()
    waits = discrete.queue.commandBuffer()
    waits.encodeWaitForEvent_value_(gate, 1)
    waits.commit()
    if when == "before":
        numbers(buffer)[:] = 10
    work = discrete.commands("add", [buffer, word(3)], 500)
    work.commit()
    view = numbers(buffer)  # the kernel has not run yet
    gate.setSignaledValue_(1)
    work.waitUntilCompleted()
    np.testing.assert_array_equal(view, 13 if when == "before" else 3)


def read(discrete, private) -> np.ndarray:
    """What a private buffer holds."""
    count = private.length() // 4
    result = discrete.buffer(count)
    commands = blit(discrete, (private, result, count))
    commands.commit()
    commands.waitUntilCompleted()
    return numbers(result).copy()


def test_values_of_set_bytes_are_copied(discrete):
    """They are not compared with what the device has, and lists in flight keep their own."""
    private = discrete.buffer(100, PRIVATE)

    def work():
        lists = [discrete.commands("add", [private, word(n)], 100) for n in range(500)]
        for each in lists:
            each.commit()
        lists[-1].waitUntilCompleted()

    assert discrete.moved(work) == (0, 0)
    np.testing.assert_array_equal(read(discrete, private), 499 * 500 // 2)


def test_more_values_than_an_arena_holds(discrete):
    private, size = discrete.buffer(100, PRIVATE), softmetal.MTLSizeMake
    commands = discrete.queue.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(discrete.pipelines["add"])
    encoder.setBuffer_offset_atIndex_(private, 0, 0)
    for n in range(50):
        encoder.setBytes_length_atIndex_(np.full(1024, n, np.uint32).tobytes(), 4096, 1)
        encoder.dispatchThreads_threadsPerThreadgroup_(size(100, 1, 1), size(32, 1, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    np.testing.assert_array_equal(read(discrete, private), 49 * 50 // 2)


def test_values_that_the_device_has_are_not_copied_again(discrete):
    arena = discrete.device._new_arena()
    arena.put(word(1))
    second = arena.put(word(2))
    [copy] = arena.upload()
    assert copy.size == 128
    assert copy.destination == second - 64
    for values, copies in (((1,), 0), ((1, 2), 0), ((1, 3), 1), ((1, 3, 4), 1), ((2,), 1)):
        arena.clear()
        for value in values:
            arena.put(word(value))
        assert len(arena.upload()) == copies, values
    assert not arena.upload()
    arena.failed()
    assert arena.upload()


def test_values_after_a_list_that_failed(discrete):
    """A list whose memory cannot be read copies nothing: the next one with its values does."""
    pages = mmap.mmap(-1, 1 << 16)
    address = np.frombuffer(pages, np.uint8).ctypes.data
    make = discrete.device.newBufferWithBytesNoCopy_length_options_deallocator_
    borrowed = make(np.frombuffer(pages, np.uint8), 1 << 16, SHARED, None)
    discrete.run("add", [borrowed, word(77)], 10)
    libc, protection = ctypes.CDLL(None), ctypes.c_void_p(address)
    libc.mprotect(protection, 1 << 16, 0)
    failed = discrete.commands("add", [borrowed, word(78)], 10)
    failed.commit()
    failed.waitUntilCompleted()
    libc.mprotect(protection, 1 << 16, mmap.PROT_READ | mmap.PROT_WRITE)
    assert "cannot be read" in str(failed.error())
    private = discrete.buffer(10, PRIVATE)
    discrete.run("add", [private, word(78)], 10)
    np.testing.assert_array_equal(read(discrete, private), 78)
