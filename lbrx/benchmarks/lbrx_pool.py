"""What a buffer costs, from lbrx's pool and from Metal itself, and how much memory is reserved for
what programs use.

python lbrx/benchmarks/lbrx_pool.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import lbrx
from lbrx.metal import context
from lbrx.metal.binding import Metal

ROUNDS = 9
GOAL_US = 5.0
STEPS, SEED = 1000, 1
WIDTH = 256
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


def mixed_steps(steps: int = STEPS, seed: int = SEED) -> tuple[int, int]:
    """Eager operations of any size, a compiled function, and attention to a cache that grows.
    Returns the most bytes reserved, and the most in use."""
    rng = np.random.default_rng(seed)
    weights = [lbrx.ones((WIDTH, WIDTH), device="metal") / WIDTH for _ in range(4)]
    keys = lbrx.zeros((1, 4, 16, 64), device="metal")

    @lbrx.compile
    def network(x: lbrx.Tensor) -> lbrx.Tensor:
        for weight in weights:
            x = (x @ weight).gelu()
        return x

    for step in range(steps):
        if step % 3 == 0:
            values = rng.standard_normal((rng.integers(1, 2000), WIDTH), np.float32)
            x = lbrx.tensor(values, device="metal")
            ((x * 2 + 1).softmax(axis=-1) @ weights[0]).sum(axis=0).numpy()
        elif step % 3 == 1:
            network(lbrx.ones((64 * int(rng.integers(1, 5)), WIDTH), device="metal")).numpy()
        else:
            keys = lbrx.concat([keys, lbrx.ones((1, 4, 8, 64), device="metal")], axis=2)
            lbrx.ones((1, 4, 1, 64), device="metal").attention(keys, keys).numpy()
    found = lbrx.metal.stats()
    most, used = found["bytes_reserved_high_water"], found["bytes_high_water"]
    print(f"{steps:,} mixed steps, seed {seed}: at most {used / 1e6:.1f} MB in use")
    print(f"at most {most / 1e6:.1f} MB reserved, {most / used:.2f} of it (goal < 1.2)")
    print(f"{found['pool_hits']:,} requests served by the pool, {found['pool_misses']:,} by Metal")
    return most, used


def costs() -> None:
    """Of buffers and of a dispatch."""
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


def main() -> None:
    costs()
    context().close()  # the next one has figures of its own
    mixed_steps()


if __name__ == "__main__":
    main()
