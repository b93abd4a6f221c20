"""Arguments for measuring metal_math, and the measurement itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from harness import Case, evaluate_all
from math_table import F32, FUNCTIONS, Function, errors
from seeds import generator

PATTERNS = 500_000  # random bit patterns; as many again come from the function's usual range
SMALL = [0, 0.25, 0.49999997, 0.5, 0.75, 0.99999994, 1, 1.0000001, 1.5, 2, 2.5, 3]
EDGE_OF_RANGE = [87.33655, 88.72284, 100, 8388609, 1e10, 3.4028235e38, np.inf, 1.1754944e-38, 1e-45]
EDGES = np.array([*SMALL, *EDGE_OF_RANGE], np.float32)
MIN_NORMAL = 2.0**-126


def near_multiples_of_half_pi() -> F32:
    """The worst arguments of the trigonometric functions: floats next to k * pi / 2."""
    k = np.unique(np.concatenate([np.arange(1, 3000), np.geomspace(3000, 2**40, 30000) // 1]))
    return (k * (np.pi / 2)).astype(np.float32)


def arguments(function: Function, rng: np.random.Generator) -> list[F32]:
    low, high = max(function.low, -100.0), min(function.high, 100.0)
    edges = np.concatenate([EDGES, -EDGES, [np.float32(np.nan)]])
    grids = np.meshgrid(*[edges] * function.arity)
    columns = []
    for grid in grids:
        patterns = rng.integers(0, 2**32, PATTERNS, dtype=np.uint32).view(np.float32)
        usual = rng.uniform(low, high, PATTERNS).astype(np.float32)
        both = np.concatenate([patterns, usual])
        if function.arity > 1:
            rng.shuffle(both)
        columns.append(np.concatenate([both, grid.ravel().astype(np.float32)]))
    if function.name in ("sin", "cos", "tan"):
        columns[0] = np.concatenate([columns[0], near_multiples_of_half_pi()])
    return columns


@dataclass(frozen=True)
class Measurement:
    function: Function
    worst: float  # ulp
    excess: float  # the largest error as a part of what is allowed there
    at: tuple[float, ...]  # the arguments of that
    got: float
    exact: float

    def __str__(self) -> str:
        where = ", ".join(repr(v) for v in self.at)
        return f"{self.function.name}({where}) = {self.got!r}, exactly {self.exact!r}"


def _flushed(columns: list[Any], exact: Any, got: F32) -> Any:
    """Where the fast functions may take a denormal for zero."""
    small = [(np.abs(c) < MIN_NORMAL) & (c != 0) for c in columns]
    tiny = (np.abs(exact) < MIN_NORMAL) & (np.abs(got) <= MIN_NORMAL)
    return np.logical_or.reduce([*small, tiny])


def compare(function: Function, fast: bool, columns: list[F32], got: F32) -> Measurement:
    with np.errstate(all="ignore"):
        wide = [c.astype(np.float64) for c in columns]
        exact = np.asarray(function.oracle(*wide), np.float64)
        error = errors(got, exact)
        allowed = np.broadcast_to(function.bound(fast, exact, *wide), error.shape)
        if fast:
            low, high = function.fast_range
            inside = ~np.isfinite(wide[0]) | ((wide[0] > low) & (wide[0] < high))
            error = np.where(inside & ~_flushed(wide, exact, got), error, 0.0)
        part = np.where(error == 0, 0.0, error / np.maximum(allowed, 1e-30))
    at = int(np.argmax(part))
    values = tuple(float(c[at]) for c in columns)
    worst = float(error.max())
    return Measurement(function, worst, float(part[at]), values, float(got[at]), float(exact[at]))


def call(space: str, function: Function) -> str:
    return f"{space}::{function.name}({', '.join('abc'[: function.arity])})"


def measure_all(space: str, fast_math: bool) -> dict[str, Measurement]:
    """Every function of metal::fast or metal::precise, compiled with or without fast maths."""
    rng = generator()
    columns = [arguments(f, rng) for f in FUNCTIONS]
    cases = [Case(call(space, f), c) for f, c in zip(FUNCTIONS, columns, strict=True)]
    results = evaluate_all(cases, fast_math)
    return {
        f.name: compare(f, space == "fast", c, r.astype(np.float32))
        for f, c, r in zip(FUNCTIONS, columns, results, strict=True)
    }
