"""softmetal's speed table: ratios within one run, sides interleaved, best of several rounds.

python softmetal/benchmarks/softmetal_speed.py            # prints the table of the README
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import softmetal

softmetal.install()

import Metal
import MetalPerformanceShaders as MPS

ROUNDS = 12
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void fused(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                  device float* c [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  c[i] = a[i] * b[i] / (1.0f + exp(-a[i])) + 0.5f * b[i];
}
kernel void tiny(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += 1; }
kernel void barriers(device float* x [[buffer(0)]], constant uint& n [[buffer(1)]],
                     uint i [[thread_position_in_threadgroup]]) {
  for (uint k = 0; k < n; k++) threadgroup_barrier(mem_flags::mem_threadgroup);
  x[i] = n;
}
kernel void sums(device float* x [[buffer(0)]], constant uint& n [[buffer(1)]],
                 uint i [[thread_position_in_threadgroup]]) {
  float v = i;
  for (uint k = 0; k < n; k++) v = simd_sum(v) * 0.03125f;
  x[i] = v;
}
"""
FIRST_RESULT = """
import softmetal; softmetal.install()
import Metal
d = Metal.MTLCreateSystemDefaultDevice()
lib, e = d.newLibraryWithSource_options_error_('''#include <metal_stdlib>
kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = metal::exp(x[i]); }''', None, None)
p, e = d.newComputePipelineStateWithFunction_error_(lib.newFunctionWithName_("k"), None)
b = d.newBufferWithLength_options_(4096, 0); c = d.newCommandQueue().commandBuffer(); n = c.computeCommandEncoder()
n.setComputePipelineState_(p); n.setBuffer_offset_atIndex_(b, 0, 0)
n.dispatchThreads_threadsPerThreadgroup_(Metal.MTLSizeMake(1024, 1, 1), Metal.MTLSizeMake(256, 1, 1))
n.endEncoding(); c.commit(); c.waitUntilCompleted()
assert bytes(b.contents().as_buffer(4)) == b"\\0\\0\\x80?"
"""  # noqa: E501

device = Metal.MTLCreateSystemDefaultDevice()
queue = device.newCommandQueue()
library, _error = device.newLibraryWithSource_options_error_(SOURCE, None, None)


def best_of(*sides: Callable[[], float], rounds: int = ROUNDS) -> list[float]:
    """The least seconds of each side, the sides taking turns."""
    least = [float("inf")] * len(sides)
    for _ in range(rounds):
        least = [min(before, side()) for before, side in zip(least, sides, strict=True)]
    return least


def clocked(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def shared(values: np.ndarray) -> tuple[Any, np.ndarray]:
    buffer = device.newBufferWithLength_options_(values.nbytes, 0)
    view = np.frombuffer(buffer.contents().as_buffer(values.nbytes), values.dtype)
    view = view.reshape(values.shape)
    view[...] = values
    return buffer, view


def dispatches(
    name: str,
    buffers: list[Any],
    threads: int,
    group: int,
    count: int = 1,
    argument: int | None = None,
) -> Callable[[], float]:
    """A function that runs `count` dispatches in one command buffer and returns the seconds."""
    function = library.newFunctionWithName_(name)
    pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
    assert pipeline is not None, error

    def run() -> float:
        commands = queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline)
        for index, buffer in enumerate(buffers):
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)
        if argument is not None:
            encoder.setBytes_length_atIndex_(np.uint32(argument).tobytes(), 4, len(buffers))
        grid, size = Metal.MTLSizeMake(threads, 1, 1), Metal.MTLSizeMake(group, 1, 1)
        for _ in range(count):
            encoder.dispatchThreads_threadsPerThreadgroup_(grid, size)
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        assert commands.error() is None, commands.error()
        return float(commands.GPUEndTime() - commands.GPUStartTime())

    return run


def fused_elementwise() -> tuple[str, str, bool]:
    count = 1 << 24
    values = np.random.default_rng(0).standard_normal((3, count)).astype(np.float32)
    pairs = [shared(v) for v in values]
    destination = np.empty_like(values[0])
    ours, copy = best_of(
        dispatches("fused", [b for b, _ in pairs], count, 256),
        lambda: clocked(lambda: np.copyto(destination, values[0])),
    )
    bandwidth, memcpy = 3 * values[0].nbytes / ours, 2 * values[0].nbytes / copy
    ratio = bandwidth / memcpy
    figure = f"{bandwidth / 1e9:.1f} GB/s, {ratio:.2f} of memcpy's {memcpy / 1e9:.1f}"
    return figure, ">= 0.80 of memcpy", ratio >= 0.8


