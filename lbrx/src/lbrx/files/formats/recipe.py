"""Recipes: how a tensor of one family of files is made of the stored tensors of another.

A recipe has a name, an encoding and a shape like a stored tensor, and names its sources. Except for
`ShiftedTensor` and `ComputedTensor`, recipes only move whole rows, so quantized blocks are copied
unchanged. `files/stored/recipe_arrays.py` turns recipes into arrays; nothing is read here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.files.formats.descriptor import Encoding, ModelFiles, TensorInfo, plain


@dataclass(frozen=True)
class ReorderedHeads:
    """The rows of attention heads in the other of two orders, halves or pairs.

    RoPE rotates two coordinates together. Hugging Face stores them half a head apart, llama.cpp in
    neighbouring rows.
    """

    name: str
    source: Recipe
    heads: int
    pairs: bool
    """Whether the result has the two coordinates in neighbouring rows, as llama.cpp."""

    @property
    def encoding(self) -> Encoding:
        return self.source.encoding

    @property
    def shape(self) -> Shape:
        return self.source.shape

    def order(self) -> NDArray[np.intp]:
        """For each row of the result, the index of the source's row."""
        rows = np.arange(self.shape[0])
        split = (2, -1) if self.pairs else (-1, 2)
        return rows.reshape(self.heads, *split).swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True)
class StackEntry:
    """One index of a tensor's first axis, along which tensors are stacked: an expert."""

    name: str
    source: Recipe
    index: int

    @property
    def encoding(self) -> Encoding:
        return self.source.encoding

    @property
    def shape(self) -> Shape:
        return self.source.shape[1:]


@dataclass(frozen=True)
class TensorStack:
    """Tensors of one shape and encoding along a new first axis."""

    name: str
    sources: tuple[Recipe, ...]

    @property
    def encoding(self) -> Encoding:
        return self.sources[0].encoding

    @property
    def shape(self) -> Shape:
        return (len(self.sources), *self.sources[0].shape)


@dataclass(frozen=True)
class ShiftedTensor:
    """A constant added to every element, in float32: Gemma's norms multiply by 1 + weight."""

    name: str
    source: Recipe
    by: float

    @property
    def encoding(self) -> Encoding:
        return plain(dt.float32)

    @property
    def shape(self) -> Shape:
        return self.source.shape


@dataclass(frozen=True)
class PackedWeight:
    """A quantized weight whose codes, scales and offsets are tensors of their own: the fields of a
    planar scheme."""

    name: str
    scheme: str
    data: Recipe
    scales: Recipe
    offsets: Recipe | None = None
    """Biases or zero points, where the scheme has them."""

    @property
    def encoding(self) -> Encoding:
        group = quant.find(self.scheme).elements
        codes = quant.find(self.scheme).layout["data"].itemsize
        beside = [t for t in (self.scales, self.offsets) if t is not None]
        nbytes = codes + sum(t.encoding.nbytes for t in beside)
        return Encoding(self.scheme.upper(), None, group, nbytes)

    @property
    def shape(self) -> Shape:
        *leading, groups = self.scales.shape
        return (*leading, groups * quant.find(self.scheme).elements)

    @property
    def parts(self) -> dict[str, Recipe]:
        """The tensors by the names of the scheme's fields."""
        fields = quant.find(self.scheme).fields
        tensors = (self.data, self.scales, self.offsets)
        return {name: part for name, part in zip(fields, tensors, strict=False) if part is not None}


