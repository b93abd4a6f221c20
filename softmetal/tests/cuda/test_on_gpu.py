"""What needs a GPU: faults and how the process goes on, `bounds`, and vectors at odd addresses.

SOFTMETAL_DEVICE=cuda:0 python -m pytest softmetal/tests/cuda/test_on_gpu.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import softmetal

sys.path.append(str(Path(__file__).parents[1] / "checking"))
from bounds_faults import BOUNDS
from fault_host import run_fault

pytestmark = pytest.mark.skipif(
    not os.environ.get("SOFTMETAL_DEVICE", "").startswith("cuda"), reason="needs an NVIDIA GPU"
)
HEAD = """
import numpy as np, softmetal as M
SOURCE = '''
#include <metal_stdlib>
using namespace metal;
kernel void fine(device uint* x, constant ulong& a, uint i [[thread_position_in_grid]]) { x[i] = i + 3; }
kernel void trap(device uint* x, constant ulong& a, uint i [[thread_position_in_grid]]) {
  if (i == 77) __builtin_trap(); x[i] = 1; }
kernel void spin(device uint* x, constant ulong& a, uint i [[thread_position_in_grid]]) {
  while (atomic_load_explicit((device atomic_uint*)x, memory_order_relaxed) == 0) {} }
kernel void barriers(device uint* x, constant ulong& a, uint i [[thread_position_in_grid]]) {
  while (atomic_load_explicit((device atomic_uint*)x, memory_order_relaxed) == 0)
    threadgroup_barrier(mem_flags::mem_device); }
kernel void sums(device uint* x, constant ulong& a, uint i [[thread_position_in_grid]]) {
  while (simd_sum(atomic_load_explicit((device atomic_uint*)x, memory_order_relaxed)) == 0) {} }
kernel void one(device uint* x, constant ulong& a, uint i [[thread_position_in_grid]]) {
  if (i == 40) while (atomic_load_explicit((device atomic_uint*)x, memory_order_relaxed) == 0) {}
  threadgroup_barrier(mem_flags::mem_device); x[i] = 1; }
kernel void poke(device uint* x, constant ulong& a, uint i [[thread_position_in_grid]]) {
  *(device uint*)a = i; }
'''
pipelines = {}

def open_device():
    global device, library, queue, buffers
    pipelines.clear()
    device = M.MTLCreateSystemDefaultDevice()
    library, error = device.newLibraryWithSource_options_error_(SOURCE, None, None)
    assert library is not None, error
    queue = device.newCommandQueue()
    # A device that is lost makes none.
    buffers = [device.newBufferWithLength_options_(4 * 256, 0) for _ in range(4)]

def pipeline_of(name):
    return device.newComputePipelineStateWithFunction_error_(library.newFunctionWithName_(name), None)

