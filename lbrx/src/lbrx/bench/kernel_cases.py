"""What the `kernels` suite measures: every family of kernels, at three sizes and in each dtype.

`nbytes` and `operations` are what the mathematics needs at least: inputs read once, results written
once. A kernel that moves more reaches a smaller share of the ceiling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

import lbrx
from lbrx import quant

Array = np.ndarray[Any, Any]
Made = lbrx.Tensor | tuple[lbrx.Tensor, ...]
DTYPES = "float32", "float16", "bfloat16"
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
SIZES = "small", "medium", "large"
SCHEMES = "q4_0", "q8_0", "q4_k", "q6_k", "mlx:4:64"
SHORT_DTYPES = "chain", "softmax", "matmul"
SHORT_SCHEMES = "q4_0", "q8_0"
# Rows and columns of matrices for kernels that are limited by memory: 1, 16 and 128 MiB of float32.
MATRIX = {"small": (256, 1024), "medium": (2048, 2048), "large": (8192, 4096)}
SQUARE = {"small": 256, "medium": 1024, "large": 2048}


@dataclass(frozen=True)
class KernelCase:
    """A computation with its inputs, which peers compute too."""

    family: str
    operation: str  # in the peers' tables
    dtype: str
    shape: tuple[int, ...]
    inputs: Callable[[np.random.Generator], tuple[Array, ...]]
    """Floating inputs are float32 here and converted to the dtype; integers stay."""
    ours: Callable[..., Made]
    nbytes: float
    operations: float = 0.0
    reads: bool = False  # writes little: a plain read is a ceiling
    side: int = 0  # of a square matrix product
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    fused: bool = True
    scheme: str = ""
    """The last input is a weight that is quantized; peers get its decoded values."""
    compiled: bool = False  # recorded once by lbrx.compile and replayed
    random: bool = False  # results that no reference can predict

    @property
    def name(self) -> str:
        return self.label or self.operation


def cases(short: bool) -> list[KernelCase]:
    """The suite; the short one has one size, and other dtypes than float32 for a few families."""
    if short:
        found = list(_all("medium", "float32"))
        for dtype in DTYPES[1:]:
            found += [c for c in _all("medium", dtype) if c.name in SHORT_DTYPES]
        return [c for c in found if not c.scheme or c.scheme in SHORT_SCHEMES]
    return [case for size in SIZES for dtype in DTYPES for case in _all(size, dtype)]


def _all(size: str, dtype: str) -> Iterator[KernelCase]:
    yield from _elementwise(size, dtype)
    yield from _rows(size, dtype)
    yield from _products(size, dtype)
    yield from _attention(size, dtype)
    yield from _images(size, dtype)
    yield from _indexing(size, dtype)
    if dtype == "float32":
        yield from _ordering(size)
        yield from _quantized(size)
        yield _recurrence(size)
        yield _replay(size)


def _normal(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Array, ...]]:
    return lambda rng: tuple(rng.standard_normal(shape, np.float32) for shape in shapes)


def _chain(x: Any) -> Any:
    return x * 0.5 / (1.0 + (-x).exp()) + x * x * 0.1 - 1.0


def _softmax_by_hand(x: Any) -> Any:
    powers = (x - x.max(axis=-1, keepdims=True)).exp()
    return powers / powers.sum(axis=-1, keepdims=True)


def _elementwise(size: str, dtype: str) -> Iterator[KernelCase]:
    shape = MATRIX[size]
    once = float(prod(shape) * BYTES[dtype])
    one, two = _normal(shape), _normal(shape, shape)
    yield KernelCase("elementwise", "add", dtype, shape, two, lambda x, y: x + y, 3 * once)
    yield KernelCase("elementwise", "chain", dtype, shape, one, _chain, 2 * once)
    yield KernelCase(
        "elementwise",
        "chain",
        dtype,
        shape,
        one,
        _chain,
        2 * once,
        label="chain without fusion",
        fused=False,
    )
    yield KernelCase("elementwise", "gelu", dtype, shape, one, lambda x: x.gelu("tanh"), 2 * once)
    for target in ("float16", "bfloat16") if dtype == "float32" else ("float32",):
        yield KernelCase(
            "elementwise",
            "cast",
            dtype,
            shape,
            one,
            lambda x, target=target: x.astype(target),
            once + prod(shape) * BYTES[target],
            options={"to": target},
            label=f"cast to {target}",
        )
    yield KernelCase(
        "copy", "transpose", dtype, shape, one, lambda x: x.permute(1, 0).contiguous(), 2 * once
    )


def _rows(size: str, dtype: str) -> Iterator[KernelCase]:
    shape = MATRIX[size]
    once = float(prod(shape) * BYTES[dtype])
    one = _normal(shape)
    both: dict[str, tuple[str, Callable[..., Made]]] = {
        "softmax": ("softmax", lambda x: x.softmax()),
        "rms_norm": ("norm", lambda x: x.rms_norm()),
        "layer_norm": ("norm", lambda x: x.layer_norm()),
    }
    for operation, (family, ours) in both.items():
        yield KernelCase(family, operation, dtype, shape, one, ours, 2 * once)
    hand = "softmax by hand"
    yield KernelCase("rows", "softmax", dtype, shape, one, _softmax_by_hand, 2 * once, label=hand)
    reductions: dict[str, Callable[..., Made]] = {
        "sum": lambda x: x.sum(),
        "sum_rows": lambda x: x.sum(axis=-1),
        "sum_columns": lambda x: x.sum(axis=0),
    }
    for operation, ours in reductions.items():
        yield KernelCase("reduction", operation, dtype, shape, one, ours, once, reads=True)
    yield KernelCase("scan", "cumsum", dtype, shape, one, lambda x: x.cumsum(axis=-1), 2 * once)
    length, width = shape[0], 128
    heads = max(1, shape[1] // width)
    yield KernelCase(
        "rope",
        "rope",
        dtype,
        (heads, length, width),
        lambda rng: (*_normal((heads, length, width))(rng), np.arange(length, dtype=np.int32)),
        lambda x, positions: x.rope(positions),
        2 * once,
    )


def _products(size: str, dtype: str) -> Iterator[KernelCase]:
    n, width = SQUARE[size], BYTES[dtype]
    yield KernelCase(
        "matmul",
        "matmul",
        dtype,
        (n, n, n),
        _normal((n, n), (n, n)),
        lambda x, y: x @ y,
        3.0 * n * n * width,
        2.0 * n**3,
        side=n,
    )
    rows, columns = MATRIX[size]
    yield KernelCase(
        "matmul",
        "linear",
        dtype,
        (1, columns, rows),
        _normal((1, columns), (rows, columns)),
        lbrx.linear,
        float(rows * columns * width),
        reads=True,
        label="matrix times vector",
    )


def _attention(size: str, dtype: str) -> Iterator[KernelCase]:
    length = {"small": 128, "medium": 512, "large": 2048}[size]
    heads, groups, depth = 8, 4, 64
    width = BYTES[dtype]
    query, cache = (1, heads, length, depth), (1, groups, length, depth)
    traffic = 2.0 * (heads + groups) * length * depth * width
    # Half of the scores are hidden; two products of length x length x depth for each head.
    yield KernelCase(
        "attention",
        "attention",
        dtype,
        query,
        _normal(query, cache, cache),
        lambda q, k, v: lbrx.attention(q, k, v, causal=True),
        traffic,
        2.0 * heads * length * length * depth,
        options={"causal": True},
        label="attention of a prompt",
    )
    length *= 8
    cache = (1, groups, length, depth)
    yield KernelCase(
        "attention",
        "attention",
        dtype,
        (1, heads, length, depth),
        _normal((1, heads, 1, depth), cache, cache),
        lambda q, k, v: lbrx.attention(q, k, v),
        2.0 * groups * length * depth * width,
        reads=True,
        options={"causal": False},
        label="attention of one token",
    )


def _images(size: str, dtype: str) -> Iterator[KernelCase]:
    side = {"small": 16, "medium": 64, "large": 128}[size]
    channels, width = 64, BYTES[dtype]
    image, weight = (1, channels, side + 2, side + 2), (channels, channels, 3, 3)
    yield KernelCase(
        "convolution",
        "conv2d",
        dtype,
        (*image, *weight),
        _normal(image, weight),
        lambda x, w: lbrx.conv2d(x, w),
        float(2 * prod(image) + prod(weight)) * width,
        2.0 * side * side * channels * channels * 9,
    )
    image = (4, channels, 2 * side, 2 * side)
    yield KernelCase(
        "pooling",
        "max_pool2d",
        dtype,
        image,
        _normal(image),
        lambda x: lbrx.max_pool2d(x, 2),
        1.25 * prod(image) * width,
        options={"size": 2},
    )


def _indices(shape: tuple[int, ...], below: int) -> Callable[[np.random.Generator], Array]:
    return lambda rng: rng.integers(0, below, shape, np.int64)


def _indexing(size: str, dtype: str) -> Iterator[KernelCase]:
    shape = rows, columns = MATRIX[size]
    width = BYTES[dtype]
    once = float(rows * columns * width)
    some = columns // 4
    pick, along = _indices((rows // 2,), rows), _indices((rows, some), columns)
    yield KernelCase(
        "take",
        "take",
        dtype,
        shape,
        lambda rng: (*_normal(shape)(rng), pick(rng)),
        lambda x, indices: x.take(indices),
        once,
    )
    yield KernelCase(
        "gather",
        "gather",
        dtype,
        shape,
        lambda rng: (*_normal(shape)(rng), along(rng)),
        lambda x, indices: x.gather(indices),
        rows * some * (8.0 + 2 * width),
    )
    yield KernelCase(
        "scatter",
        "scatter",
        dtype,
        shape,
        lambda rng: (*_normal(shape)(rng), along(rng), *_normal((rows, some))(rng)),
        lambda x, indices, updates: x.scatter(indices, updates, reduce="add"),
        2 * once + rows * some * (8.0 + width),
    )
    yield KernelCase(
        "overwrite",
        "overwrite",
        dtype,
        shape,
        lambda rng: (*_normal(shape, (8, columns))(rng), np.arange(8, dtype=np.int64)),
        lbrx.overwrite,
        2 * once,
    )


def _ordering(size: str) -> Iterator[KernelCase]:
    shape = rows, columns = {"small": (64, 1024), "medium": (256, 2048), "large": (1024, 4096)}[
        size
    ]
    once, count = 4.0 * rows * columns, prod(MATRIX[size])
    one = _normal(shape)
    yield KernelCase("sorting", "sort", "float32", shape, one, lambda x: x.sort(), 2 * once)
    yield KernelCase(
        "sorting",
        "topk",
        "float32",
        shape,
        one,
        lambda x: x.topk(8)[0],
        once,
        reads=True,
        options={"k": 8},
    )
    yield KernelCase(
        "random",
        "random",
        "float32",
        (count,),
        lambda rng: (),
        lambda: lbrx.random.normal((count,), device="metal"),
        4.0 * count,
        options={"count": count},
        label="random normal",
        random=True,
    )


def _quantized(size: str) -> Iterator[KernelCase]:
    rows, columns = MATRIX[size]
    prompt = {"small": 16, "medium": 64, "large": 256}[size]
    for scheme in SCHEMES:
        packed = float(quant.find(scheme).nbytes((rows, columns)))
        for count in (1, prompt):
            name = "one row" if count == 1 else f"{count} rows"
            yield KernelCase(
                "quantized_matmul",
                "linear",
                "float32",
                (count, columns, rows),
                _normal((count, columns), (rows, columns)),
                lbrx.linear,
                packed + 4.0 * count * (rows + columns),
                0.0 if count == 1 else 2.0 * count * rows * columns,
                reads=True,
                scheme=scheme,
                label=f"{scheme} weights, {name}",
            )
    scheme = "q8_0"
    packed = float(quant.find(scheme).nbytes((rows, columns)))
    moved, one = packed + 4.0 * rows * columns, _normal((rows, columns))
    for family, ours in {
        "quantize": lambda x: lbrx.quantize(x, scheme),
        "dequantize": lambda x: lbrx.dequantize(x),
    }.items():
        yield KernelCase(
            family,
            family,
            "float32",
            (rows, columns),
            one,
            ours,
            moved,
            scheme=scheme if family == "dequantize" else "",
            label=f"{family} {scheme}",
        )


def _recurrence(size: str) -> KernelCase:
    """A layer of Mamba's kind that reads a text."""
    tokens = {"small": 16, "medium": 64, "large": 256}[size]
    heads, width, states = 16, 64, 128
    shape = (tokens, heads, width)

    def inputs(rng: np.random.Generator) -> tuple[Array, ...]:
        values, keys, queries = _normal(shape, (tokens, states), (tokens, states))(rng)
        return values, keys, queries, rng.uniform(0.8, 1, shape[:2]).astype(np.float32)

    def ours(x: lbrx.Tensor, keys: lbrx.Tensor, queries: lbrx.Tensor, decay: lbrx.Tensor) -> Any:
        state = lbrx.zeros((1, heads, width, states), device="metal")
        places = lbrx.arange(tokens, dtype=lbrx.int32, device="metal")[None]
        keys, queries = (each.reshape(1, tokens, 1, states) for each in (keys, queries))
        gate = lbrx.ones((1, tokens, heads), device="metal")
        return lbrx.recurrence(state, x[None], keys, queries, decay[None], gate, places)[1][0]

    moved = tokens * (2 * heads * width + 2 * states + heads) + heads * width * states
    multiplied = 6.0 * tokens * heads * width * states
    return KernelCase(
        "recurrence", "recurrence", "float32", shape, inputs, ours, 4.0 * moved, multiplied
    )


def _replay(size: str) -> KernelCase:
    """Many small kernels, whose time is mostly that of submitting them."""
    layers, width = {"small": 16, "medium": 64, "large": 128}[size], 64

    def network(x: lbrx.Tensor, weights: lbrx.Tensor) -> lbrx.Tensor:
        for layer in range(layers):
            x = (x @ weights[layer]).gelu("tanh") + x
        return x

    return KernelCase(
        "matmul",
        "network",
        "float32",
        (layers, width, width),
        lambda rng: (
            rng.standard_normal((1, width), np.float32),
            rng.standard_normal((layers, width, width), np.float32) * np.float32(0.05),
        ),
        network,
        4.0 * layers * width * width,
        reads=True,
        label=f"replay of {layers} small layers",
        compiled=True,
    )