class ArrayFunction(Protocol):
    """How an array is made of others on the host: a frozen dataclass of plain values, as a
    `TensorFunction`."""

    def __call__(self, sources: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The result, in the recipe's type and shape."""


@dataclass(frozen=True)
class RepackedTensor:
    """Codes, scales or values that a function makes of stored ones, exactly."""

    name: str
    sources: tuple[Recipe, ...]
    encoding: Encoding
    shape: Shape
    function: ArrayFunction


class TensorFunction(Protocol):
    """How a tensor is computed from others: a frozen dataclass of plain values, so that it can be
    hashed, pickled, and compared with that of an interrupted run."""

    @property
    def is_elementwise(self) -> bool:
        """Whether an element of the result depends on the same element of each source only. Ranges
        of rows are then computed without the rest."""

    def __call__(self, sources: Sequence[Any]) -> Any:
        """The result as a lazy `Tensor`, from one `Tensor` for each source on the device that
        computes. It is rounded once more, to the recipe's type."""


class RoundingFunction(TensorFunction, Protocol):
    """A function that rounds its result itself, so that it can keep kernels for all of it."""

    def rounded(self, sources: Sequence[Any], dtype: Dtype) -> Any:
        """What `__call__` gives, in another type."""


class Nesting(NamedTuple):
    """The computed tensors in a recipe, itself included."""

    total: int
    """How many are computed: one that is used twice is computed twice."""
    depth: int
    """How many are inside each other."""


@dataclass(frozen=True)
class ComputedTensor:
    """A tensor that a function computes from others, of any shapes: a merged tensor."""

    name: str
    sources: tuple[Recipe, ...]
    encoding: Encoding
    """Plain elements of a type: that of the result."""
    shape: Shape
    function: TensorFunction

    @cached_property
    def nesting(self) -> Nesting:
        inside = [nesting_of(source) for source in self.sources]
        total = 1 + sum(one.total for one in inside)
        return Nesting(total, 1 + max((one.depth for one in inside), default=0))

    def __hash__(self) -> int:
        """Names tell most recipes apart, in less time than all that they are made of."""
        return hash((self.name, self.shape))


Recipe = (
    TensorInfo
    | ReorderedHeads
    | StackEntry
    | TensorStack
    | ShiftedTensor
    | PackedWeight
    | RepackedTensor
    | ComputedTensor
)


@dataclass(frozen=True)
class ComputedModel(ModelFiles):
    """A model that is not stored: its recipes use the files of others. `tensors` are the stored
    tensors of all of these, under names that tell the models apart."""

    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """The model's tensors, under Hugging Face's names and in its layout."""
    companions: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """The files of a folder besides the weights and config.json, by name."""

    @property
    def nbytes(self) -> int:
        return sum(map(nbytes_of, self.recipes.values()))


def renamed(recipe: Recipe, name: str) -> Recipe:
    return recipe if recipe.name == name else replace(recipe, name=name)


def sources_of(recipe: Recipe) -> tuple[Recipe, ...]:
    """The recipes that a recipe names. None for stored tensors."""
    match recipe:
        case TensorInfo():
            return ()
        case (
            TensorStack(sources=sources)
            | ComputedTensor(sources=sources)
            | RepackedTensor(sources=sources)
        ):
            return sources
        case PackedWeight():
            return tuple(recipe.parts.values())
        case _:
            return (recipe.source,)


def stored(recipe: Recipe) -> Iterator[TensorInfo]:
    """The stored tensors that a recipe is made of."""
    if isinstance(recipe, TensorInfo):
        yield recipe
    for source in sources_of(recipe):
        yield from stored(source)


def computed_tensors(recipe: Recipe) -> Iterator[ComputedTensor]:
    """The computed tensors in a recipe, the outermost first."""
    if isinstance(recipe, ComputedTensor):
        yield recipe
    for source in sources_of(recipe):
        yield from computed_tensors(source)


def nesting_of(recipe: Recipe) -> Nesting:
    """What `computed_tensors` would give, counted without walking to each."""
    if isinstance(recipe, ComputedTensor):
        return recipe.nesting
    inside = [nesting_of(source) for source in sources_of(recipe)]
    return Nesting(sum(one.total for one in inside), max((one.depth for one in inside), default=0))


def nbytes_of(recipe: Recipe) -> int:
    """The size of a recipe's result in its encoding."""
    return recipe.encoding.bytes_for(math.prod(recipe.shape))