def run(name, address=0):
    if name not in pipelines:
        pipelines[name], error = pipeline_of(name)
        assert pipelines[name] is not None, error
    pipeline = pipelines[name]
    buffer = buffers.pop()
    commands = queue.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
    encoder.setBytes_length_atIndex_(np.uint64(address).tobytes(), 8, 1)
    encoder.dispatchThreads_threadsPerThreadgroup_(M.MTLSizeMake(256, 1, 1), M.MTLSizeMake(64, 1, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    error = commands.error()
    if error is not None:
        return str(error.localizedDescription()), None
    return None, np.frombuffer(buffer.contents().as_buffer(1024), np.uint32).copy()

def fine():
    error, x = run("fine")
    return error is None and (x == np.arange(256) + 3).all()

open_device()
assert fine()
"""


def child(body: str, **settings: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + body],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_trap_is_an_error_and_no_more() -> None:
    body = "error, _ = run('trap')\nprint(error)\nassert fine()"
    assert child(body) == "kernel 'trap' executed an illegal instruction or a trap\n"


@pytest.mark.parametrize("name", ["spin", "barriers", "sums", "one"])
def test_kernels_that_do_not_end_are_stopped(name: str) -> None:
    body = f"error, _ = run('{name}')\nprint(error)\nassert fine()"
    found = child(body, SOFTMETAL_TIMEOUT="1")
    assert found == f"kernel '{name}' did not end within 1 s (SOFTMETAL_TIMEOUT)\n"


def test_after_a_fault_the_process_lives() -> None:
    """A new device works, or the error says what to do."""
    body = """
error, _ = run('poke', 1 << 20)
print(error)
assert run('fine')[0] == error
made, refused = pipeline_of('trap')
assert made is None and error in str(refused.localizedDescription())
try:
    open_device()
    print('a new device works:', fine())
except Exception as problem:
    print(problem)
"""
    first, second = child(body).splitlines()
    print(second)
    assert first.startswith("kernel 'poke': CUDA_ERROR_")
    assert "make another with MTLCreateSystemDefaultDevice()" in first
    works, told = second == "a new device works: True", "start a new process" in second
    assert works or told


# A GPU's checks do not know the variables of threadgroup memory, nor which heaps are resident.
CPU_ONLY = {"threadgroup_neighbour", "heap_not_resident"}


@pytest.mark.parametrize(
    "fault", [each for each in BOUNDS if each.name not in CPU_ONLY], ids=lambda fault: fault.name
)
def test_bounds(fault) -> None:
    findings = run_fault(fault, False, "bounds", seed=1)
    assert findings
    assert findings[0].startswith("bounds: kernel '")
    assert fault.names in findings[0]
    assert any(f"program_source:{line}:" in findings[0] for line in fault.lines)
    assert run_fault(fault, True, "bounds", seed=1) == []


VECTORS = {"float4": (np.float32, 4), "float2": (np.float32, 2), "half4": (np.float16, 4),
           "int3": (np.int32, 4), "ulong2": (np.uint64, 2)}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_at_every_element(name: str) -> None:
    dtype, length = VECTORS[name]
    scalar = name.rstrip("234")
    source = (
        "#include <metal_stdlib>\nusing namespace metal;\n"
        f"kernel void k(device {scalar}* x, device {scalar}* y, constant uint& from, "
        "constant uint& to, uint i [[thread_position_in_grid]]) {\n"
        f"  *(device {name}*)(y + to + {length} * i) = *(device {name}*)(x + from + {length} * i); }}"
    )
    device = softmetal.MTLCreateSystemDefaultDevice()
    library, error = device.newLibraryWithSource_options_error_(source, None, None)
    assert library is not None, error
    pipeline, _ = device.newComputePipelineStateWithFunction_error_(
        library.newFunctionWithName_("k"), None
    )
    values = np.arange(1, 401).astype(dtype)
    queue = device.newCommandQueue()
    for start, to in [(0, 0), (1, 0), (0, 1), (3, 2), (5, 7)]:
        x = device.newBufferWithBytes_length_options_(values.tobytes(), values.nbytes, 0)
        y = device.newBufferWithLength_options_(values.nbytes, 0)
        commands = queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline)
        encoder.setBuffer_offset_atIndex_(x, 0, 0)
        encoder.setBuffer_offset_atIndex_(y, 0, 1)
        for index, number in ((2, start), (3, to)):
            encoder.setBytes_length_atIndex_(np.uint32(number).tobytes(), 4, index)
        encoder.dispatchThreads_threadsPerThreadgroup_(
            softmetal.MTLSizeMake(64, 1, 1), softmetal.MTLSizeMake(32, 1, 1)
        )
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        assert commands.error() is None, commands.error().localizedDescription()
        got = np.frombuffer(y.contents().as_buffer(values.nbytes), dtype)
        count = 64 * length
        wanted = values[start : start + count]
        kept = np.arange(count) % length != 3 if name == "int3" else slice(None)
        np.testing.assert_array_equal(got[to : to + count][kept], wanted[kept])


READS_EARLY = """
#include <metal_stdlib>
#include <softmetal/prefetch>
using namespace metal;
kernel void fills(device uint* w, constant uint& value, uint i [[thread_position_in_grid]]) {
  uint x = i;
  for (uint n = 0; n < 20000; n++) x = x * 1664525 + 1013904223;
  w[i] = x == 1 ? 0 : value;  // late
}
kernel void reads(device const uint* w, device uint* out, uint i [[thread_position_in_grid]]) {
  softmetal::reads_early();
  const uint early = w[i];
  softmetal::await_previous();
  out[i] = early;
}
"""


def test_kernels_that_read_early_see_what_was_written_before() -> None:
    """Outside of an indirect command buffer nobody knows what the kernel before them writes."""
    device = softmetal.MTLCreateSystemDefaultDevice()
    library, error = device.newLibraryWithSource_options_error_(READS_EARLY, None, None)
    assert library is not None, error
    states = [
        device.newComputePipelineStateWithFunction_error_(library.newFunctionWithName_(name), None)
        for name in ("fills", "reads")
    ]
    count, group = 1 << 16, softmetal.MTLSizeMake(256, 1, 1)
    w, out = (device.newBufferWithLength_options_(4 * count, 0) for _ in range(2))
    queue = device.newCommandQueue()
    for value in range(1, 21):
        commands = queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setBuffer_offset_atIndex_(w, 0, 0)
        for (state, _), second in zip(states, (np.uint32(value).tobytes(), out), strict=True):
            encoder.setComputePipelineState_(state)
            if second is out:
                encoder.setBuffer_offset_atIndex_(out, 0, 1)
            else:
                encoder.setBytes_length_atIndex_(second, 4, 1)
            encoder.dispatchThreads_threadsPerThreadgroup_(
                softmetal.MTLSizeMake(count, 1, 1), group
            )
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        assert commands.error() is None
        found = np.frombuffer(out.contents().as_buffer(4 * count), np.uint32)
        assert (found == value).all()
