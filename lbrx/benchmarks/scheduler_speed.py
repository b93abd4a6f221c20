"""The scheduler's speed: fusion against memcpy, library kernels and no fusion; replay; profiling;
the time of one small operation beside torch's, where torch is installed.

Ratios within one run, sides interleaved, the median of the rounds. Run on a quiet machine:
    python lbrx/benchmarks/scheduler_speed.py [PART ...]
where a part is the name of a function below, such as `overhead`; all by default.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
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


def microseconds(function: Callable[[], object], calls: int = 20, rounds: int = 100) -> float:
    """The least time of a call, by the mean of a few: others that use the machine lengthen it."""

    def several() -> None:
        for _ in range(calls):
            function()

    several()
    return min(seconds(several) for _ in range(rounds)) / calls * 1e6


def overhead() -> None:
    """The time of operations so small that only the host's part counts, and of one sum."""
    values = {side: rng.standard_normal((side, side)).astype("f4") for side in (4, 2048)}
    small, large = (lbrx.tensor(v, device="metal") for v in values.values())
    twice = lbrx.compile(lambda x: x + x)
    ours: dict[str, Callable[[], object]] = {
        "x + x, 4x4": lambda: (small + small).numpy(),
        "x.sum(), 4x4": lambda: small.sum().numpy(),
        "x.sum(), 2048x2048": lambda: large.sum().numpy(),
        "a chain of 5 operations, 4x4": lambda: ((small * 2.0 + small).exp() @ small).sum().item(),
        "x + x, 4x4, replayed": lambda: twice(small).numpy(),
    }
    peer: dict[str, Callable[[], object]] = {}
    with contextlib.suppress(ModuleNotFoundError):
        import torch

        one, many = (torch.from_numpy(v) for v in values.values())
        peer = {
            "x + x, 4x4": lambda: (one + one).numpy(),
            "x.sum(), 4x4": lambda: one.sum().numpy(),
            "x.sum(), 2048x2048": lambda: many.sum().numpy(),
            "a chain of 5 operations, 4x4": lambda: ((one * 2.0 + one).exp() @ one).sum().item(),
        }
    for name, function in ours.items():
        beside = f", torch {microseconds(peer[name]):.1f}" if name in peer else ""
        print(f"{name}: {microseconds(function):.0f} us{beside}")
    built = microseconds(lambda: small + small)
    print(f"x + x, 4x4, without its values: {built:.0f} us")


PARTS = {part.__name__: part for part in (fusion, rounding, replay, profiling, overhead)}


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PARTS:
        PARTS[chosen]()
