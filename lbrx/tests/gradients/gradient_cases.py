"""Calls of every differentiable operation: operands and attributes.

Operands are arrays of float64, except those that are not values; a call is repeated in other dtypes.
Elementwise operations, reductions and those along an axis take ranges and attributes from the
oracle's table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from op_oracle import ALONG_AXIS, ELEMENTWISE, REDUCTIONS, Row

from lbrx import ops
from lbrx.ops.vjp import Vjp

# Where a function has a corner or a jump, finite differences say nothing about its gradient.
CORNERS: Mapping[str, Sequence[float]] = {
    **dict.fromkeys(("relu", "leaky_relu", "abs", "sign"), (0.0,)),
    **dict.fromkeys(("floor", "ceil", "trunc"), tuple(range(-4, 5))),
    "round": tuple(n + 0.5 for n in range(-5, 5)),
}
# Ranges for operations that the oracle samples up to an edge, where their slope is infinite.
RANGES = {
    "asin": (-0.9, 0.9),
    "acos": (-0.9, 0.9),
    "acosh": (1.1, 4.0),
    "sqrt": (0.2, 4.0),
    "log1p": (-0.5, 4.0),
    "prod": (0.5, 1.7),
    "cumprod": (0.5, 1.7),
}


@dataclass(frozen=True)
class Case:
    """One call of an operation."""

    name: str
    operands: Sequence[Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        given = ",".join(f"{k}={v}" for k, v in self.attributes.items())
        return "-".join(filter(None, (self.name, given, self.note)))


def apart(values: np.ndarray, corners: Sequence[float], gap: float = 0.05) -> np.ndarray:
    """The values moved away from corners."""
    for corner in corners:
        near = np.abs(values - corner) < gap
        values = np.where(near, corner + np.where(values >= corner, gap, -gap), values)
    return values


def distinct(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Numbers from -2 to 2 of which no two are near: a maximum is one of them."""
    return rng.permutation(np.linspace(-2, 2, math.prod(shape))).reshape(shape)


def every(rng: np.random.Generator) -> Iterator[Case]:
    """All calls."""
    for name, row in ELEMENTWISE.items():
        if isinstance(ops.TABLE[name].vjp, Vjp):
            yield from _elementwise(name, row, rng)
    for name, row in {**REDUCTIONS, **ALONG_AXIS}.items():
        if isinstance(ops.TABLE[name].vjp, Vjp):
            yield from _along(name, row, rng, name in REDUCTIONS)
    for make in (_ternary, _norms, _products, _moves, _attention, _images, _quantized):
        yield from make(rng)


def _elementwise(name: str, row: Row, rng: np.random.Generator) -> Iterator[Case]:
    low, high = RANGES.get(name, (row.low, row.high))
    for attributes in row.attributes:
        for shapes in ([(2, 3)] * 3, [(2, 3), (3,), (2, 1)]):
            if row.operands == 1 and shapes[1] != shapes[0]:
                continue
            values = [
                apart(rng.uniform(low, high, shape), CORNERS.get(name, ()))
                for shape in shapes[: row.operands]
            ]
            if row.operands > 1 and name not in ("pow",):
                # No two operands, quotients or sums of them meet where the function has a corner.
                values = [x + 0.013 * i for i, x in enumerate(values)]
            yield Case(name, values, attributes, "broadcast" if shapes[1] != shapes[0] else "")


def _along(name: str, row: Row, rng: np.random.Generator, reduces: bool) -> Iterator[Case]:
    axes: list[Any] = (
        [{}, {"axis": 0}, {"axis": (0, 2), "keepdims": True}]
        if reduces
        else [
            {},
            {"axis": 1},
        ]
    )
    for attributes in row.attributes:
        for axis in axes:
            x = distinct(rng, (2, 3, 2))
            if name in RANGES:
                x = rng.uniform(*RANGES[name], x.shape)
            yield Case(name, [x], {**attributes, **axis})
    if name in ("prod", "cumprod"):
        x = rng.uniform(0.5, 1.7, (2, 4))
        x[0, 1] = x[1, 0] = x[1, 3] = 0
        yield Case(name, [x], {"axis": 1}, "zeros")


def _ternary(rng: np.random.Generator) -> Iterator[Case]:
    condition = rng.integers(0, 2, (2, 3)).astype(bool)
    yield Case("where", [condition, rng.normal(size=(2, 3)), rng.normal(size=(3,))])
    yield Case("cast", [rng.normal(size=(2, 3))], {"dtype": "float64"})


def _norms(rng: np.random.Generator) -> Iterator[Case]:
    x, weight, bias = rng.normal(size=(2, 3, 5)), rng.normal(size=5), rng.normal(size=5)
    other = rng.normal(size=x.shape)
    yield Case("rms_norm", [x], {"eps": 1e-3})
    yield Case("rms_norm", [x, weight])
    yield Case("layer_norm", [x], {"eps": 1e-3})
    yield Case("layer_norm", [x, weight, bias])
    yield Case("add_rms_norm", [x, other, weight])
    yield Case("add_layer_norm", [x, other, weight, bias])


