"""Buffers and heaps: who sees whose bytes, and for how long."""

from __future__ import annotations

import ctypes
import gc
import mmap
import threading

import numpy as np
import pytest
from hypothesis import given, seed
from hypothesis import strategies as st
from seeds import SEED, generator

import softmetal
from softmetal.api.heap import FreeList
from softmetal.errors import ValidationError

SHARED, PRIVATE = 0, 32


def fill(device, buffer, start, count, value):
    """Let the device write."""
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.blitCommandEncoder()
    encoder.fillBuffer_range_value_(buffer, softmetal.NSMakeRange(start, count), value)
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None


@pytest.mark.metal
def test_contents_is_the_memory_itself(device):
    buffer = device.newBufferWithLength_options_(100, SHARED)
    view = buffer.contents().as_buffer(100)
    assert not view.readonly
    assert view.format == "B"
    view[7] = 9
    assert buffer.contents().as_buffer(8)[7] == 9
    assert buffer.length() == 100
    assert buffer.storageMode() == 0
    buffer.setLabel_("mine")
    assert buffer.label() == "mine"


def test_pointers_check_their_length(device):
    pointer = device.newBufferWithLength_options_(4, SHARED).contents()
    assert len(pointer.as_buffer(0)) == 0
    assert pointer.as_tuple(2) == (b"\0", b"\0")
    pointer[1] = b"x"
    assert pointer[1] == b"x"
    with pytest.raises(ValidationError, match="5 bytes"):
        pointer.as_buffer(5)


@pytest.mark.metal
@pytest.mark.parametrize("length", [1, 4095, 4097])
def test_a_buffer_from_bytes_is_a_copy(device, length):
    data = bytearray(generator(length).bytes(length))
    buffer = device.newBufferWithBytes_length_options_(bytes(data), length, SHARED)
    assert bytes(buffer.contents().as_buffer(length)) == data
    data[0] ^= 1
    assert buffer.contents().as_buffer(1)[0] != data[0]


def test_a_new_buffer_is_zero(device):
    assert bytes(device.newBufferWithLength_options_(5000, SHARED).contents().as_buffer(5000)) == (
        b"\0" * 5000
    )


def test_an_impossible_length_gives_none(device):
    assert device.newBufferWithLength_options_(1 << 60, SHARED) is None


def test_private_buffers_hide_their_contents(device):
    buffer = device.newBufferWithLength_options_(64, PRIVATE)
    with pytest.raises(ValidationError, match="private"):
        buffer.contents()
    assert buffer.storageMode() == softmetal.MTLStorageModePrivate


@pytest.mark.metal
def test_no_copy_over_a_mapping(device):
    memory = mmap.mmap(-1, 65536)
    buffer = device.newBufferWithBytesNoCopy_length_options_deallocator_(
        memory, 65536, SHARED, None
    )
    memory[5] = 77  # host to device
    assert buffer.contents().as_buffer(6)[5] == 77
    fill(device, buffer, 1000, 24, 0x2B)  # device to host
    assert memory[999:1025] == b"\0" + b"\x2b" * 24 + b"\0"


def test_no_copy_takes_any_buffer(device):
    array = np.zeros(1003, "u1")[1:]
    buffer = device.newBufferWithBytesNoCopy_length_options_deallocator_(array, 1002, SHARED, None)
    fill(device, buffer, 4, 996, 3)
    assert not array[:4].any()
    assert (array[4:1000] == 3).all()
    assert not array[1000:].any()
    frozen = device.newBufferWithBytesNoCopy_length_options_deallocator_(b"abcd", 4, SHARED, None)
    assert bytes(frozen.contents().as_buffer(4)) == b"abcd"
    with pytest.raises(ValidationError, match="5"):
        device.newBufferWithBytesNoCopy_length_options_deallocator_(b"abcd", 5, SHARED, None)
    with pytest.raises(TypeError):
        device.newBufferWithBytesNoCopy_length_options_deallocator_(17, 4, SHARED, None)


def test_the_deallocator_runs_when_the_last_user_is_gone(device):
    calls = []
    memory = bytearray(4096)
    buffer = device.newBufferWithBytesNoCopy_length_options_deallocator_(
        memory, 4096, SHARED, lambda pointer, length: calls.append((int(pointer), length))
    )
    address = int(buffer.contents())
    view = buffer.contents().as_buffer(4096)
    del buffer
    gc.collect()
    assert calls == []
    del view
    gc.collect()
    assert calls == [(address, 4096)]


