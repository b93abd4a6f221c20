"""Plans of random graphs, with fused kernels computed by numpy: no kernel is compiled, so that
many graphs can be tried, and every read is known to lie within its memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lbrx
from lbrx.kernels.elementwise import elementwise
from lbrx.kernels.fused_rows import fused_rows

BUFFERS = 31  # that Metal can bind to a kernel
FUNCTIONS = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "tanh": np.tanh,
    "leaky_relu": lambda x, slope: np.where(x > 0, x, x * slope),
}
REDUCTIONS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
SHAPES = [(6, 8), (8,), (1, 8), (6, 1), (3, 4, 8), (), (2, 1, 8), (0, 8), (4, 4), (2, 3, 4)]


def checked(array, space):
    """An operand, whose elements a kernel with this index space reads within its memory."""
    low, high = array.layout.bounds()
    assert low >= 0
    assert high * array.dtype.itemsize <= array.storage.nbytes
    assert array.layout.shape == space
    return array


def computed(b, what, space):
    """A fused kernel's results."""
    assert len(what.inputs) + len(what.outputs) + 1 <= BUFFERS
    numbers = [x.numpy().reshape(()) if elementwise.is_host(x) else None for x in what.inputs]
    memory = [None if elementwise.is_host(x) else checked(x, space) for x in what.inputs]

    def compute(arrays):
        values = [n if n is not None else x for n, x in zip(numbers, arrays, strict=True)]
        for step in what.steps:
            given = [values[place] for place, _ in step.arguments]
            if step.function in REDUCTIONS:
                (row,) = given
                reduce = REDUCTIONS[step.function]
                values.append(reduce(np.broadcast_to(row, space), axis=-1, keepdims=True))
            else:
                values.append(FUNCTIONS[step.function](*given))
        return [stored(np.broadcast_to(values[place], space), spec) for place, spec in what.outputs]

    specs = [spec for _, spec in what.outputs]
    if 0 in space:
        return tuple(map(b.result, specs))
    return b.host("numpy", memory, specs, compute)


def stored(value, spec):
    """What a kernel stores of the values of its index space."""
    if math.prod(spec.shape) != value.size:
        assert (value == value[..., :1]).all()
        value = value[..., 0]
    return value.reshape(spec.shape).astype(spec.dtype.numpy)


@pytest.fixture
def interpreted(monkeypatch):
    """Fused kernels by numpy."""
    monkeypatch.setattr(elementwise, "compute", lambda b, what: computed(b, what, what.shape))
    monkeypatch.setattr(
        fused_rows, "compute", lambda b, what: computed(b, what, (*what.rows, what.length))
    )


class Grown:
    """Pairs of tensors and float64 arrays, each made of earlier ones."""

    def __init__(self, rng):
        self.rng = rng
        values = [np.asarray(rng.uniform(-1, 1, shape), np.float32) for shape in SHAPES]
        self.pairs = [(lbrx.tensor(v, device="metal"), v.astype(np.float64)) for v in values]

    def pick(self, fits=lambda value: True):
        able = [pair for pair in self.pairs if fits(pair[1])]
        return able[-min(self.rng.geometric(0.15), len(able))]

    def grow(self):
        tensor, value = self.pick()
        moves = [self.joined, self.joined, self.applied, self.viewed, self.viewed, self.reduced]
        tensor, value = moves[self.rng.integers(len(moves))](tensor, value)
        if value.size <= 2000:
            big = value.size and np.abs(value).max() > 3
            self.pairs.append((tensor.tanh(), np.tanh(value)) if big else (tensor, value))

    def joined(self, tensor, value):
        other, values = self.pick(lambda v: broadcasts(v.shape, value.shape))
        name = str(self.rng.choice(["add", "multiply", "maximum"]))
        return getattr(tensor, name)(other), FUNCTIONS[name](value, values)

    def applied(self, tensor, value):
        number = float(np.float32(self.rng.uniform(0.1, 1)))
        kind = self.rng.integers(3)
        if kind == 0:
            return tensor * number, value * number
        if kind == 1:
            return tensor.leaky_relu(number), FUNCTIONS["leaky_relu"](value, number)
        return tensor.tanh(), np.tanh(value)

    def viewed(self, tensor, value):
        if not value.ndim:
            return tensor.expand(3), np.broadcast_to(value, 3)
        first, last = (int(n) for n in self.rng.integers(0, 7, 2))
        views = [
            lambda x: x.T,
            lambda x: x[..., ::-1],
            lambda x: x.reshape(-1),
            lambda x: x[..., 1::2],
            lambda x: x[first:last],
            lambda x: x[None],
        ]
        look = views[self.rng.integers(len(views))]
        return look(tensor), look(value)

    def reduced(self, tensor, value):
        if 0 in value.shape:
            return tensor, value
        name = str(self.rng.choice(list(REDUCTIONS)))
        last = tuple(range(value.ndim))[-int(self.rng.integers(1, 3)) :]
        sums = getattr(tensor, name)(axis=last, keepdims=True)
        expected = REDUCTIONS[name](value, axis=last, keepdims=True)
        if self.rng.integers(2):
            return sums.expand(*value.shape), np.broadcast_to(expected, value.shape)
        return sums, expected


def broadcasts(a, b):
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


def test_random_plans(rng, interpreted):
    for _ in range(100):
        graph = Grown(rng)
        for _ in range(rng.integers(3, 60)):
            graph.grow()
        wanted = [graph.pairs[i] for i in rng.integers(0, len(graph.pairs), rng.integers(1, 8))]
        lbrx.eval([tensor for tensor, _ in wanted])
        for tensor, value in [*wanted, graph.pick()]:
            assert tensor.shape == value.shape
            np.testing.assert_allclose(tensor.numpy(), value, rtol=2e-3, atol=2e-3)