def dispatch_cost() -> tuple[str, str, bool]:
    buffer, _ = shared(np.zeros(64, np.float32))
    count = 4000
    (seconds,) = best_of(dispatches("tiny", [buffer], 64, 64, count))
    return f"{seconds / count * 1e6:.2f} us", "< 3 us", seconds / count < 3e-6


def barrier_cost() -> tuple[str, str, bool]:
    buffer, _ = shared(np.zeros(256, np.float32))
    (seconds,) = best_of(dispatches("barriers", [buffer], 256, 256, argument=2000))
    cost = seconds / 2000 / 256
    return f"{cost * 1e9:.1f} ns a thread", "< 20 ns", cost < 20e-9


def simd_cost() -> tuple[str, str, bool]:
    buffer, _ = shared(np.zeros(256, np.float32))
    (seconds,) = best_of(dispatches("sums", [buffer], 256, 256, argument=2000))
    return f"{seconds / 2000 / 8 * 1e9:.0f} ns a simdgroup", "", True


def process_start() -> tuple[str, str, bool]:
    command = [sys.executable, "-c", FIRST_RESULT]
    (seconds,) = best_of(lambda: clocked(lambda: subprocess.run(command, check=True)), rounds=5)
    return f"{seconds:.2f} s", "< 0.5 s", seconds < 0.5


def first_compile() -> tuple[str, str, bool]:
    """Headers and runtime are built; only the kernel is new."""
    counter = iter(range(1 << 20))

    def once() -> float:
        source = f"""#include <metal_stdlib>
        // {time.time_ns()} {next(counter)}
        kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {{
          x[i] = metal::tanh(x[i]) * {time.time_ns() % 1000}; }}"""

        def work() -> None:
            made, error = device.newLibraryWithSource_options_error_(source, None, None)
            assert made is not None, error
            function = made.newFunctionWithName_("k")
            pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
            assert pipeline is not None, error

        return clocked(work)

    (seconds,) = best_of(once, rounds=5)
    return f"{seconds:.2f} s", "< 1 s", seconds < 1


def cold_start() -> tuple[str, str, bool]:
    """An empty cache: runtime, precompiled header and kernel, with the process start."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "SOFTMETAL_CACHE": folder}
        command = [sys.executable, "-c", FIRST_RESULT]
        seconds = clocked(lambda: subprocess.run(command, check=True, env=environment))
    return f"{seconds:.2f} s", "", True


def matmul() -> tuple[str, str, bool]:
    n = 1024
    values = np.random.default_rng(0).standard_normal((2, n, n)).astype(np.float32)
    (a, a_view), (b, b_view), (c, c_view) = (
        shared(v) for v in (*values, np.zeros((n, n), np.float32))
    )
    row = n * 4
    describe = MPS.MPSMatrixDescriptor.matrixDescriptorWithRows_columns_rowBytes_dataType_
    matrices = [
        MPS.MPSMatrix.alloc().initWithBuffer_descriptor_(
            buffer, describe(n, n, row, MPS.MPSDataTypeFloat32)
        )
        for buffer in (a, b, c)
    ]
    initialise = (
        MPS.MPSMatrixMultiplication.alloc()
    ).initWithDevice_resultRows_resultColumns_interiorColumns_  # C = A B
    multiply = initialise(device, n, n, n)

    def ours() -> None:
        commands = queue.commandBuffer()
        multiply.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(commands, *matrices)
        commands.commit()
        commands.waitUntilCompleted()

    out = np.empty_like(c_view)
    mine, numpy = best_of(
        lambda: clocked(ours),
        lambda: clocked(lambda: np.matmul(a_view, b_view, out=out)),
        rounds=30,
    )
    np.testing.assert_allclose(c_view, out, rtol=1e-3, atol=1e-3)
    flops = 2 * n**3
    figure = f"{flops / mine / 1e9:.0f} GFLOP/s, {numpy / mine:.2f} of numpy's"
    return figure, ">= 0.95 of numpy", numpy / mine >= 0.95


ROWS = {
    "fused elementwise, f32, 16M elements": fused_elementwise,
    "a dispatch in a long command buffer": dispatch_cost,
    "a barrier, 256 threads": barrier_cost,
    "simd_sum": simd_cost,
    "process start to first result, warm cache": process_start,
    "first compile of a small kernel": first_compile,
    "process start to first result, empty cache": cold_start,
    "MPS matmul f32, 1024": matmul,
}


def main() -> int:
    threads = os.environ.get("SOFTMETAL_THREADS") or len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {threads} threads, {time.strftime('%Y-%m-%d')}\n")
    print("| what | measured | goal |\n|---|---|---|")
    short = 0
    for name, measure in ROWS.items():
        figure, goal, holds = measure()
        short += not holds
        print(f"| {name} | {figure} | {goal or '-'}{'' if holds else ' (short)'} |", flush=True)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
