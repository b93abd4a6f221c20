"""The CUDA executor's C code against a libcuda without a GPU, whose streams are threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import os, sys, threading
import numpy as np
import softmetal as M

device = M.MTLCreateSystemDefaultDevice()
library_source = '''
#include <metal_stdlib>
using namespace metal;
kernel void add(device uint* x, constant uint& n, uint i [[thread_position_in_grid]]) { x[i] += n; }
kernel void fault(device uint* x, constant uint& n) { x[n] = 1; }
kernel void spin(device uint* x, constant uint& n) { while (x[n]) {} }
kernel void hang(device uint* x, constant uint& n) { while (x[n]) {} }
kernel void trap(device uint* x, constant uint& n) { if (x[n]) __builtin_trap(); }
'''
library, error = device.newLibraryWithSource_options_error_(library_source, None, None)
def pipeline_of(name):
    made, error = device.newComputePipelineStateWithFunction_error_(
        library.newFunctionWithName_(name), None)
    assert made is not None, error
    return made

pipeline = pipeline_of("add")

def numbers(count):
    buffer = device.newBufferWithLength_options_(4 * count, 0)
    return buffer, np.frombuffer(buffer.contents().as_buffer(4 * count), np.uint32)

def add(queue, buffer, count, n, kernel=None):
    commands = queue.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(kernel or pipeline)
    encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
    encoder.setBytes_length_atIndex_(np.uint32(n).tobytes(), 4, 1)
    size = M.MTLSizeMake
    encoder.dispatchThreads_threadsPerThreadgroup_(size(count, 1, 1), size(32, 1, 1))
    encoder.endEncoding()
    return commands

queue = device.newCommandQueue()
"""
PROGRAMS = {
    "what it is": """
assert device.name() == "Fake GPU" and not device.hasUnifiedMemory()
assert device.architecture().name() == "sm_90"
assert device.recommendedMaxWorkingSetSize() == 3 << 28
""",
    "the last of many lists is waited for": """
buffer, view = numbers(1000)
view[:] = 5
lists = [add(queue, buffer, 1000, 1) for _ in range(20)]
for each in lists:
    each.commit()
lists[-1].waitUntilCompleted()
assert (view == 25).all(), view
assert all(each.error() is None for each in lists)
assert lists[-1].GPUEndTime() >= lists[-1].GPUStartTime() > 0
""",
    "lists are waited for in any order": """
buffer, view = numbers(100)
for turn in range(20):
    view[:] = turn
    first, second, third = (add(queue, buffer, 100, 1) for _ in range(3))
    for each in (first, second, third):
        each.commit()
    second.waitUntilCompleted()
    third.waitUntilCompleted()
    first.waitUntilCompleted()
    assert (view == turn + 3).all(), (turn, view[:5])
""",
    "copies use the host's side, and kernels see what was copied": """
private = device.newBufferWithLength_options_(4000, M.MTLResourceStorageModePrivate)
for turn in range(20):
    source, there = numbers(1000)
    target, here = numbers(1000)
    there[:] = np.arange(1000) + turn
    for first, second in ((source, private), (private, target)):
        commands = queue.commandBuffer()
        encoder = commands.blitCommandEncoder()
        encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
            first, 0, second, 0, 4000)
        encoder.endEncoding()
        commands.commit()
    work = add(queue, target, 1000, 3)
    work.commit()
    work.waitUntilCompleted()
    assert (here == np.arange(1000) + turn + 3).all(), here[:5]
""",
    "many scattered changes": """
buffer, view = numbers(100_000)
for turn in range(5):
    view[turn::7] += 3
    before = view.copy()
    work = add(queue, buffer, 100_000, 1)
    work.commit()
    work.waitUntilCompleted()
    assert (view == before + 1).all()
""",
    "an indirect command buffer is a graph from its second execution on": """
import ctypes
descriptor = M.MTLIndirectCommandBufferDescriptor.alloc().init()
descriptor.setCommandTypes_(M.MTLIndirectCommandTypeConcurrentDispatchThreads)
descriptor.setInheritBuffers_(False)
descriptor.setInheritPipelineState_(False)
descriptor.setMaxKernelBufferBindCount_(2)
commands = device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(descriptor, 6, 0)
buffer, view = numbers(64)
steps, by = numbers(8)
by[:] = np.arange(8)
def encode(index, offset):
    slot = commands.indirectComputeCommandAtIndex_(index)
    slot.setComputePipelineState_(indirect)
    slot.setKernelBuffer_offset_atIndex_(buffer, 0, 0)
    slot.setKernelBuffer_offset_atIndex_(steps, 4 * offset, 1)
    slot.concurrentDispatchThreads_threadsPerThreadgroup_(M.MTLSizeMake(64, 1, 1), M.MTLSizeMake(32, 1, 1))
descriptor = M.MTLComputePipelineDescriptor.alloc().init()
descriptor.setComputeFunction_(library.newFunctionWithName_("add"))
descriptor.setSupportIndirectCommandBuffers_(True)
indirect, error = device.newComputePipelineStateWithDescriptor_options_reflection_error_(
    descriptor, 0, None, None)
assert indirect is not None, error
for index in range(5):
    encode(index, index)
def run():
    work = queue.commandBuffer()
    encoder = work.computeCommandEncoder()
    encoder.useResource_usage_(buffer, 3)
    encoder.executeCommandsInBuffer_withRange_(commands, (0, 6))
    encoder.endEncoding()
    work.commit()
    work.waitUntilCompleted()
    assert work.error() is None, work.error()
    return int(view[5])
launches = ctypes.CDLL("libcuda.so.1").fake_graph_launches
early = ctypes.CDLL("libcuda.so.1").fake_early
before = early()
assert run() == 10 and launches() == 0
assert early() - before == 5  # each kernel of the first run may begin before the one before it ends
assert run() == 20 and launches() == 1
assert early() - before == 9  # and so may those after the first of the graph
encode(2, 7)  # a changed slot
assert run() == 35 and launches() == 2
assert run() == 50 and launches() == 3
encode(5, 1)  # one that was empty: a new graph, after an execution without it
assert run() == 66 and launches() == 3
assert run() == 82 and run() == 98 and launches() == 4, launches()
""",
    "the committing thread launches short lists that wait for nothing": """
import ctypes
launches = ctypes.CDLL("libcuda.so.1").fake_launches_here
def launched_by(commands):
    before = launches()
    commands.commit()
    return launches() - before
buffer = device.newBufferWithLength_options_(400, M.MTLResourceStorageModePrivate)
assert launched_by(add(queue, buffer, 100, 1)) >= 1  # and what brings `n` to the device
many = add(queue, buffer, 100, 1)
encoder = many.computeCommandEncoder()
encoder.setComputePipelineState_(pipeline)
encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
encoder.setBytes_length_atIndex_(np.uint32(1).tobytes(), 4, 1)
for _ in range(19):
    encoder.dispatchThreads_threadsPerThreadgroup_(M.MTLSizeMake(100, 1, 1), M.MTLSizeMake(32, 1, 1))
encoder.endEncoding()
assert launched_by(many) == 0
many.waitUntilCompleted()
gate = device.newSharedEvent()
waits = queue.commandBuffer()
waits.encodeWaitForEvent_value_(gate, 1)
assert launched_by(waits) == 0
assert launched_by(add(queue, buffer, 100, 1)) == 0  # after the list that waits
gate.setSignaledValue_(1)
result, view = numbers(100)
last = queue.commandBuffer()
encoder = last.blitCommandEncoder()
encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(buffer, 0, result, 0, 400)
encoder.endEncoding()
last.commit()
last.waitUntilCompleted()
assert (view == 22).all(), view[:5]
assert launched_by(add(queue, buffer, 100, 1)) >= 1
""",
    "threads commit to one queue": """
buffer, view = numbers(100)
def work():
    for _ in range(20):
        each = add(queue, buffer, 100, 1)
        each.commit()
        each.waitUntilCompleted()
threads = [threading.Thread(target=work) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert (view == 80).all(), view[:5]
""",
    "threads with their own queues": """
wrong = []
def work():
    own = device.newCommandQueue()
    buffer, view = numbers(1000)
    for turn in range(20):
        view[:] = turn
        lists = [add(own, buffer, 1000, 1) for _ in range(5)]
        for each in lists:
            each.commit()
        lists[-1].waitUntilCompleted()
        if not (view == turn + 5).all():
            wrong.append((turn, view[:4].tolist()))
threads = [threading.Thread(target=work) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert not wrong, wrong
""",
    "the host writes while kernels run": """
buffer, view = numbers(2000)
for turn in range(1, 20):
    work = add(queue, buffer, 1000, 1)
    work.commit()
    view[1000:] = turn
    work.waitUntilCompleted()
    assert (view[:1000] == turn).all() and (view[1000:] == turn).all()
""",
    "events announce what was written": """
buffer, view = numbers(500)
event = device.newSharedEvent()
for turn in range(1, 20):
    work = add(queue, buffer, 500, 1)
    work.encodeSignalEvent_value_(event, turn)
    work.commit()
    assert event.waitUntilSignaledValue_timeoutMS_(turn, 60000)
    assert (view == turn).all()
""",
    "queues wait for each other and for the host": """
buffer, view = numbers(500)
gate, done = device.newSharedEvent(), device.newSharedEvent()
other = device.newCommandQueue()
early = queue.commandBuffer()
early.encodeWaitForEvent_value_(gate, 1)
early.commit()
first = add(queue, buffer, 500, 3)
first.encodeSignalEvent_value_(done, 1)
first.commit()
wait = other.commandBuffer()
wait.encodeWaitForEvent_value_(done, 1)
wait.commit()
second = add(other, buffer, 500, 4)
second.commit()
assert done.signaledValue() == 0 and (view == 0).all()
gate.setSignaledValue_(1)
second.waitUntilCompleted()
assert (view == 7).all(), view
""",
}