def _products(rng: np.random.Generator) -> Iterator[Case]:
    for left, right in (
        *(((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,))),
        *(((2, 2, 3), (3, 4)), ((2, 1, 2, 3), (3, 3, 4)), ((3,), (2, 3, 4))),
    ):
        yield Case("matmul", [rng.normal(size=left), rng.normal(size=right)], note=f"{left}{right}")
    x, y, bias = rng.normal(size=(2, 3)), rng.normal(size=(3, 4)), rng.normal(size=4)
    for activation in (None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"):
        yield Case("matmul", [x, y, bias], {"activation": activation})


def _moves(rng: np.random.Generator) -> Iterator[Case]:
    x = distinct(rng, (3, 4))
    yield Case("copy", [x])
    yield Case("concat", [x, distinct(rng, (2, 4)), distinct(rng, (1, 4))])
    yield Case("concat", [x, distinct(rng, (3, 2))], {"axis": -1})
    yield Case("pad", [x], {"widths": ((1, 0), (2, 3)), "value": 2.0})
    yield Case("take", [x, np.array([[2, 0, 2], [1, -1, 0]])])
    yield Case("take", [distinct(rng, (2, 3, 4)), np.array([2, 0, 2])], {"axis": 1})
    yield Case("take", [x, np.array([5, 0, 2, -9])], {"beyond": "zeros"})
    indices = np.array([[0, 2, 2], [1, 0, -1], [3, 3, 3]])
    yield Case("gather", [x, indices])
    yield Case("gather", [x, np.array([[2, 1, 0, 0]])], {"axis": 0})
    for reduce in ("set", "add", "min", "max"):
        yield Case("scatter", [x, indices, distinct(rng, (3, 3)) + 0.01], {"reduce": reduce})
    yield Case("topk", [distinct(rng, (2, 5))], {"k": 3})
    yield Case("topk", [distinct(rng, (5, 2))], {"k": 2, "axis": 0, "largest": False})


def _attention(rng: np.random.Generator) -> Iterator[Case]:
    query, key = rng.normal(size=(2, 4, 3, 4)), rng.normal(size=(2, 2, 5, 4))
    value, mask = rng.normal(size=(2, 2, 5, 3)), rng.normal(size=(3, 5))
    hidden = np.where(rng.integers(0, 2, (2, 1, 3, 5)).astype(bool), 0.0, -np.inf)
    hidden[0, 0, 1] = -np.inf
    yield Case("attention", [query, key, value])
    yield Case("attention", [query, key, value], {"causal": True, "scale": 0.3})
    yield Case("attention", [query, key, value], {"causal": True, "window": 2})
    yield Case("attention", [query, key, value, mask], {"cap": 1.5})
    yield Case("attention", [query, key, value, mask[:1]], {"causal": True})
    lengths = np.array([5, 3])
    yield Case("attention", [query, key, value, None, lengths], {"causal": True})
    yield Case("attention", [query, key, value, hidden], note="hidden")
    sinks = rng.normal(size=4)
    yield Case("attention", [query, key, value, None, lengths, sinks], {"causal": True})
    yield Case("attention", [query, key, value, mask, None, sinks], {"cap": 1.5})
    x, positions = rng.normal(size=(2, 3, 6)), np.array([0, 5, 2])
    factors = rng.uniform(1, 2, 2)
    yield Case("rope", [x, positions])
    yield Case("rope", [x, positions, factors], {"dims": 4, "interleaved": True, "scale": 0.5})


def _images(rng: np.random.Generator) -> Iterator[Case]:
    x = distinct(rng, (2, 4, 7, 6)) * 3
    bias = rng.normal(size=6)
    for attributes in (
        {},
        {"stride": 2, "padding": 1},
        {"stride": (1, 3), "padding": "same", "dilation": 2},
        {"padding": ((0, 2), (1, 0)), "groups": 2},
        {"stride": 2, "dilation": (1, 2), "groups": 2},
        {"padding": 3},
    ):
        weight = rng.normal(size=(6, 4 // attributes.get("groups", 1), 3, 2))
        yield Case("conv2d", [x[:, :, :6, :5], weight, bias], attributes)
    for attributes in (
        {"kernel_size": 2},
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": 1},
        {"kernel_size": 2, "stride": 3},
        {"kernel_size": (2, 3), "padding": 1},
    ):
        yield Case("max_pool2d", [x], attributes)
        yield Case("avg_pool2d", [x], attributes)
    yield Case("avg_pool2d", [x], {"kernel_size": 3, "padding": 1, "count_include_pad": False})


def _quantized(rng: np.random.Generator) -> Iterator[Case]:
    from lbrx import quant

    x = rng.normal(size=(2, 3, 64))
    for scheme in ("q8_0", "q4_0", "mlx:4:32"):
        parts = []
        for _ in range(2):
            data, info = quant.quantize(
                rng.normal(size=(5, 64)).astype(np.float32), quant.find(scheme)
            )
            names = ops.quantized.stored_names(quant.find(scheme))[1:]
            parts += [data, *(info.arrays[name] for name in names)]
        yield Case("quantized_matmul", [x, *parts], {"scheme": scheme, "count": 2})
    indices = np.array([[0, 2], [1, 1], [2, 9]])
    stack = rng.normal(size=(3, 4, 32))
    yield Case("expert_matmul", [rng.normal(size=(3, 32)), indices, stack])
    uses = rng.normal(size=(3, 2, 32))
    yield Case("expert_matmul", [uses, indices, stack, 2 * stack], {"count": 2}, "uses")
    codes = quant.quantize(stack.astype(np.float32), quant.find("q8_0"))[0]
    yield Case("expert_matmul", [uses, indices, codes], {"scheme": "q8_0"})
    query = rng.normal(size=(1, 2, 3, 32))
    codes = [
        quant.quantize(rng.normal(size=(1, 1, 4, 32)).astype(np.float32), quant.find("q8_0"))[0]
        for _ in range(2)
    ]
    yield Case("quantized_attention", [query, *codes], {"causal": True})
