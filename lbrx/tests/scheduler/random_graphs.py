"""Random graphs of operations, built twice: of tensors on the Metal device and of float64 arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import lbrx

LIMIT = 4.0  # values are clipped, so that errors stay comparable
LARGEST = 5000  # elements of an operand
SHAPES = [(6, 8), (8,), (1, 8), (6, 1), (3, 4, 8), (5,)]


@dataclass(frozen=True)
class Pair:
    """A tensor and its expected values."""

    tensor: lbrx.Tensor
    value: np.ndarray

    @property
    def shape(self):
        return self.value.shape


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


UNARY = {
    "negative": np.negative,
    "abs": np.abs,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * _sigmoid(x),
    "square": np.square,
    "exp": np.exp,
    "sin": np.sin,
}
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
# Functions of the same names, called on lbrx or numpy; `k` is a random number below 4.
FUNCTIONS: list[Callable[[Any, Any, int], Any]] = [
    lambda m, x, k: m.einsum("...i,...i->...", x, x) * 0.1,
    lambda m, x, k: m.einsum("...i,...->...i", x, m.mean(x, axis=-1)),
    lambda m, x, k: m.quantile(x, 0.3 * k, axis=-1),
    lambda m, x, k: m.quantile(x, 0.5, axis=k % x.ndim, keepdims=True),
    lambda m, x, k: m.median(x, axis=-1, keepdims=True),
    lambda m, x, k: m.sort(x, axis=k % x.ndim),
    lambda m, x, k: m.cumsum(x, axis=k % x.ndim) * 0.2,
    lambda m, x, k: m.roll(x, k, axis=-1),
    lambda m, x, k: m.flip(x, axis=k % x.ndim),
    lambda m, x, k: m.pad(x, [(k, 1)] + [(0, 0)] * (x.ndim - 1)),
    lambda m, x, k: m.stack([x, x * 0.5], axis=k % x.ndim),
    lambda m, x, k: m.repeat(x, 1 + k % 2, axis=-1),
    lambda m, x, k: m.tile(x, (2,)),
    lambda m, x, k: m.diff(x, axis=-1),
    lambda m, x, k: m.var(x, axis=k % x.ndim, keepdims=True),
    lambda m, x, k: m.std(x + 3, axis=-1),
]
FLAT: list[Callable[[Any, Any, int], Any]] = [  # of matrices
    lambda m, x, k: m.tril(x, k - 1),
    lambda m, x, k: m.einsum("ij,kj->ik", x, x) * 0.1,
    lambda m, x, k: m.einsum("ij,ij->", x, x) * 0.05,
    lambda m, x, k: m.tensordot(x, x, axes=2) * 0.05,
    lambda m, x, k: m.outer(x[0], x[-1]),
]
DTYPES = ["float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint64", "bool"]


class Graph:
    """Grows by one random operation at a time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.pairs = [self._leaf(shape) for shape in SHAPES]
        self.leaves = list(self.pairs)
        self.moves: list[Callable[[], Pair]] = [
            *[self.unary] * 3,
            *[self.binary] * 4,
            *(self.scalar, self.where, self.view, self.view, self.reduce, self.reduce),
            *(self.cast, self.normalise, self.product, self.concat),
            *[self.function] * 4,
            *(self.flat_function, self.convolution, self.pooling, self.at, self.at, self.random),
        ]

    def _leaf(self, shape) -> Pair:
        values = self.rng.uniform(-2, 2, shape).astype(np.float32)
        return Pair(lbrx.tensor(values, device="metal"), values.astype(np.float64))

    def grow(self, count: int) -> list[Pair]:
        """Add operations; returns some of the last results."""
        for _ in range(count):
            made = self.moves[self.rng.integers(len(self.moves))]()
            if made.value.size and np.abs(made.value).max() > LIMIT:
                made = Pair(made.tensor.clip(-LIMIT, LIMIT), np.clip(made.value, -LIMIT, LIMIT))
            self.pairs.append(made)
        return self.pairs[-3:]

    def pick(self, fits: Callable[[Pair], bool] = lambda pair: True) -> Pair:
        """One of the newer ones, mostly."""
        able = [pair for pair in self.pairs if pair.value.size < LARGEST and fits(pair)]
        place = min(self.rng.geometric(0.25), len(able))
        return able[-place]

    def unary(self) -> Pair:
        name = self.rng.choice(list(UNARY))
        x = self.pick()
        return Pair(getattr(x.tensor, name)(), UNARY[name](x.value))

    def binary(self) -> Pair:
        name = self.rng.choice(list(BINARY))
        x = self.pick()
        y = self.pick(lambda pair: _broadcasts(pair.shape, x.shape))
        return Pair(getattr(x.tensor, name)(y.tensor), BINARY[name](x.value, y.value))

    def scalar(self) -> Pair:
        x, number = self.pick(), float(np.float32(self.rng.uniform(-2, 2)))
        return Pair(x.tensor * number + 0.5, x.value * number + 0.5)

    def where(self) -> Pair:
        """By the sign of a leaf: both sides know that exactly."""
        mask = self.leaves[self.rng.integers(len(self.leaves))]
        x = self.pick(lambda pair: _broadcasts(pair.shape, mask.shape))
        chosen = np.where(mask.value > 0, x.value, 0.25)
        return Pair(lbrx.where(mask.tensor > 0, x.tensor, 0.25), chosen)

    def view(self) -> Pair:
        x = self.pick(lambda pair: pair.value.ndim > 0)
        kind = self.rng.integers(6)
        if kind == 0:
            return Pair(x.tensor.T, x.value.T)
        if kind == 1:
            return Pair(x.tensor[..., ::-1], x.value[..., ::-1])
        if kind == 2:
            return Pair(x.tensor.reshape(-1), x.value.reshape(-1))
        if kind == 3:
            return Pair(x.tensor.expand(2, *x.shape), np.broadcast_to(x.value, (2, *x.shape)))
        if kind == 4:
            return Pair(x.tensor[: x.shape[0] // 2], x.value[: x.shape[0] // 2])
        return Pair(x.tensor[..., 1::2], x.value[..., 1::2])

    def reduce(self) -> Pair:
        x = self.pick(lambda pair: pair.value.ndim > 0 and 0 not in pair.shape)
        name = self.rng.choice(list(REDUCTIONS))
        axis, keepdims = int(self.rng.integers(-x.value.ndim, 0)), bool(self.rng.integers(2))
        tensor = getattr(x.tensor, name)(axis=axis, keepdims=keepdims)
        return Pair(tensor, REDUCTIONS[name](x.value, axis=axis, keepdims=keepdims))

    def cast(self) -> Pair:
        """To another dtype and back, of a leaf so that both sides round alike."""
        leaf = self.leaves[self.rng.integers(len(self.leaves))]
        dtype = lbrx.arrays.dtype.parse(DTYPES[self.rng.integers(len(DTYPES))])
        value, tensor = leaf.value, leaf.tensor
        if dtype.kind is lbrx.arrays.dtype.Kind.UINT:  # a negative float has no unsigned integer
            value, tensor = np.abs(value), tensor.abs()
        rounded = value.astype(np.float32).astype(dtype.numpy).astype(np.float64)
        return Pair(tensor.astype(dtype).astype("float32") * 1.5, rounded * 1.5)

    def normalise(self) -> Pair:
        x = self.pick(lambda pair: pair.value.ndim > 0 and 0 not in pair.shape)
        powers = np.exp(x.value)
        return Pair(x.tensor.softmax(axis=-1), powers / powers.sum(-1, keepdims=True))

    def product(self) -> Pair:
        x = self.pick(lambda pair: pair.value.ndim == 2)
        return Pair(x.tensor @ x.tensor.T * 0.25, x.value @ x.value.T * 0.25)

    def function(self) -> Pair:
        x = self.pick(lambda pair: 0 < pair.value.ndim < 4 and min(pair.shape) >= 2)
        return self._called(FUNCTIONS, x)

    def flat_function(self) -> Pair:
        return self._called(FLAT, self.pick(lambda pair: pair.value.ndim == 2))

    def _called(self, functions: list[Callable[[Any, Any, int], Any]], x: Pair) -> Pair:
        which, k = self.rng.integers(len(functions)), int(self.rng.integers(4))
        function = functions[which]
        return Pair(function(lbrx, x.tensor, k), np.asarray(function(np, x.value, k)))

    def convolution(self) -> Pair:
        """Two filters of 2 by 3 over a matrix, with padding."""
        x = self.pick(lambda pair: pair.value.ndim == 2 and min(pair.shape) >= 2)
        filters = self.rng.uniform(-0.5, 0.5, (2, 1, 2, 3)).astype(np.float32)
        tensor = lbrx.conv2d(x.tensor[None, None], filters, padding=(0, 1))[0]
        windows = sliding_window_view(np.pad(x.value, ((0, 0), (1, 1))), (2, 3))
        return Pair(tensor, np.einsum("hwij,oij->ohw", windows, filters[:, 0].astype(np.float64)))

    def pooling(self) -> Pair:
        x = self.pick(lambda pair: pair.value.ndim == 2 and min(pair.shape) >= 2)
        windows = sliding_window_view(x.value, (2, 2))[::2, ::1]
        image = x.tensor[None, None]
        if self.rng.integers(2):
            return Pair(lbrx.max_pool2d(image, 2, (2, 1))[0, 0], windows.max((-2, -1)))
        return Pair(lbrx.avg_pool2d(image, 2, (2, 1))[0, 0], windows.mean((-2, -1)))

    def at(self) -> Pair:
        """Functional assignment, also to rows that are named twice."""
        x = self.pick(
            lambda pair: pair.value.size > 0 and pair.value.ndim > 0 and pair.shape[0] >= 2
        )
        keys: list[Any] = [0, slice(None, None, 2), (..., -1), np.array([1, 0, 1])]
        key, value = keys[self.rng.integers(len(keys))], x.value.copy()
        tensor = x.tensor.at[lbrx.tensor(key) if isinstance(key, np.ndarray) else key]
        match self.rng.integers(4):
            case 0:
                value[key] = 0.75
                return Pair(tensor.set(0.75), value)
            case 1:
                np.add.at(value, key, 0.25)
                return Pair(tensor.add(0.25), value)
            case 2:
                np.multiply.at(value, key, -0.5)
                return Pair(tensor.multiply(-0.5), value)
            case _:
                np.maximum.at(value, key, 0.5)
                return Pair(tensor.max(0.5), value)

    def random(self) -> Pair:
        """Random numbers of both devices are those of the seed."""
        seed, shape = int(self.rng.integers(1 << 30)), SHAPES[self.rng.integers(len(SHAPES))]
        draw = [lbrx.random.uniform, lbrx.random.normal][self.rng.integers(2)]
        lbrx.random.seed(seed)
        tensor = draw(shape, device="metal")
        lbrx.random.seed(seed)
        return Pair(tensor, draw(shape, device="cpu").numpy().astype(np.float64))

    def concat(self) -> Pair:
        x = self.pick(lambda pair: pair.value.ndim > 0)
        return Pair(lbrx.concat([x.tensor, x.tensor], axis=0), np.concatenate([x.value] * 2))


def _broadcasts(a, b) -> bool:
    try:
        size = np.prod(np.broadcast_shapes(a, b))
    except ValueError:
        return False
    return size < LARGEST