FAULTS = {
    "a trap is an error, and the device goes on": """
error, after = outcomes("trap")
assert error == "kernel 'trap' executed an illegal instruction or a trap", error
assert after is None and works()
""",
    "a kernel that does not end is stopped": """
error, after = outcomes("spin")
assert error == "kernel 'spin' did not end within 0.3 s (SOFTMETAL_TIMEOUT)", error
assert after is None and works()
""",
    "a fault ends the device, and a new one works": """
event = device.newSharedEvent()
error, after = outcomes("fault", event)
made, refused = device.newComputePipelineStateWithFunction_error_(
    library.newFunctionWithName_("trap"), None)
assert made is None and error in str(refused.localizedDescription())
assert error.startswith("kernel 'fault': CUDA_ERROR_ILLEGAL_ADDRESS (700): of the fake. "), error
assert after == error, after
assert "make another with MTLCreateSystemDefaultDevice()" in error
assert event.waitUntilSignaledValue_timeoutMS_(1, 60000)
""",
    "the error names every kernel of the list": """
buffer, view = numbers(10)
both = add(queue, buffer, 10, 1)
encoder = both.computeCommandEncoder()
encoder.setComputePipelineState_(pipeline_of("fault"))
encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
encoder.setBuffer_offset_atIndex_(buffer, 0, 1)
encoder.dispatchThreads_threadsPerThreadgroup_(M.MTLSizeMake(1, 1, 1), M.MTLSizeMake(1, 1, 1))
encoder.endEncoding()
both.commit()
both.waitUntilCompleted()
text = str(both.error().localizedDescription())
assert text.startswith("one of the kernels 'add', 'fault': CUDA_ERROR"), text
""",
}
OUTCOMES = """
def outcomes(name, event=None):
    buffer, view = numbers(10)
    first, second = add(queue, buffer, 10, 1, pipeline_of(name)), add(queue, buffer, 10, 1)
    if event is not None:
        first.encodeSignalEvent_value_(event, 1)
    for each in (first, second):
        each.commit()
    for each in (first, second):
        each.waitUntilCompleted()
    return [e and str(e.localizedDescription()) for e in (first.error(), second.error())]

def works():
    buffer, view = numbers(10)
    work = add(queue, buffer, 10, 3)
    work.commit()
    work.waitUntilCompleted()
    return work.error() is None and (view == 3).all()
"""


