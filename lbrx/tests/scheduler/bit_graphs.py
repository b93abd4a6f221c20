"""Random graphs of operations that give the same bits however they are computed.

A graph is a recipe: it is built anew for every way of computing it. Its operations are those of the
table on one element at a time, casts, movement, maxima and minima; with `rounded` also sums and
products, whose bits are only promised within `lbrx.deterministic()`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.ops import TABLE, OpFamily
from lbrx.tensors.core import Tensor, call

FLOATS = [dt.float32, dt.float16, dt.bfloat16]
DTYPES = [*FLOATS, *FLOATS, dt.int32, dt.uint8, dt.int16, dt.int64, dt.uint64, dt.bool_]
SHAPES = [(6, 40), (40,), (6, 1), (3, 2, 40), (1, 7)]
LARGEST = 5000  # elements
FAMILIES = {OpFamily.UNARY, OpFamily.BINARY, OpFamily.COMPARISON, OpFamily.ACTIVATION}
NAMES = sorted(op.name for op in TABLE.values() if op.family in FAMILIES)
COMMON = ["add", "subtract", "multiply", "divide", "exp", "tanh", "negative", "maximum"]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0, 3e38]

Compute = Callable[..., Tensor]


@dataclass(frozen=True)
class Step:
    """A function of earlier tensors of the graph."""

    text: str
    function: Compute
    operands: tuple[int, ...]


@dataclass
class Recipe:
    """The values of the leaves, and the operations in order."""

    leaves: list[tuple[np.ndarray, Dtype]]
    steps: list[Step] = field(default_factory=list)

    def inputs(self) -> list[Tensor]:
        made = [lbrx.tensor(v, device="metal").astype(dtype) for v, dtype in self.leaves]
        lbrx.eval(made)
        return made

    def build(
        self, inputs: Sequence[Tensor], after: Callable[[Tensor], object] = lambda made: None
    ) -> list[Tensor]:
        """Every tensor of the graph."""
        tensors = list(inputs)
        for step in self.steps:
            made = step.function(*(tensors[i] for i in step.operands))
            after(made)
            tensors.append(made)
        return tensors

    def text(self) -> str:
        first = len(self.leaves)
        lines = [f"{i}: {dtype}{v.shape}" for i, (v, dtype) in enumerate(self.leaves)]
        lines += [f"{i}: {s.text} of {s.operands}" for i, s in enumerate(self.steps, first)]
        return "\n".join(lines)


def random_recipe(rng: np.random.Generator, depth: int, rounded: bool = False) -> Recipe:
    leaves = [(_values(rng, shape), DTYPES[rng.integers(len(DTYPES))]) for shape in SHAPES]
    recipe = Recipe(leaves)
    growth = _Growth(rng, recipe, rounded)
    while len(recipe.steps) < depth:
        growth.step()
    return recipe


def _values(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    values = (rng.standard_normal(shape) * 10.0 ** rng.integers(-1, 3)).astype(np.float32)
    special = rng.random(shape) < 0.02
    return np.where(special, rng.choice(SPECIAL, shape), values).astype(np.float32)


class _Growth:
    """Builds the graph as it grows, to know shapes and dtypes; nothing is computed."""

    def __init__(self, rng: np.random.Generator, recipe: Recipe, rounded: bool) -> None:
        self.rng = rng
        self.recipe = recipe
        self.tensors = recipe.inputs()
        self.moves = [*[self.operation] * 4, *[self.common] * 4, self.number, self.number]
        self.moves += [self.cast, self.cast, self.view, self.view, self.extreme, self.where]
        self.moves += [self.concat, *([self.rounded] * 3 if rounded else [])]

    def step(self) -> None:
        move = self.moves[self.rng.integers(len(self.moves))]
        found = move()
        if found is None:
            return
        try:
            made = found.function(*(self.tensors[i] for i in found.operands))
        except (lbrx.DtypeError, lbrx.ShapeError):  # not for these operands: try another
            return
        if 0 < made.size <= LARGEST:
            self.recipe.steps.append(found)
            self.tensors.append(made)

    def pick(self) -> int:
        """One of the newer ones, mostly."""
        return len(self.tensors) - min(int(self.rng.geometric(0.25)), len(self.tensors))

    def one_of(self, names: Sequence[str]) -> str:
        return names[self.rng.integers(len(names))]

    def operation(self) -> Step:
        return self.named(self.one_of(NAMES))

    def common(self) -> Step:
        return self.named(self.one_of(COMMON))

    def named(self, name: str) -> Step:
        places = tuple(self.pick() for _ in TABLE[name].operands)
        return Step(name, lambda *x: call(name, *x), places)

    def number(self) -> Step:
        """A number of the host, which takes the tensor's type."""
        name = self.one_of(["add", "multiply", "divide", "subtract"])
        value = [1.37, 3, 0.1, -2.5][self.rng.integers(4)]
        return Step(f"{name} {value}", lambda x: call(name, x, value), (self.pick(),))

    def cast(self) -> Step:
        dtype = DTYPES[self.rng.integers(len(DTYPES))]
        return Step(f"cast {dtype}", lambda x: x.astype(dtype), (self.pick(),))

    def view(self) -> Step | None:
        place = self.pick()
        if self.tensors[place].ndim == 0:
            return None
        views: dict[str, Compute] = {
            "T": lambda x: x.T,
            "reversed": lambda x: x[..., ::-1],
            "flat": lambda x: x.reshape(-1),
            "expanded": lambda x: x.expand(2, *x.shape),
            "every second": lambda x: x[..., 1::2],
            "copied": lambda x: x.T.contiguous(),
        }
        name = self.one_of(list(views))
        return Step(name, views[name], (place,))

    def extreme(self) -> Step | None:
        return self.reduction(["max", "min"])

    def rounded(self) -> Step | None:
        place = self.pick()
        x = self.tensors[place]
        if self.rng.integers(3) or x.ndim != 2 or not x.dtype.is_float:
            return self.reduction(["sum", "mean", "prod"])
        if self.rng.integers(2):
            return Step("product", lambda x: x @ x.T, (place,))
        return Step("finished product", lambda x: (x.T @ x + x[0]).gelu(), (place,))

    def reduction(self, names: Sequence[str]) -> Step | None:
        place, name = self.pick(), self.one_of(names)
        x = self.tensors[place]
        if x.ndim == 0:
            return None
        axis, keep = int(self.rng.integers(-x.ndim, 0)), bool(self.rng.integers(3))
        text = f"{name} of axis {axis}"
        return Step(text, lambda x: getattr(x, name)(axis=axis, keepdims=keep), (place,))

    def where(self) -> Step:
        places = self.pick(), self.pick()
        return Step("where", lambda x, y: lbrx.where(x > y, x, y), places)

    def concat(self) -> Step | None:
        place = self.pick()
        return Step("concat", lambda x: lbrx.concat([x, x], axis=0), (place,))
