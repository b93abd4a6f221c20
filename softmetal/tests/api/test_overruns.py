"""Kernels that run over the end of their memory do not damage the process.

A small overrun is absorbed, a larger one is an error of the command buffer. (SOFTMETAL_CHECK=bounds
finds all of them.)
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from child_scripts import interposed, run_child

SPACES = ("static", "dynamic", "device")
STACK = 256 << 10  # of a fiber
ARENA = 512 << 20  # the stacks of one worker, which begin at a multiple of it
GUARDED = 64 << 10  # memory starts at most this far before a guard of as many bytes

START = """
import ctypes
from overrun_programs import COUNT, TYPES, Overruns
overruns = Overruns()
"""
# Allocations of many sizes, freed in another order: glibc checks what lies between them.
CHURN = """
def churn():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    blocks = [libc.malloc(size) for size in range(16, 8192, 24) for _ in range(3)]
    for start in range(7):
        for block in blocks[start::7]:
            libc.free(block)
"""


@pytest.mark.parametrize("mode", ["flat", "groups", "fibers"])
@pytest.mark.parametrize("space", SPACES)
def test_small_overruns_do_no_harm(space: str, mode: str) -> None:
    """`threadgroup float s[8]` written at 31, and worse, by both workers."""
    if (space, mode) == ("dynamic", "flat"):
        pytest.skip("a kernel with threadgroup arguments is not flat")
    body = f"""{CHURN}
for type_ in ("float", "float4"):
    for end in (COUNT + 1, 32, 256, 1000):
        for _ in range(20):
            error = overruns.run({space!r}, {mode!r}, type_, 0, end)
            assert error is None, error
        churn()
print("sound")
"""
    done = run_child(START + body)
    assert (done.stdout, done.stderr, done.returncode) == ("sound\n", "", 0)


THREAD = """
import numpy as np, softmetal
device = softmetal.MTLCreateSystemDefaultDevice()
source = '''#include <metal_stdlib>
using namespace metal;
kernel void overwrite(device uint* x [[buffer(0)]], constant uint& n [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
  START
  ulong s[8];
  for (uint k = 0; k < n; k++) s[k] = 0x4141414141414141 * (k + i);
  x[i] = uint(s[x[i] % 8]);
}'''.replace("START", BEGIN)
library, error = device.newLibraryWithSource_options_error_(source, None, None)
function = library.newFunctionWithName_("overwrite")
pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
x, queue = device.newBufferWithLength_options_(65536, 0), device.newCommandQueue()
for count in (8, 9, 12, 16, 20, 32, 50, 100, 500, 1000, 4096, 8):
    for threads in (64, 16384):
        commands = queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline)
        encoder.setBuffer_offset_atIndex_(x, 0, 0)
        encoder.setBytes_length_atIndex_(np.uint32(count).tobytes(), 4, 1)
        sizes = (softmetal.MTLSizeMake(n, 1, 1) for n in (threads, 64))
        encoder.dispatchThreads_threadsPerThreadgroup_(*sizes)
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        error = commands.error()
        assert not error or "kernel 'overwrite'" in error.localizedDescription(), error
        assert not error or count > 8, error
        assert error or count < 4096
print("alive")
"""


@pytest.mark.parametrize("mode", ["flat", "fibers"])
def test_a_kernel_that_overwrites_its_stack_fails_alone(mode: str) -> None:
    """The return addresses and registers of the runtime are on another stack."""
    begin = "" if mode == "flat" else "threadgroup_barrier(mem_flags::mem_device);"
    done = run_child(f"BEGIN = {begin!r}\n{THREAD}")
    assert (done.stdout, done.stderr, done.returncode) == ("alive\n", "", 0)


@pytest.mark.parametrize("side", ["end", "start"])
@pytest.mark.parametrize("mode", ["groups", "fibers"])
@pytest.mark.parametrize("space", SPACES)
def test_larger_overruns_are_errors(space: str, mode: str, side: str) -> None:
    body = f"""
for type_, size in TYPES.items():
    place = {GUARDED} // size + COUNT if {side!r} == "end" else -1
    text = overruns.run({space!r}, {mode!r}, type_, place, place + 1)
    name = overruns.name({space!r}, {mode!r}, type_)
    assert text and text.startswith(f"kernel '{{name}}' accessed address 0x"), text
    assert overruns.run({space!r}, {mode!r}, type_, 0, COUNT) is None