# Programs that end no device run in one process: what went wrong, by program.
ALL = """
import json, traceback
wrong = {}
for name, program in json.loads(sys.stdin.read()).items():
    try:
        exec(program, dict(globals()))
    except Exception:
        wrong[name] = traceback.format_exc()
print(json.dumps(wrong), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def wrong(fake_libcuda: Path) -> dict[str, str]:
    said = run_program(ALL, fake_libcuda, json.dumps(PROGRAMS))
    found: dict[str, str] = json.loads(said)
    return found


def run_program(body: str, fake_libcuda: Path, given: str = "", **settings: str) -> str:
    script = f"{HEAD}{body}print('done', flush=True)\nos._exit(0)\n"
    settings |= {"SOFTMETAL_DEVICE": "cuda:0", "LD_LIBRARY_PATH": str(fake_libcuda)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=given,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, wrong: dict[str, str]) -> None:
    assert name not in wrong, wrong[name]


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str, fake_libcuda: Path) -> None:
    body = OUTCOMES + FAULTS[name]
    assert run_program(body, fake_libcuda, SOFTMETAL_TIMEOUT="0.3") == "done\n"


NEW_DEVICE = """
before, old = numbers(10)
old[:] = 7
outcomes("fault")
lost = device
device = M.MTLCreateSystemDefaultDevice()
assert device is not lost
library, _ = device.newLibraryWithSource_options_error_(library_source, None, None)
pipeline, queue = pipeline_of("add"), device.newCommandQueue()
assert works() and (old == 7).all()
assert lost.newBufferWithLength_options_(64, 0) is None
del before, lost  # frees nothing of the new device
assert works()
assert M.MTLCreateSystemDefaultDevice() is device
"""


def test_a_new_device_after_a_fault(fake_libcuda: Path) -> None:
    assert run_program(OUTCOMES + NEW_DEVICE, fake_libcuda) == "done\n"


def test_a_driver_that_cannot_reset(fake_libcuda: Path) -> None:
    said = run_program(OUTCOMES + NEW_DEVICE, fake_libcuda, FAKE_RESET="0")
    assert "GPU 0 cannot be used again in this process" in said
    assert "start a new process, or find the fault with SOFTMETAL_CHECK=bounds" in said


@pytest.mark.full
def test_a_kernel_that_cannot_be_stopped(fake_libcuda: Path) -> None:
    body = """
error, after = outcomes("hang")
assert error.startswith("kernel 'hang' did not end within 0.3 s (SOFTMETAL_TIMEOUT) and cannot be "
                        "stopped. The GPU takes no more work of this device"), error
assert after == error
"""
    assert run_program(OUTCOMES + body, fake_libcuda, SOFTMETAL_TIMEOUT="0.3") == "done\n"


def test_without_a_driver() -> None:
    command = [sys.executable, "-c", "import softmetal; softmetal.MTLCreateSystemDefaultDevice()"]
    environment = {**os.environ, "SOFTMETAL_DEVICE": "cuda:7"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "there is no GPU 7" in done.stderr
