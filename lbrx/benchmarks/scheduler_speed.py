"""The scheduler's speed: fusion against memcpy, library kernels and no fusion; replay; profiling.

Ratios within one run, sides interleaved, the median of the rounds. Run on a quiet machine:
    python lbrx/benchmarks/scheduler_speed.py
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import numpy as np

import lbrx

ROUNDS = 7
rng = np.random.default_rng(0)


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def ratio(ours: Callable[[], object], other: Callable[[], object]) -> float:
    """How many times as fast ours is."""
    ours(), other()
    return statistics.median(seconds(other) / seconds(ours) for _ in range(ROUNDS))


def evaluated(build: Callable[[], lbrx.Tensor]) -> Callable[[], None]:
    return lambda: lbrx.eval(build())


def unfused(build: Callable[[], lbrx.Tensor]) -> Callable[[], None]:
    def run() -> None:
        os.environ["LBRX_FUSION"] = "0"
        try:
            lbrx.eval(build())
        finally:
            del os.environ["LBRX_FUSION"]

    return run


def softmax(x: lbrx.Tensor) -> lbrx.Tensor:
    powers = (x - x.max(axis=-1, keepdims=True)).exp()
    return powers / powers.sum(axis=-1, keepdims=True)


def layer_norm(x: lbrx.Tensor) -> lbrx.Tensor:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / ((centred * centred).mean(axis=-1, keepdims=True) + 1e-5).sqrt()


def fusion() -> None:
    a, b = (lbrx.tensor(rng.standard_normal(1 << 24).astype("f4"), device="metal") for _ in "ab")
    x = lbrx.tensor(rng.standard_normal((4096, 4096)).astype("f4"), device="metal")
    source, target = np.ones(1 << 24, np.float32), np.empty(1 << 24, np.float32)
    chain = lambda: ((a * b + a) * 0.5 - b).silu() * b + a * 2.0  # noqa: E731
    # A copy moves an array twice, the chain three times: two in, one out.
    copy = 1.5 * ratio(evaluated(chain), lambda: np.copyto(target, source))
    print(f"8 elementwise operations, 16M: {copy:.2f} of a memcpy of its 201 MB (goal 0.77)")
    for name, hand, library in (
        ("softmax", lambda: softmax(x), lambda: x.softmax()),
        ("layer_norm", lambda: layer_norm(x), lambda: x.layer_norm()),
    ):
        against = ratio(evaluated(hand), evaluated(library))
        print(f"{name} by hand, 4096x4096: {against:.2f} of the library kernel (goal 0.77)")
    for name, build in (
        ("chain", chain),
        ("softmax by hand", lambda: softmax(x)),
        ("layer_norm by hand", lambda: layer_norm(x)),
    ):
        print(
            f"{name}: fused {ratio(evaluated(build), unfused(build)):.1f} times the unfused speed"
        )


def rounding() -> None:
    """What rounding after every operation costs, against kernels that keep float32 throughout."""
    for dtype in ("float32", "float16", "bfloat16"):
        made = (lbrx.tensor(rng.standard_normal(1 << 24).astype("f4")).astype(dtype) for _ in "ab")
        a, b = (x.to_device("metal") for x in made)

        def exact(a: lbrx.Tensor = a, b: lbrx.Tensor = b) -> None:
            lbrx.eval(((a * b + a) * 0.5 - b).silu() * b + a * 2.0)

        def excess(exact: Callable[[], None] = exact) -> None:
            with lbrx.excess_precision():
                exact()

        print(f"rounding in a chain of {dtype}: {ratio(excess, exact):.2f} times excess_precision")


def replay() -> None:
    weights = [
        lbrx.tensor(rng.standard_normal((64, 64)).astype("f4") * 0.1, device="metal")
        for _ in range(150)
    ]
    x = lbrx.tensor(rng.standard_normal((1, 64)).astype("f4"), device="metal")

    @lbrx.compile
    def network(x: lbrx.Tensor) -> lbrx.Tensor:
        for w in weights:
            x = (x @ w).gelu() + x
        return x

    lbrx.eval(network(x))
    with lbrx.profile() as seen:
        lbrx.eval(network(x))
    kernels = len(seen.records)
    host, whole = [], []
    for _ in range(30):
        start = time.perf_counter()
        result = network(x)
        host.append(time.perf_counter() - start)
        lbrx.eval(result)
        whole.append(time.perf_counter() - start)
    each = [statistics.median(times) / kernels * 1e6 for times in (host, whole)]
    print(
        f"replay of {kernels} small kernels: {each[0]:.2f} us of the host a kernel (goal 5), "
        f"{each[1]:.2f} us in all (goal 10)"
    )


def profiling() -> None:
    x = lbrx.tensor(rng.standard_normal((2048, 2048)).astype("f4"), device="metal")

    def work() -> None:
        y = x
        for _ in range(4):
            y = softmax(y) @ x
        lbrx.eval(y)

    def profiled() -> None:
        with lbrx.profile():
            work()

    cost = 1 / ratio(profiled, work) - 1
    print(f"profiling a graph of large kernels costs {cost:+.1%} (goal under 5%)")


if __name__ == "__main__":
    fusion()
    rounding()
    replay()
    profiling()
