"""Random graphs of operations, built twice: of tensors on the Metal device and of float64 arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import lbrx

LIMIT = 4.0  # values are clipped, so that errors stay comparable
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
        able = [pair for pair in self.pairs if fits(pair)]
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
        """To half and back: 11 bits, of a leaf so that both sides round alike."""
        leaf = self.leaves[self.rng.integers(len(self.leaves))]
        rounded = leaf.value.astype(np.float16).astype(np.float64)
        return Pair(leaf.tensor.astype("float16").astype("float32") * 1.5, rounded * 1.5)

    def normalise(self) -> Pair:
        x = self.pick(lambda pair: pair.value.ndim > 0 and 0 not in pair.shape)
        powers = np.exp(x.value)
        return Pair(x.tensor.softmax(axis=-1), powers / powers.sum(-1, keepdims=True))

    def product(self) -> Pair:
        x = self.pick(lambda pair: pair.value.ndim == 2)
        return Pair(x.tensor @ x.tensor.T * 0.25, x.value @ x.value.T * 0.25)

    def concat(self) -> Pair:
        x = self.pick(lambda pair: pair.value.ndim > 0)
        return Pair(lbrx.concat([x.tensor, x.tensor], axis=0), np.concatenate([x.value] * 2))


def _broadcasts(a, b) -> bool:
    try:
        size = np.prod(np.broadcast_shapes(a, b))
    except ValueError:
        return False
    return size < 5000