def test_views_outlive_their_buffer(device):
    before = device.currentAllocatedSize()
    view = device.newBufferWithLength_options_(1 << 20, SHARED).contents().as_buffer(1 << 20)
    gc.collect()
    array = np.frombuffer(view, "u1")
    del view
    array[:] = 5
    assert array.sum() == 5 << 20
    assert device.currentAllocatedSize() >= before + (1 << 20)
    del array
    gc.collect()
    assert device.currentAllocatedSize() == before


def test_pending_work_keeps_its_buffers(device):
    gc.collect()  # what earlier tests left
    queue, event = device.newCommandQueue(), device.newSharedEvent()
    target = device.newBufferWithLength_options_(1 << 16, SHARED)
    before = device.currentAllocatedSize()
    commands = queue.commandBuffer()
    commands.encodeWaitForEvent_value_(event, 1)
    encoder = commands.blitCommandEncoder()
    source = device.newBufferWithBytes_length_options_(b"\7" * (1 << 16), 1 << 16, SHARED)
    encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
        source, 0, target, 0, 1 << 16
    )
    encoder.endEncoding()
    commands.commit()
    del source, encoder
    gc.collect()
    assert device.currentAllocatedSize() == before + (1 << 16)
    event.setSignaledValue_(1)
    commands.waitUntilCompleted()
    assert bytes(target.contents().as_buffer(1 << 16)) == b"\7" * (1 << 16)
    assert device.currentAllocatedSize() == before


def test_work_of_a_forgotten_queue_still_ends(device):
    event = device.newSharedEvent()
    target = device.newBufferWithLength_options_(4096, SHARED)
    commands = device.newCommandQueue().commandBuffer()
    commands.encodeWaitForEvent_value_(event, 1)
    encoder = commands.blitCommandEncoder()
    encoder.fillBuffer_range_value_(target, (0, 4096), 6)
    encoder.endEncoding()
    commands.encodeSignalEvent_value_(event, 2)
    commands.commit()
    del commands, encoder
    gc.collect()
    event.setSignaledValue_(1)
    assert event.waitUntilSignaledValue_timeoutMS_(2, 60_000)
    assert bytes(target.contents().as_buffer(4096)) == b"\6" * 4096


def test_resource_properties(device):
    options = softmetal.MTLResourceHazardTrackingModeUntracked | 1 | 16  # managed
    buffer = device.newBufferWithLength_options_(4097, options)
    assert buffer.resourceOptions() == options
    assert buffer.hazardTrackingMode() == softmetal.MTLHazardTrackingModeUntracked
    assert buffer.cpuCacheMode() == softmetal.MTLCPUCacheModeWriteCombined
    assert buffer.allocatedSize() == 8192
    assert buffer.heap() is None
    assert buffer.setPurgeableState_(3) == softmetal.MTLPurgeableStateNonVolatile
    assert buffer.setPurgeableState_(softmetal.MTLPurgeableStateKeepCurrent) == 3
    assert buffer.device() is device
    buffer.didModifyRange_((0, 4097))
    with pytest.raises(ValidationError):
        buffer.didModifyRange_((1, 4097))
    assert buffer.retain() is buffer
    buffer.release()
    assert buffer.length() == 4097
    assert ctypes.string_at(int(buffer.contents()), 4097) == b"\0" * 4097


# ---- heaps ----


def make_heap(device, size, **properties):
    descriptor = softmetal.MTLHeapDescriptor.new()
    descriptor.setSize_(size)
    descriptor.setStorageMode_(softmetal.MTLStorageModeShared)
    for name, value in properties.items():
        getattr(descriptor, f"set{name}_")(value)
    return device.newHeapWithDescriptor_(descriptor)


def test_an_automatic_heap(device):
    heap = make_heap(device, 4096)
    assert heap.size() == heap.currentAllocatedSize() == 4096
    first = heap.newBufferWithLength_options_(1000, SHARED)
    second = heap.newBufferWithLength_options_(1024, SHARED)
    assert (first.heapOffset(), second.heapOffset()) == (0, 1024)
    assert heap.usedSize() == 2048
    assert heap.maxAvailableSizeWithAlignment_(256) == 2048
    assert heap.newBufferWithLength_options_(2049, SHARED) is None
    assert first.heap() is heap
    del first
    gc.collect()
    assert heap.usedSize() == 1024
    assert heap.newBufferWithLength_options_(1024, SHARED).heapOffset() == 0
    with pytest.raises(ValidationError, match="storage mode"):
        heap.newBufferWithLength_options_(16, PRIVATE)


