"""lbrx's speed table: ratios within one run, sides interleaved, the median of several rounds.

python lbrx/benchmarks/lbrx_speed.py            # beside numpy and memcpy
python lbrx/benchmarks/lbrx_speed.py --peers    # beside torch and mlx too, where they are installed
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import lbrx_pool
import numpy as np

import lbrx
from lbrx import metal

ROUNDS = 15
GIGA = 1e9
Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """Something to time: ours, what it is compared with, and what limits it."""

    name: str
    ours: Work
    beside: Work
    against: str  # "numpy", or "memcpy" for bandwidth
    goal: float  # the least ratio
    nbytes: float = 0  # that ours moves
    flops: float = 0
    beside_bytes: float = 0  # that memcpy moves
    peers: dict[str, Work] = field(default_factory=dict)


def medians(works: dict[str, Work], rounds: int) -> dict[str, float]:
    """Seconds of each; they take turns, so that a busy machine is so for all."""
    for work in works.values():
        work()
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def run_once(compute: Callable[[], lbrx.Tensor]) -> Work:
    return lambda: lbrx.eval(compute())


def variants_of(work: Work) -> str:
    """Kernels that it runs, from the dispatch counters."""
    before = metal.stats()["kernels"]
    work()
    after = metal.stats()["kernels"]
    return ", ".join(name for name in after if after[name] > before.get(name, 0))


def measure(case: Case, rounds: int) -> str:
    """A row of the table."""
    seconds = medians({"ours": case.ours, "beside": case.beside} | case.peers, rounds)
    ours, beside = seconds["ours"], seconds["beside"]
    if case.against == "memcpy":
        ratio = (case.nbytes / ours) / (case.beside_bytes / beside)
    else:
        ratio = beside / ours
    speed = [f"{case.nbytes / ours / GIGA:.1f} GB/s"] if case.nbytes else []
    speed += [f"{case.flops / ours / GIGA:.0f} GFLOP/s"] if case.flops else []
    beside_peers = [f"{peer} {seconds[peer] / ours:.2f}" for peer in case.peers]
    verdict = "" if ratio >= case.goal else " (short)"
    cells = [
        case.name,
        f"{ours * 1e3:.2f} ms, {', '.join(speed)}",
        f"{ratio:.2f} of {case.against}{verdict}",
        f">= {case.goal}",
        "; ".join(beside_peers) or "-",
        variants_of(case.ours),
    ]
    return f"| {' | '.join(cells)} |"


class Peers:
    """torch and mlx, where they are installed; each case asks for its own way to compute."""

    def __init__(self, wanted: bool) -> None:
        names = [n for n in ("torch", "mlx") if wanted and find_spec(n) is not None]
        self.modules = {n: import_module("mlx.core" if n == "mlx" else n) for n in names}

    def compute(
        self, function: Callable[[Any, Any], Any], array: Any, dtype: str = ""
    ) -> dict[str, Work]:
        """For each peer: function(module, its own array), run to its end."""
        works = {}
        for name, module in self.modules.items():
            own = module.from_numpy(array) if name == "torch" else module.array(array)
            if dtype:
                kind = getattr(module, dtype)
                own = own.to(kind) if name == "torch" else own.astype(kind)
            works[name] = self._work(name, module, function, own)
        return works

    def _work(self, name: str, module: Any, function: Callable[[Any, Any], Any], own: Any) -> Work:
        if name == "mlx":
            return lambda: module.eval(function(module, own))
        return lambda: function(module, own)


def chain(x: Any, exp: Callable[[Any], Any]) -> Any:
    """What a feed-forward layer does to each element."""
    return x * 0.5 / (1.0 + exp(-x)) + x * x * 0.1 - 1.0


def numpy_softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def numpy_rms_norm(x: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def numpy_layer_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def matmul_case(rng: np.random.Generator, peers: Peers, n: int = 1024) -> Case:
    x = rng.standard_normal((n, n), np.float32)
    t = lbrx.tensor(x, device="metal")
    return Case(
        f"matmul f32 {n}",
        run_once(lambda: t @ t),
        lambda: x @ x,
        "numpy",
        0.9,
        flops=2 * n**3,
        peers=peers.compute(lambda m, a: a @ a, x),
    )


def row_cases(rng: np.random.Generator, peers: Peers, n: int = 4096) -> list[Case]:
    """Over a matrix: each reads it once and writes it once at best."""
    x = rng.standard_normal((n, n), np.float32)
    t = lbrx.tensor(x, device="metal")

    def case(name: str, ours: Callable[[], Any], numpy: Callable[[], Any], peer: Any) -> Case:
        title = f"{name} f32 {n}x{n}"
        works = peers.compute(peer, x)
        return Case(title, run_once(ours), numpy, "numpy", 3, 2 * x.nbytes, peers=works)

    def rms(m: Any, a: Any) -> Any:
        return a / (m.sqrt((a * a).mean(-1, keepdims=True) + 1e-5))

    def layer(m: Any, a: Any) -> Any:
        centred = a - a.mean(-1, keepdims=True)
        return centred / m.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)

    return [
        case(
            "elementwise chain",
            lambda: chain(t, lambda v: v.exp()),
            lambda: chain(x, np.exp),
            lambda m, a: chain(a, m.exp),
        ),
        case(
            "softmax", lambda: t.softmax(), lambda: numpy_softmax(x), lambda m, a: m.softmax(a, -1)
        ),
        case("rms_norm", lambda: t.rms_norm(), lambda: numpy_rms_norm(x), rms),
        case("layer_norm", lambda: t.layer_norm(), lambda: numpy_layer_norm(x), layer),
    ]


def bandwidth_cases(peers: Peers, n: int = 1 << 26) -> list[Case]:
    """Beside a memcpy of as many elements, which reads and writes each once."""
    x = np.ones(n, np.float32)
    target = np.empty_like(x)
    full = lbrx.tensor(x, device="metal")
    half = full.astype(lbrx.bfloat16)
    lbrx.eval(half)

    def case(name: str, goal: float, nbytes: int, ours: Any, works: dict[str, Work]) -> Case:
        return Case(
            name,
            run_once(ours),
            lambda: np.copyto(target, x),
            "memcpy",
            goal,
            nbytes,
            beside_bytes=2 * x.nbytes,
            peers=works,
        )

    def to_half(m: Any, a: Any) -> Any:
        return a.to(m.bfloat16) if hasattr(a, "to") else a.astype(m.bfloat16)

    def to_full(m: Any, a: Any) -> Any:
        return a.to(m.float32) if hasattr(a, "to") else a.astype(m.float32)

    return [
        case(
            "sum of 64M f32", 0.8, 4 * n, lambda: full.sum(), peers.compute(lambda m, a: a.sum(), x)
        ),
        case(
            "cast f32 to bf16, 64M",
            0.7,
            6 * n,
            lambda: full.astype("bfloat16"),
            peers.compute(to_half, x),
        ),
        case(
            "cast bf16 to f32, 64M",
            0.7,
            6 * n,
            lambda: half.astype("float32"),
            peers.compute(to_full, x, "bfloat16"),
        ),
    ]


def pool_row() -> str:
    gpu = metal.context()
    taken = lbrx_pool.microseconds(lambda: gpu.buffer(1 << 20), 2000)
    verdict = "" if taken < lbrx_pool.GOAL_US else " (short)"
    cells = ["pooled buffer of 1 MiB, taken and freed", f"{taken:.2f} us{verdict}", "-", "< 5 us"]
    return f"| {' | '.join(cells)} | - | - |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true", help="torch and mlx too, if installed")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    peers, rng = Peers(options.peers), np.random.default_rng(0)
    named = ", ".join(f"{n} {getattr(m, '__version__', '')}" for n, m in peers.modules.items())
    print(f"device {lbrx.devices()[0].name}, numpy {np.__version__}, {platform.machine()}")
    print(f"peers: {named or 'none'}; their ratios are their time by ours\n")
    print("| what | ours | ratio | goal | peers | kernels |")
    print("|---|---|---|---|---|---|")
    print(measure(matmul_case(rng, peers), options.rounds), flush=True)
    for case in row_cases(rng, peers):
        print(measure(case, options.rounds), flush=True)
    for case in bandwidth_cases(peers):
        print(measure(case, options.rounds), flush=True)
    print(pool_row())


if __name__ == "__main__":
    main()
