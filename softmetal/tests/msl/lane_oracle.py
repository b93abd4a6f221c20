"""What simdgroup and quadgroup functions mean, in numpy, and a kernel that calls them all.

An expectation takes x (lanes, elements) and a mask of the active lanes, and gives a value for each
lane; those of inactive lanes are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from groups import Library
from numpy.typing import NDArray
from seeds import generator

Array = NDArray[Any]
Mask = NDArray[np.bool_]
Expectation = Callable[[Array, Mask], Array]

# The last rounding of a float result to its type.
ROUNDING = {
    np.dtype(np.float32): 0.0,
    np.dtype(np.float16): 2.0**-11,
    np.dtype(ml_dtypes.bfloat16): 2.0**-8,
}
FLOATS = tuple(ROUNDING)
SENTINEL = 77

# (threads, threads a threadgroup): a partial simdgroup; several, with a ragged last threadgroup.
GRIDS = ((45, 45), (200, 64))

# Which lanes call: all, a prefix, a pattern that leaves some quads empty.
ACTIVE: Sequence[tuple[str, Callable[[Array], Mask]]] = (
    ("true", lambda lane: np.full(lane.shape, True)),
    ("lane < 7", lambda lane: lane < 7),
    ("lane % 3 == 1 && lane > 8", lambda lane: (lane % 3 == 1) & (lane > 8)),
)


@dataclass(frozen=True)
class Op:
    """One call; `{p}` is simd or quad, x the operand, lane the lane's index."""

    call: str
    expect: Expectation
    exact: bool = True
    integers_only: bool = False


def wide(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype in FLOATS else x


def reduction(ufunc: np.ufunc) -> Expectation:
    def expect(x: Array, active: Mask) -> Array:
        values = wide(x)
        return np.broadcast_to(ufunc.reduce(values[active], axis=0, dtype=values.dtype), x.shape)

    return expect


def scan(ufunc: np.ufunc, inclusive: bool) -> Expectation:
    def expect(x: Array, active: Mask) -> Array:
        out = wide(x).copy()
        running = ufunc.accumulate(out[active], axis=0, dtype=out.dtype)
        if not inclusive:
            first = np.full_like(running[:1], ufunc.identity)
            running = np.concatenate([first, running[:-1]])
        out[active] = running
        return out

    return expect


def shuffle(source: Callable[[Array, int], Array]) -> Expectation:
    """source(lane, width) -> lane to read; out of range or inactive gives the own value."""

    def expect(x: Array, active: Mask) -> Array:
        lanes = np.arange(len(x))
        read = source(lanes, len(x))
        inside = (read >= 0) & (read < len(x))
        read = np.where(inside, read, lanes)
        return x[np.where(active[read], read, lanes)]

    return expect


def fill(sign: int, delta: int, modulo: int | None = None) -> Expectation:
    """The filling data are x + 1."""

    def expect(x: Array, active: Mask) -> Array:
        width = modulo or len(x)
        lanes = np.arange(len(x))
        place = lanes % width + sign * delta
        read = lanes - lanes % width + place % width
        read = np.where(active[read], read, lanes)
        inside = (place >= 0) & (place < width)
        filling = (x + np.ones((), x.dtype)).astype(x.dtype)
        chosen: Array = np.where(inside[:, None], x[read], filling[read])
        return chosen

    return expect


def first(x: Array, active: Mask) -> Array:
    return np.broadcast_to(x[active][:1], x.shape)


OPS = (
    Op("{p}_sum(x)", reduction(np.add), exact=False),
    Op("{p}_product(x)", reduction(np.multiply), exact=False),
    Op("{p}_min(x)", reduction(np.minimum)),
    Op("{p}_max(x)", reduction(np.maximum)),
    Op("{p}_and(x)", reduction(np.bitwise_and), integers_only=True),
    Op("{p}_or(x)", reduction(np.bitwise_or), integers_only=True),
    Op("{p}_xor(x)", reduction(np.bitwise_xor), integers_only=True),
    Op("{p}_prefix_inclusive_sum(x)", scan(np.add, True), exact=False),
    Op("{p}_prefix_exclusive_sum(x)", scan(np.add, False), exact=False),
    Op("{p}_prefix_inclusive_product(x)", scan(np.multiply, True), exact=False),
    Op("{p}_prefix_exclusive_product(x)", scan(np.multiply, False), exact=False),
    Op("{p}_broadcast(x, 3)", shuffle(lambda i, w: np.full_like(i, 3))),
    Op("{p}_broadcast_first(x)", first),
    Op("{p}_shuffle(x, (lane * 5 + 1) % {w})", shuffle(lambda i, w: (i * 5 + 1) % w)),
    Op("{p}_shuffle_up(x, 2)", shuffle(lambda i, w: i - 2)),
    Op("{p}_shuffle_down(x, 3)", shuffle(lambda i, w: i + 3)),
    Op("{p}_shuffle_xor(x, 2)", shuffle(lambda i, w: i ^ 2)),
    Op("{p}_shuffle_rotate_up(x, 1)", shuffle(lambda i, w: (i - 1) % w)),
    Op("{p}_shuffle_rotate_down(x, 3)", shuffle(lambda i, w: (i + 3) % w)),
    Op("{p}_shuffle_and_fill_up(x, x + T(1), 1)", fill(-1, 1)),
    Op("{p}_shuffle_and_fill_down(x, x + T(1), 3)", fill(+1, 3)),
    Op("{p}_shuffle_and_fill_up(x, x + T(1), 1, 2)", fill(-1, 1, 2)),
    Op("{p}_shuffle_and_fill_down(x, x + T(1), 3, 4)", fill(+1, 3, 4)),
)


def operand(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, int]) -> Array:
    """Integers over their whole range (results wrap); floats that keep products near 1."""
    if dtype in FLOATS:
        magnitude = 2 ** rng.uniform(-0.5, 0.5, shape)
        signed: Array = magnitude * rng.choice([-1, 1], shape)
        return signed.astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def source(prefix: str, width: int, msl_type: str, ops: Sequence[Op]) -> str:
    calls = "\n".join(
        f"  out[{k} * n + i] = {op.call.format(p=prefix, w=width)};" for k, op in enumerate(ops)
    )
    active = " || ".join(f"(mode == {m} && ({text}))" for m, (text, _) in enumerate(ACTIVE))
    return f"""
#include <metal_stdlib>
using namespace metal;
typedef {msl_type} T;
kernel void all_ops(device T* out [[buffer(0)]], device const T* in [[buffer(1)]],
                    constant uint& n [[buffer(2)]], constant uint& mode [[buffer(3)]],
                    uint i [[thread_position_in_grid]],
                    uint lane [[thread_index_in_simdgroup]]) {{
  T x = in[i];
  if (!({active})) return;
{calls}
}}"""


