"""What safety costs on an NVIDIA GPU: loops that look whether they have to end, and vectors that
look at their address.

    SOFTMETAL_DEVICE=cuda:0 python softmetal/benchmarks/cuda_costs.py

Prints ratios within one run: the time with a look by the time without, the best of several turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import softmetal

THREADS = 1 << 20
BYTES = 1 << 30
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void collatz(device uint* x, uint i [[thread_position_in_grid]]) {
  uint v = i + 1, c = 0;
  while (v != 1) { v = v & 1 ? 3 * v + 1 : v / 2; c++; }
  x[i] = c;
}
kernel void chase(device uint* x, uint i [[thread_position_in_grid]]) {
  uint v = i;
  for (uint k = 0; k < 64; k++) v = x[v & 0xfffff];
  while (v > 0x7fffffff) v = x[v & 0xfffff];
  x[i] = v & 1;
}
kernel void typed(device float4* x, device float4* y, uint i [[thread_position_in_grid]]) {
  y[i] = x[i];
}
kernel void cast(device float* x, device float* y, uint i [[thread_position_in_grid]]) {
  *(device float4*)(y + 4 * i) = *(device float4*)(x + 4 * i);
}
"""


def seconds(name: str, buffers: list[Any], threads: int) -> float:
    """The GPU's time for one kernel."""
    device = softmetal.MTLCreateSystemDefaultDevice()
    library, error = device.newLibraryWithSource_options_error_(SOURCE, None, None)
    assert library is not None, error
    pipeline, error = device.newComputePipelineStateWithFunction_error_(
        library.newFunctionWithName_(name), None
    )
    assert pipeline is not None, error
    queue, times = device.newCommandQueue(), []
    for _ in range(10):
        commands = queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline)
        for index, buffer in enumerate(buffers):
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)
        size = softmetal.MTLSizeMake
        encoder.dispatchThreads_threadsPerThreadgroup_(size(threads, 1, 1), size(256, 1, 1))
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        assert commands.error() is None, commands.error()
        times.append(commands.GPUEndTime() - commands.GPUStartTime())
    return min(times)


def private(length: int) -> Any:
    device = softmetal.MTLCreateSystemDefaultDevice()
    return device.newBufferWithLength_options_(length, softmetal.MTLResourceStorageModePrivate)


def loop_times() -> list[float]:
    return [seconds(name, [private(4 * THREADS)], THREADS) for name in ("collatz", "chase")]


def without_looks() -> list[float]:
    """The same in a process whose kernels do not look."""
    command = [sys.executable, __file__, "--loops"]
    settings = {**os.environ, "SOFTMETAL_TIMEOUT": "0"}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    if "--loops" in sys.argv:
        print(*loop_times())
        return
    for name, looking, plain in zip(
        ("collatz", "chase"), loop_times(), without_looks(), strict=True
    ):
        print(f"{name}: {looking * 1e3:.2f} ms, {looking / plain:.2f} of the time without a look")
    x, y = private(BYTES), private(BYTES)
    typed, cast = (seconds(name, [x, y], BYTES // 16) for name in ("typed", "cast"))
    speed = 2 * BYTES / typed / 1e12
    print(f"copy: {speed:.2f} TB/s by float4*, {cast / typed:.2f} of its time by casts")


if __name__ == "__main__":
    main()