def test_aliasing_in_an_automatic_heap(device):
    heap = make_heap(device, 1024)
    first = heap.newBufferWithLength_options_(1024, SHARED)
    assert not first.isAliasable()
    first.makeAliasable()
    second = heap.newBufferWithLength_options_(1024, SHARED)
    second.contents().as_buffer(1)[0] = 42
    assert first.contents().as_buffer(1)[0] == 42
    assert first.isAliasable()
    del first  # must not give its range back a second time
    gc.collect()
    assert heap.usedSize() == 1024


def test_a_placement_heap(device):
    heap = make_heap(device, 1024, Type=softmetal.MTLHeapTypePlacement)
    assert heap.type() == softmetal.MTLHeapTypePlacement
    low = heap.newBufferWithLength_options_offset_(512, SHARED, 0)
    high = heap.newBufferWithLength_options_offset_(512, SHARED, 256)
    low.contents().as_buffer(512)[256] = 1
    assert high.contents().as_buffer(1)[0] == 1
    assert high.gpuAddress() == low.gpuAddress() + 256
    with pytest.raises(ValidationError, match="heap bytes 768 to 1280"):
        heap.newBufferWithLength_options_offset_(512, SHARED, 768)


def test_buffers_keep_their_heap(device):
    before = device.currentAllocatedSize()
    buffer = make_heap(device, 1 << 16).newBufferWithLength_options_(100, SHARED)
    gc.collect()
    buffer.contents().as_buffer(100)[99] = 1
    assert device.currentAllocatedSize() == before + (1 << 16)
    del buffer
    gc.collect()
    assert device.currentAllocatedSize() == before


def test_heap_descriptors_keep_modes_in_their_options():
    descriptor = softmetal.MTLHeapDescriptor.new()
    assert descriptor.storageMode() == softmetal.MTLStorageModePrivate
    descriptor.setStorageMode_(0)
    descriptor.setHazardTrackingMode_(softmetal.MTLHazardTrackingModeTracked)
    descriptor.setCpuCacheMode_(1)
    assert descriptor.resourceOptions() == 512 | 1
    assert (descriptor.cpuCacheMode(), descriptor.hazardTrackingMode()) == (1, 2)


def test_size_and_alignment_are_enough(device):
    size, alignment = device.heapBufferSizeAndAlignWithLength_options_(1001, SHARED)
    assert size >= 1001
    assert size % alignment == 0


@seed(SEED)
@given(
    size=st.integers(0, 4096),
    steps=st.lists(
        st.tuples(st.integers(1, 700), st.sampled_from([1, 16, 256]), st.integers(0, 50)),
        max_size=60,
    ),
)
def test_the_free_list_against_a_map_of_bytes(size, steps):
    """Allocations never overlap, `largest` is true, and everything comes back."""
    free, taken = FreeList(size), {}
    for length, alignment, release in steps:
        largest = free.largest(alignment)
        offset = free.allocate(length, alignment)
        assert (offset is not None) == (length <= largest)
        if offset is not None:
            assert offset % alignment == 0
            assert offset + length <= size
            assert all(offset + length <= o or o + n <= offset for o, n in taken.items())
            taken[offset] = length
        if taken and release % 3 == 0:
            chosen = sorted(taken)[release % len(taken)]
            free.release(chosen, taken.pop(chosen))
        assert free.used == sum(taken.values())
    for offset, length in taken.items():
        free.release(offset, length)
    assert free.used == 0
    assert free.largest(1) == size


def test_a_heap_serves_many_threads(device):
    heap, problems = make_heap(device, 1 << 16), []

    def work(value):
        for _ in range(100):
            buffer = heap.newBufferWithLength_options_(300, SHARED)
            if buffer is None:
                continue
            view = np.frombuffer(buffer.contents().as_buffer(300), "u1")
            view[:] = value
            if not (view == value).all():
                problems.append(value)

    threads = [threading.Thread(target=work, args=(i + 1,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert problems == []
    assert heap.usedSize() == 0