def groups_of(threads: int, group: int, width: int) -> Iterator[NDArray[np.int64]]:
    """The threads of each simdgroup or quadgroup; a partial one is short."""
    for start in range(0, threads, group):
        end = min(start + group, threads)
        for base in range(start, end, width):
            yield np.arange(base, min(base + width, end))


def expected(op: Op, x: Array, active: Mask, group: int, width: int) -> Array:
    out = np.full(x.shape, SENTINEL, wide(x).dtype)
    for members in groups_of(len(x), group, width):
        values = np.zeros((width, x.shape[1]), x.dtype)
        mask = np.zeros(width, bool)
        values[: len(members)] = x[members]
        mask[: len(members)] = active[members]
        if mask.any():
            calling = members[active[members]]
            out[calling] = op.expect(values, mask)[: len(members)][active[members]]
    return out


def tolerances(dtype: np.dtype[Any], op: Op) -> tuple[float, float]:
    """Relative and absolute, of sums and products of 32 numbers near 1 that are made in float."""
    if op.exact or dtype not in FLOATS:
        return 0.0, 0.0
    accumulated = float(np.finfo(np.float32).eps) * 100
    return accumulated + ROUNDING[dtype], accumulated


def check_all_ops(prefix: str, width: int, msl_type: str, dtype: np.dtype[Any]) -> None:
    """Every operation on one type, on every grid and set of active lanes."""
    elements = int(msl_type[-1]) if msl_type[-1] in "234" else 1
    stride = 4 if elements == 3 else elements
    ops = [op for op in OPS if not (op.integers_only and dtype in FLOATS)]
    library = Library(source(prefix, width, msl_type, ops))
    rng = generator(1)
    for threads, group in GRIDS:
        x = operand(rng, dtype, (threads, stride))
        lane = np.arange(threads) % group % 32
        for mode, (text, select) in enumerate(ACTIVE):
            out = np.full((len(ops), threads, stride), SENTINEL, dtype)
            scalars = [np.array([threads], np.uint32), np.array([mode], np.uint32)]
            library.run("all_ops", [out, x, *scalars], threads, group)
            for op, got in zip(ops, out[..., :elements], strict=True):
                want = expected(op, x[:, :elements], select(lane), group, width)
                label = f"{op.call.format(p=prefix, w=width)} on {msl_type}, {text}, {group}"
                rtol, atol = tolerances(dtype, op)
                np.testing.assert_allclose(wide(got), want, rtol, atol, err_msg=label)