print("each")
"""
    done = run_child(START + body)
    assert (done.stdout, done.stderr, done.returncode) == ("each\n", "", 0)


DEEP = """
#include <metal_stdlib>
using namespace metal;
kernel void deep(device uint* x [[buffer(0)]], constant uint& which [[buffer(1)]],
                 uint i [[thread_position_in_threadgroup]]) {
  threadgroup_barrier(mem_flags::mem_device);
  uint count = i == which ? 66000 : 1;  // 258 KiB down a stack of 256, in one thread
  uint own[16] = {i};
  thread uint* below = own + x[1];
  for (uint k = 0; k < count; k++) below[-long(k)] = k ^ x[0];
  x[i + 2] = own[x[0] % 16];
}
"""


@pytest.mark.parametrize("light", [True, False], ids=["light guards", "older kernel"])
@pytest.mark.parametrize("threads", [2, 20, 40])
def test_every_fiber_has_a_guard_page(threads: int, light: bool, tmp_path: Path) -> None:
    """Writes below the stacks of eight neighbours, also with many workers."""
    body = f"""
import numpy as np, softmetal
device = softmetal.MTLCreateSystemDefaultDevice()
library, error = device.newLibraryWithSource_options_error_({DEEP!r}, None, None)
function = library.newFunctionWithName_("deep")
pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
x, queue = device.newBufferWithLength_options_(65536, 0), device.newCommandQueue()
for which in range(8):
    commands = queue.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(x, 0, 0)
    encoder.setBytes_length_atIndex_(np.uint32(which).tobytes(), 4, 1)
    size = softmetal.MTLSizeMake(64, 1, 1)
    encoder.dispatchThreads_threadsPerThreadgroup_(size, size)
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    print(commands.error() and commands.error().localizedDescription())
"""
    variables = {"LD_PRELOAD": interposed(tmp_path, light), "SOFTMETAL_FIBERS": "1"}
    done = run_child(body, threads=threads, **variables)
    assert done.stderr == ""
    # Linux reports a light guard as memory that is not mapped, and a guard mapping as protected.
    text = r"kernel 'deep' accessed address (0x\w+), which is (?:not mapped|protected)\n"
    found = re.findall(text, done.stdout)
    guards = [int(address, 16) % ARENA >> 12 for address in found]  # by either worker
    assert len(guards) == done.stdout.count("\n") == 8
    assert {after - before for before, after in pairwise(sorted(guards))} == {STACK >> 12}


MANY_FIBERS = """
import numpy as np, softmetal
device = softmetal.MTLCreateSystemDefaultDevice()
source = '''#include <metal_stdlib>
using namespace metal;
kernel void sum(device uint* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  for (uint k = 0; k < 20; k++) { x[i] += simd_sum(1u); threadgroup_barrier(mem_flags::mem_none); }
}'''
library, error = device.newLibraryWithSource_options_error_(source, None, None)
function = library.newFunctionWithName_("sum")
pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
count = 1 << 16
x, queue = device.newBufferWithLength_options_(4 * count, 0), device.newCommandQueue()
for _ in range(20):
    commands = queue.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(x, 0, 0)
    sizes = (softmetal.MTLSizeMake(n, 1, 1) for n in (count, 1024))
    encoder.dispatchThreads_threadsPerThreadgroup_(*sizes)
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None, commands.error()
values = np.frombuffer(x.contents().as_buffer(4 * count), np.uint32)
print(len(open("/proc/self/maps").readlines()) < 65000, set(values.tolist()))
"""


@pytest.mark.parametrize("light", [True, False], ids=["light guards", "older kernel"])
def test_more_stacks_than_guards(light: bool, tmp_path: Path) -> None:
    """40 workers with 1,024 fibers each: workers that get no guards leave the work to others."""
    done = run_child(MANY_FIBERS, threads=40, LD_PRELOAD=interposed(tmp_path, light))
    assert (done.stdout, done.stderr) == ("True {12800}\n", "")


@pytest.mark.parametrize("light", [True, False], ids=["light guards", "older kernel"])
def test_many_buffers_at_once(light: bool, tmp_path: Path) -> None:
    """Guards do not use up the mappings that a process may have."""
    body = """
import softmetal
device = softmetal.MTLCreateSystemDefaultDevice()
buffers = [device.newBufferWithLength_options_(64, 0) for _ in range(40000)]
assert None not in buffers
del buffers
print(device.newBufferWithLength_options_(64, 0) is not None)
"""
    done = run_child(body, LD_PRELOAD=interposed(tmp_path, light))
    assert (done.stdout, done.stderr) == ("True\n", "")
