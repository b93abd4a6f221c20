"""What the checking modes cost: the time of a kernel under a mode over its plain time.

python softmetal/benchmarks/checking_cost.py            # prints the table of docs/howto/checking.md
"""

import statistics
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np

import softmetal

ROUNDS = 7
MODES = {
    "plain": (),
    "bounds": ("bounds",),
    "race": ("race",),
    "all": ("bounds", "race", "uninit"),
}
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void fused(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                  device float* c [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  c[i] = a[i] * b[i] / (1.0f + exp(-a[i])) + 0.5f * b[i];
}
kernel void softmax(device const float* a [[buffer(0)]], device float* o [[buffer(1)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint t [[thread_position_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simd [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[8];
  device const float* x = a + 1024 * row;
  float top = -INFINITY;
  for (uint i = t; i < 1024; i += 256) top = max(top, x[i]);
  top = simd_max(top);
  if (lane == 0) partial[simd] = top;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < 8; i++) top = max(top, partial[i]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0;
  for (uint i = t; i < 1024; i += 256) sum += exp(x[i] - top);
  sum = simd_sum(sum);
  if (lane == 0) partial[simd] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = 0;
  for (uint i = 0; i < 8; i++) sum += partial[i];
  for (uint i = t; i < 1024; i += 256) o[1024 * row + i] = exp(x[i] - top) / sum;
}
kernel void matmul(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                   device float* c [[buffer(2)]], uint2 p [[thread_position_in_grid]],
                   uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float left[16][16], right[16][16];
  float sum = 0;
  for (uint k = 0; k < 256; k += 16) {
    left[t.y][t.x] = a[256 * p.y + k + t.x];
    right[t.y][t.x] = b[256 * (k + t.y) + p.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 16; i++) sum += left[t.y][i] * right[i][t.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  c[256 * p.y + p.x] = sum;
}
kernel void histogram(device const uint* a [[buffer(0)]], device atomic_uint* bins [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&bins[a[i] % 256], 1, memory_order_relaxed);
}
kernel void reduction(device const float* a [[buffer(0)]], device float* o [[buffer(1)]],
                      uint i [[thread_position_in_grid]],
                      uint t [[thread_position_in_threadgroup]],
                      uint g [[threadgroup_position_in_grid]]) {
  threadgroup float s[256];
  s[t] = a[i];
  for (uint step = 128; step > 0; step /= 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t < step) s[t] += s[t + step];
  }
  if (t == 0) o[g] = s[0];
}
"""


class Case(NamedTuple):
    kernel: str
    title: str
    counts: tuple[int, ...]  # words of each buffer
    grid: tuple[int, int]
    group: tuple[int, int]


CASES = (
    Case("fused", "elementwise, 4M floats", (1 << 22,) * 3, (1 << 22, 1), (256, 1)),
    Case("softmax", "softmax, 512 rows of 1024", (1 << 19,) * 2, (512 * 256, 1), (256, 1)),
    Case("matmul", "matmul 256 x 256, tiles", (1 << 16,) * 3, (256, 256), (16, 16)),
    Case("histogram", "histogram, 1M atomics", (1 << 20, 256), (1 << 20, 1), (256, 1)),
    Case("reduction", "tree reduction, 512k floats", (1 << 19, 2048), (1 << 19, 1), (256, 1)),
)


def checks(mode: str) -> AbstractContextManager[Any]:
    return softmetal.checking(*MODES[mode], seed=1) if MODES[mode] else nullcontext()


class Bench:
    """One kernel under all modes, on the same buffers."""

    def __init__(self, device: Any, library: Any, case: Case) -> None:
        self.case, self.queue = case, device.newCommandQueue()
        rng = np.random.default_rng(1)
        self.buffers = []
        for count in case.counts:
            data = rng.random(count, np.float32).tobytes()
            self.buffers.append(device.newBufferWithBytes_length_options_(data, len(data), 0))
        self.pipelines = {}
        for mode in MODES:
            with checks(mode):
                function = library.newFunctionWithName_(case.kernel)
                make = device.newComputePipelineStateWithFunction_error_
                self.pipelines[mode], error = make(function, None)
                assert error is None, error

    def seconds(self, mode: str) -> float:
        with checks(mode):
            commands = self.queue.commandBuffer()
            encoder = commands.computeCommandEncoder()
            encoder.setComputePipelineState_(self.pipelines[mode])
            for index, buffer in enumerate(self.buffers):
                encoder.setBuffer_offset_atIndex_(buffer, 0, index)
            encoder.dispatchThreads_threadsPerThreadgroup_(
                softmetal.MTLSizeMake(*self.case.grid, 1),
                softmetal.MTLSizeMake(*self.case.group, 1),
            )
            encoder.endEncoding()
            start = time.perf_counter()
            commands.commit()
            commands.waitUntilCompleted()
            elapsed = time.perf_counter() - start
            assert commands.error() is None, commands.error()
        return elapsed

    def medians(self) -> dict[str, float]:
        for mode in MODES:  # pages and caches
            self.seconds(mode)
        rounds = [{mode: self.seconds(mode) for mode in MODES} for _ in range(ROUNDS)]
        return {mode: statistics.median(each[mode] for each in rounds) for mode in MODES}


def main() -> int:
    device = softmetal.MTLCreateSystemDefaultDevice()
    library, error = device.newLibraryWithSource_options_error_(SOURCE, None, None)
    assert library is not None, error
    print("| kernel | plain | bounds | race | bounds, race, uninit |")
    print("|---|---|---|---|---|")
    for case in CASES:
        found = Bench(device, library, case).medians()
        plain = found["plain"]
        ratios = " | ".join(f"{found[mode] / plain:.1f}x" for mode in list(MODES)[1:])
        print(f"| {case.title} | {1e3 * plain:.1f} ms | {ratios} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
