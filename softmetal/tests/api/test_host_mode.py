"""SOFTMETAL_STRICT=host: what macOS does otherwise than a lenient host."""

from __future__ import annotations

import gc
import mmap
import subprocess
import sys
import threading
import weakref
import zipfile

import numpy as np
import pytest
from metal_programs import Program

import softmetal
from softmetal.api import foundation, host, objc
from softmetal.api.archive import MTLBinaryArchiveDescriptor
from softmetal.api.foundation import NSURL
from softmetal.errors import ValidationError

PAGE = 16 << 10


@pytest.fixture
def strict(monkeypatch):
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    yield
    host.findings.clear()
    host._pools.stack[0].clear()


@pytest.fixture(scope="module")
def program(metal, device):
    return Program(metal, device)


def no_copy(device, memory, length):
    make = device.newBufferWithBytesNoCopy_length_options_deallocator_
    return make(memory, length, 0, None)


def test_no_copy_takes_complete_pages_of_macos(strict, device):
    memory = np.empty(4 * PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    assert no_copy(device, memory[start:], 2 * PAGE).length() == 2 * PAGE
    small = mmap.PAGESIZE
    for first, length in ((start + small, PAGE), (start, PAGE + small), (start + 1, PAGE)):
        with pytest.raises(ValidationError, match="not complete pages of 16384"):
            no_copy(device, memory[first:], length)
    assert device.newBufferWithLength_options_(1, 0).allocatedSize() == PAGE


def test_without_the_mode_any_memory_is_taken(device):
    assert no_copy(device, np.empty(100, np.uint8), 7).length() == 7


@pytest.mark.parametrize("label", [None, "weights"])
def test_a_view_that_outlives_its_buffer_is_reported(strict, device, label, caplog):
    buffer = device.newBufferWithLength_options_(64, 0)
    buffer.setLabel_(label)
    view = buffer.contents().as_buffer(64)
    view[:] = bytes(range(64))
    del buffer
    gc.collect()
    assert len(host.findings) == 1
    assert "outlives the buffer" in host.findings[0]
    assert (label or "64 bytes") in caplog.text
    assert bytes(view[:3]) == b"\0\1\2"  # reported, and still safe here


def test_a_view_that_ends_first_is_right(strict, device):
    buffer = device.newBufferWithLength_options_(64, 0)
    memory = buffer.contents()
    np.frombuffer(memory.as_buffer(64), np.uint8)[0] = 1
    del memory
    del buffer
    gc.collect()
    assert host.findings == []


def test_64_command_buffers_that_are_not_committed(strict, device):
    queue = device.newCommandQueue()
    kept = [queue.commandBuffer() for _ in range(64)]
    with pytest.raises(ValidationError, match=r"64 command buffers .* would wait for ever"):
        queue.commandBuffer()
    kept[0].commit()
    assert queue.commandBuffer() is not None


def test_the_65th_waits_for_the_first(strict, device):
    queue = device.newCommandQueueWithMaxCommandBufferCount_(2)
    event = device.newSharedEvent()
    held = queue.commandBuffer()
    held.encodeWaitForEvent_value_(event, 1)
    held.commit()
    other = queue.commandBuffer()
    other.commit()
    made = threading.Event()

    def make():
        queue.commandBuffer()
        made.set()

    thread = threading.Thread(target=make)
    thread.start()
    assert not made.wait(0.1)
    event.setSignaledValue_(1)
    assert made.wait(60)
    thread.join()


def test_dropped_command_buffers_give_their_place_back(strict, device):
    queue = device.newCommandQueueWithMaxCommandBufferCount_(2)
    for _ in range(5):
        with objc.autorelease_pool():
            queue.commandBuffer()
        gc.collect()


def test_autoreleased_objects_live_as_long_as_the_pool(strict, device):
    queue = device.newCommandQueue()
    with objc.autorelease_pool():
        with objc.autorelease_pool():
            inner = weakref.ref(queue.commandBuffer())
            assert inner() is not None
        assert inner() is None
        pool = foundation.NSAutoreleasePool.alloc().init()
        inner = weakref.ref(queue.commandBuffer())
        assert inner() is not None
        pool.drain()
        assert inner() is None
        outer = weakref.ref(queue.commandBuffer())
    assert outer() is None
    assert host.leaked() == []
    commands = queue.commandBuffer()
    commands.computeCommandEncoder().endEncoding()
    assert [type(item).__name__ for item in host.leaked()] == [
        "MTLCommandBuffer",
        "MTLComputeCommandEncoder",
    ]


# ---- indirect command buffers ----


def indirect(program, device, buffer):
    descriptor = softmetal.MTLIndirectCommandBufferDescriptor.alloc().init()
    descriptor.setCommandTypes_(softmetal.MTLIndirectCommandTypeConcurrentDispatchThreads)
    descriptor.setInheritBuffers_(False)
    descriptor.setInheritPipelineState_(False)
    descriptor.setMaxKernelBufferBindCount_(4)
    make = device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
    with pytest.raises(ValidationError, match="16385 commands"):
        make(descriptor, 16385, 0)
    commands = make(descriptor, 16384, 0)
    pipeline = softmetal.MTLComputePipelineDescriptor.alloc().init()
    pipeline.setComputeFunction_(program.library.newFunctionWithName_("add_one"))
    pipeline.setSupportIndirectCommandBuffers_(True)
    make = device.newComputePipelineStateWithDescriptor_options_reflection_error_
    slot = commands.indirectComputeCommandAtIndex_(0)
    slot.setComputePipelineState_(make(pipeline, 0, None, None)[0])
    slot.setKernelBuffer_offset_atIndex_(buffer, 0, 0)
    slot.concurrentDispatchThreads_threadsPerThreadgroup_((4, 1, 1), (4, 1, 1))
    return commands


def announced(kind, encoder, commands, buffer, queue, device):
    if kind == "resource":
        encoder.useResource_usage_(buffer, softmetal.MTLResourceUsageRead)
    elif kind == "heap":
        encoder.useHeap_(buffer.heap())
    elif kind == "set":
        descriptor = softmetal.MTLResidencySetDescriptor.alloc().init()
        members, _ = device.newResidencySetWithDescriptor_error_(descriptor, None)
        members.addAllocation_(buffer)
        members.commit()
        queue.addResidencySet_(members)


@pytest.mark.parametrize("kind", ["resource", "heap", "set", "nothing"])
def test_what_indirect_commands_use_must_be_resident(strict, program, device, kind):
    if kind == "heap":
        descriptor = softmetal.MTLHeapDescriptor.alloc().init()
        descriptor.setSize_(PAGE)
        descriptor.setStorageMode_(softmetal.MTLStorageModeShared)
        buffer = device.newHeapWithDescriptor_(descriptor).newBufferWithLength_options_(64, 0)
    else:
        buffer = device.newBufferWithLength_options_(64, 0)
    listed = indirect(program, device, buffer)
    queue = device.newCommandQueue()
    commands = queue.commandBuffer()
    encoder = commands.computeCommandEncoder()
    announced(kind, encoder, listed, buffer, queue, device)
    encoder.executeCommandsInBuffer_withRange_(listed, (0, 1))
    encoder.endEncoding()
    if kind == "nothing":
        with pytest.raises(ValidationError, match="64 bytes that is not resident"):
            commands.commit()
        return
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None


# ---- limits, errors and files ----


def test_a_command_buffer_fits_the_working_set(strict, monkeypatch, program):
    monkeypatch.setenv("SOFTMETAL_PROFILE", "apple-m1:1")
    device = softmetal.MTLCreateSystemDefaultDevice()
    limit = device.recommendedMaxWorkingSetSize()
    commands = device.newCommandQueue().commandBuffer()
    blit = commands.blitCommandEncoder()
    size = device.maxBufferLength()
    one, two = (device.newBufferWithLength_options_(size, 0) for _ in range(2))
    blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(one, 0, two, 0, 16)
    blit.endEncoding()
    with pytest.raises(ValidationError, match=f"uses {2 * size} bytes .* working set is {limit}"):
        commands.commit()


def test_a_time_out_has_its_own_code(strict):
    timed_out = "kernel `spin` did not end within 1 s (SOFTMETAL_TIMEOUT)"
    assert host.error_code(timed_out) == softmetal.MTLCommandBufferErrorTimeout
    fault = "kernel `f` at address 0x10"
    assert host.error_code(fault) == softmetal.MTLCommandBufferErrorPageFault
    assert host.error_code("something else") == softmetal.MTLCommandBufferErrorInternal


def test_archives_are_opaque_and_not_empty(strict, program, device, tmp_path):
    url = NSURL.fileURLWithPath_(str(tmp_path / "a"))
    made, _ = device.newBinaryArchiveWithDescriptor_error_(MTLBinaryArchiveDescriptor.new(), None)
    written, error = made.serializeToURL_error_(url, None)
    assert not written
    assert "empty" in error.localizedDescription()
    descriptor = softmetal.MTLComputePipelineDescriptor.new()
    descriptor.setComputeFunction_(program.library.newFunctionWithName_("add_one"))
    made.addComputePipelineFunctionsWithDescriptor_error_(descriptor, None)
    assert made.serializeToURL_error_(url, None) == (True, None)
    assert not (tmp_path / "a").read_bytes().startswith(b"PK")
    opened = MTLBinaryArchiveDescriptor.new()
    opened.setUrl_(url)
    archive, _ = device.newBinaryArchiveWithDescriptor_error_(opened, None)
    descriptor.setBinaryArchives_([archive])
    make = device.newComputePipelineStateWithDescriptor_options_reflection_error_
    only = softmetal.MTLPipelineOptionFailOnBinaryArchiveMiss
    assert make(descriptor, only, None, None)[0] is not None
    assert zipfile.is_zipfile(tmp_path / "a")


def test_a_command_buffer_keeps_the_mode_it_was_made_with(monkeypatch, device):
    queue = device.newCommandQueue()
    before = queue.commandBuffer()
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    after = queue.commandBuffer()
    monkeypatch.delenv("SOFTMETAL_STRICT")
    encoders = [commands.computeCommandEncoder() for commands in (before, after)]
    try:
        assert [encoder in host.leaked() for encoder in encoders] == [False, True]
        assert after in host.leaked()
        assert before not in host.leaked()
    finally:
        host._pools.stack[0].clear()
    for encoder, commands in zip(encoders, (before, after), strict=True):
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()


def test_a_program_ends_with_objects_in_the_last_pool(monkeypatch):
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    text = (
        "import softmetal\n"
        "queue = softmetal.MTLCreateSystemDefaultDevice().newCommandQueue()\n"
        "commands = queue.commandBuffer()\n"
        "commands.commit()\n"
        "commands.waitUntilCompleted()\n"
    )
    command = [sys.executable, "-c", text]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
