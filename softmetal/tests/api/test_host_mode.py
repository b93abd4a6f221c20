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
from softmetal import mps
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
    if host.played():
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


@pytest.mark.parametrize(
    ("profile", "touched", "refused"),
    [("apple-m1", "", True), ("apple-m2-max", "set", True), ("apple-m2-max", "dispatched", False),
     ("apple-m3", "", False), ("apple-m5", "", False), ("", "", False)],
)  # fmt: skip
def test_older_gpus_reach_pipelines_that_the_encoder_has_used(
    strict, metal, monkeypatch, profile, touched, refused
):
    monkeypatch.setenv("SOFTMETAL_PROFILE", profile)
    monkeypatch.setenv("SOFTMETAL_STRICT", "host,no-validation")
    device = softmetal.MTLCreateSystemDefaultDevice()
    buffer = device.newBufferWithLength_options_(64, 0)
    listed = indirect(Program(metal, device), device, buffer)
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.useResource_usage_(buffer, softmetal.MTLResourceUsageWrite)
    if touched:
        pipeline = listed.indirectComputeCommandAtIndex_(0)._pipeline
        encoder.setComputePipelineState_(pipeline)
    if touched == "dispatched":
        nothing = softmetal.MTLSizeMake(0, 0, 0)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(nothing, nothing)
    if refused:
        with pytest.raises(ValidationError, match=r"command 0 runs kernel `add_one`, .* Apple9"):
            encoder.executeCommandsInBuffer_withRange_(listed, (0, 1))
        return
    encoder.executeCommandsInBuffer_withRange_(listed, (0, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None
    assert np.frombuffer(buffer.contents().as_buffer(16), "i4").tolist() == [1, 1, 1, 1]


def test_virtual_machines_have_no_indirect_command_buffers(strict, metal, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_PROFILE", "apple-paravirtual-device")
    device = softmetal.MTLCreateSystemDefaultDevice()
    assert device.name() == "Apple Paravirtual device"
    assert not any(device.supportsFamily_(1000 + n) for n in range(1, 12))
    assert device.supportsFamily_(softmetal.MTLGPUFamilyCommon3)
    with pytest.raises(ValidationError, match="IOGPUMetalResource"):
        indirect(Program(metal, device), device, None)


def test_indirect_commands_keep_32_bits_of_an_offset(program, device, monkeypatch):
    space = mmap.mmap(-1, (4 << 30) + 4 * PAGE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    memory = np.frombuffer(space, np.uint8)
    buffer = no_copy(device, memory[-memory.ctypes.data % PAGE :], (4 << 30) + 2 * PAGE)
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    slot = indirect(program, device, buffer).indirectComputeCommandAtIndex_(0)
    slot.setKernelBuffer_offset_atIndex_(buffer, (4 << 30) - 4, 0)
    with pytest.raises(ValidationError, match="offset 4294967296 of a buffer in an indirect comm"):
        slot.setKernelBuffer_offset_atIndex_(buffer, 4 << 30, 0)


def test_threadgroup_memory_of_indirect_commands_is_declared(strict, program, device):
    def commands(bindings):
        descriptor = softmetal.MTLIndirectCommandBufferDescriptor.alloc().init()
        descriptor.setCommandTypes_(softmetal.MTLIndirectCommandTypeConcurrentDispatchThreads)
        if bindings:
            descriptor.setMaxKernelThreadgroupMemoryBindCount_(bindings)
        make = device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
        return make(descriptor, 1, 0).indirectComputeCommandAtIndex_(0)

    commands(2).setThreadgroupMemoryLength_atIndex_(16, 1)
    for bindings, index in ((2, 2), (0, 0)):
        with pytest.raises(ValidationError, match=f"ThreadgroupMemoryBindCount_\\({index + 1}\\)"):
            commands(bindings).setThreadgroupMemoryLength_atIndex_(16, index)


# ---- limits, errors and files ----


@pytest.mark.parametrize(
    ("profile", "terms", "refused"),
    [("apple-m1", 32767, True), ("apple-m2-pro", 40000, True), ("apple-m2", 32766, False),
     ("apple-m3", 32767, False), ("", 32767, False)],
)  # fmt: skip
def test_products_that_apple_gets_wrong(strict, monkeypatch, profile, terms, refused):
    monkeypatch.setenv("SOFTMETAL_PROFILE", profile)
    device = softmetal.MTLCreateSystemDefaultDevice()
    product = mps.MPSMatrixMultiplication.alloc()
    make = product.initWithDevice_resultRows_resultColumns_interiorColumns_
    if not refused:
        assert make(device, 4, 4, terms) is not None
        return
    with pytest.raises(ValidationError, match=f"interiorColumns of {terms}: .* M1 and M2"):
        make(device, 4, 4, terms)


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


def test_macos_ends_work_that_keeps_the_gpu(strict, program, device):
    queue, other = device.newCommandQueue(), device.newCommandQueue()
    buffer = device.newBufferWithLength_options_(4, 0)
    event = device.newSharedEvent()

    def run(queue, value=0):
        commands = queue.commandBuffer()
        blit = commands.blitCommandEncoder()
        blit.fillBuffer_range_value_(buffer, (0, 4), 1)
        blit.endEncoding()
        if value:
            commands.encodeSignalEvent_value_(event, value)
        commands.commit()
        commands.waitUntilCompleted()
        written = bytes(buffer.contents().as_buffer(4)) == b"\1\1\1\1"
        buffer.contents().as_buffer(4)[:] = bytes(4)
        error = commands.error()
        return written, error and error.code(), str(error and error.localizedDescription())

    host.watchdog.end(before=1)
    assert run(queue) == (True, None, "None")
    written, code, text = run(queue, 1)
    assert (written, code) == (False, 14)
    assert "kIOGPUCommandBufferCallbackErrorImpactingInteractivity" in text
    assert event.signaledValue() == 1  # who waits for it must not wait for ever
    for _ in range(2):
        written, code, text = run(queue)
        assert (written, code) == (False, 4)
        assert "SubmissionsIgnored" in text
    assert run(other) == (True, None, "None")
    assert run(device.newCommandQueue()) == (True, None, "None")


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
