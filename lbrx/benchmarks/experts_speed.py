"""Mixtures of experts: grouped products beside dense ones; tokens and prompts of a random layer.

python lbrx/benchmarks/experts_speed.py [SCHEME ...]

Both sides of a ratio take turns, and each is the median of several rounds: on a busy machine ratios
stay right. "Dense" is one product with a matrix of the same bytes; "all experts" computes every
expert for every token by ordinary products and weights the others by zero.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import lbrx
from lbrx.tensors.quantized import expert_linears

SCHEMES = ("float32", "float16", "q8_0", "q4_0", "q4_k", "mlx:4:64")
ROUNDS = 15
EXPERTS, ROWS, COLUMNS = 64, 768, 1024
HIDDEN, INNER, COUNT, USED = 576, 1536, 8, 2  # SmolLM2's width, eight experts
BLOCK_HIDDEN = 512  # for schemes whose blocks have 256 values
PROMPT = 512

Work = Callable[[], object]


def ratio(work: Work, other: Work) -> tuple[float, float]:
    """Seconds of the work, and how many times faster it is than the other; they take turns."""
    times: tuple[list[float], list[float]] = ([], [])
    work(), other()
    for _ in range(ROUNDS):
        for each, kept in zip((work, other), times, strict=True):
            start = time.perf_counter()
            each()
            kept.append(time.perf_counter() - start)
    first, second = map(statistics.median, times)
    return first, second / first


def stored(values: np.ndarray, scheme: str) -> lbrx.Tensor:
    """Values on the device in a scheme or a floating type."""
    host = lbrx.tensor(values.astype(np.float32), device="cpu")
    kept = host.astype(scheme) if scheme.startswith("float") else lbrx.quantize(host, scheme)
    return kept.to_device("metal")


def grouped(scheme: str, rng: np.random.Generator) -> str:
    """One row for each of the experts, beside one row times all their rows as a matrix."""
    values = rng.standard_normal((EXPERTS, ROWS, COLUMNS)) * 0.1
    stack, matrix = stored(values, scheme), stored(values.reshape(-1, COLUMNS), scheme)
    x = lbrx.tensor(rng.standard_normal((8, COLUMNS)).astype(np.float32), device="metal")
    indices = lbrx.tensor(rng.permutation(EXPERTS).reshape(8, -1), device="metal")
    row = x[:1] if not scheme.startswith("float") else x[:1].astype(scheme)
    experts = lbrx.compile(lambda x, indices: expert_linears(x, indices, [stack])[0])
    dense = lbrx.compile(lambda row: lbrx.linear(row, matrix))
    _, times = ratio(lambda: lbrx.eval(experts(x, indices)), lambda: lbrx.eval(dense(row)))
    return f"64 experts, one row each: {times:.2f} of a dense product of the same bytes"


def mixture(scheme: str, tokens: int, rng: np.random.Generator) -> str:
    """The experts of a layer for some tokens, beside all experts for all tokens."""
    hidden = BLOCK_HIDDEN if scheme.endswith("_k") else HIDDEN
    shapes = {
        "gate": (COUNT, INNER, hidden),
        "up": (COUNT, INNER, hidden),
        "down": (COUNT, hidden, INNER),
    }
    stacks = {n: stored(rng.standard_normal(shape) * 0.05, scheme) for n, shape in shapes.items()}
    single = {
        n: [stored(rng.standard_normal(shape[1:]) * 0.05, scheme) for _ in range(COUNT)]
        for n, shape in shapes.items()
    }
    x = lbrx.tensor(rng.standard_normal((tokens, hidden)).astype(np.float32), device="metal")
    scores = lbrx.tensor(rng.standard_normal((tokens, COUNT)).astype(np.float32), device="metal")

    def linear(x: lbrx.Tensor, weight: lbrx.Tensor) -> lbrx.Tensor:
        if not scheme.startswith("float"):
            return lbrx.linear(x, weight)
        return lbrx.linear(x.astype(weight.dtype), weight).astype(x.dtype)

    def chosen(x: lbrx.Tensor, scores: lbrx.Tensor) -> lbrx.Tensor:
        shares, indices = scores.softmax().topk(USED)
        gate, up = expert_linears(x, indices, [stacks["gate"], stacks["up"]])
        (out,) = expert_linears(gate.swiglu(up), indices, [stacks["down"]])
        return (out * shares.unsqueeze(-1)).sum(axis=1)

    def every(x: lbrx.Tensor, scores: lbrx.Tensor) -> lbrx.Tensor:
        shares, indices = scores.softmax().topk(USED)
        parts = []
        for i in range(COUNT):
            gate, up = linear(x, single["gate"][i]), linear(x, single["up"][i])
            share = (shares * (indices == i)).sum(axis=-1, keepdims=True)
            parts.append(linear(gate.swiglu(up), single["down"][i]) * share)
        return sum(parts[1:], start=parts[0])

    one, other = lbrx.compile(chosen), lbrx.compile(every)
    seconds, times = ratio(lambda: lbrx.eval(one(x, scores)), lambda: lbrx.eval(other(x, scores)))
    sizes = f"{tokens} tokens, {USED} of {COUNT} experts"
    return f"{sizes}: {seconds * 1e6:,.0f} us, {times:.2f} times all experts"


def main(schemes: list[str]) -> None:
    rng = np.random.default_rng(0)
    for scheme in schemes or SCHEMES:
        for told in (grouped(scheme, rng), mixture(scheme, 1, rng), mixture(scheme, PROMPT, rng)):
            print(f"{scheme}: {told}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
