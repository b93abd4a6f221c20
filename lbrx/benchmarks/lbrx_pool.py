"""What a buffer costs: from lbrx's pool, and from Metal itself.

python lbrx/benchmarks/lbrx_pool.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from lbrx.metal import context
from lbrx.metal.binding import Metal

ROUNDS = 9
GOAL_US = 5.0
FILL = """
kernel void fill(device uint* x [[buffer(0)]], constant uint& value [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) { x[i] = value; }
"""


def microseconds(function: Callable[[], object], repeats: int) -> float:
    """Of one call, in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        best = min(best, time.perf_counter() - start)
    return best / repeats * 1e6


def main() -> None:
    gpu = context()
    shared = Metal.MTLResourceStorageModeShared
    print(f"device  {gpu.info.name}; microseconds to create and free a buffer (goal < {GOAL_US:g})")
    print(f"{'bytes':>12} {'pooled':>8} {'newBuffer':>10} {'ratio':>6}")
    for size in (256, 4096, 1 << 20, 64 << 20):
        pooled = microseconds(lambda size=size: gpu.buffer(size), 5000)
        plain = microseconds(
            lambda size=size: gpu.device.newBufferWithLength_options_(size, shared), 500
        )
        print(f"{size:>12,} {pooled:>8.2f} {plain:>10.2f} {plain / pooled:>6.1f}")
    pipeline = gpu.shaders.pipeline("fill", "fill", source=FILL)
    target, value = gpu.buffer(4096), np.uint32(1).tobytes()
    encode = microseconds(
        lambda: gpu.queue.dispatch(pipeline, [target, value], (64, 1, 1), (64, 1, 1)), 2000
    )
    gpu.queue.wait()
    print(f"a dispatch, encoded and run: {encode:.2f} us")


if __name__ == "__main__":
    main()
