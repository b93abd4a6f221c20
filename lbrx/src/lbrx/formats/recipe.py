"""Tensors made of stored ones: what lies between the layouts of two families of files.

A recipe has a name, an encoding and a shape like a stored tensor, and says what to do with which
sources when someone wants the elements. Except for `Shifted`, only whole rows move, so blocks of
quantized weights stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx.formats.descriptor import Encoding, TensorInfo, plain
from lbrx.shape import Shape


@dataclass(frozen=True)
class Rows:
    """Rows of attention heads in the other of two orders: halves, or pairs beside each other.

    Hugging Face keeps the two coordinates that RoPE turns together half a head apart, llama.cpp
    keeps them in neighbouring rows.
    """

    name: str
    source: Recipe
    heads: int
    pairs: bool
    """Whether the result has pairs side by side, as llama.cpp's."""

    @property
    def encoding(self) -> Encoding:
        return self.source.encoding

    @property
    def shape(self) -> Shape:
        return self.source.shape

    def order(self) -> NDArray[np.intp]:
        """Which row of the source each row of the result is."""
        rows = np.arange(self.shape[0])
        split = (2, -1) if self.pairs else (-1, 2)
        return rows.reshape(self.heads, *split).swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True)
class Part:
    """One of the things that a tensor stacks along its first axis: an expert."""

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
class Stack:
    """Tensors of one shape along a new first axis."""

    name: str
    sources: tuple[Recipe, ...]

    @property
    def encoding(self) -> Encoding:
        return self.sources[0].encoding

    @property
    def shape(self) -> Shape:
        return (len(self.sources), *self.sources[0].shape)


@dataclass(frozen=True)
class Shifted:
    """A number added to every element, in float32: Gemma's norms mean 1 + weight."""

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
class Packed:
    """A weight that MLX keeps as words of small integers with scales and biases beside them."""

    name: str
    weight: TensorInfo
    scales: TensorInfo
    biases: TensorInfo | None
    mode: str
    bits: int
    group_size: int

    @property
    def encoding(self) -> Encoding:
        beside = [t for t in (self.scales, self.biases) if t is not None]
        nbytes = self.group_size * self.bits // 8 + sum(t.encoding.nbytes for t in beside)
        return Encoding(self.scheme.upper(), None, self.group_size, nbytes)

    @property
    def scheme(self) -> str:
        return f"mlx:{self.bits}:{self.group_size}" if self.mode == "affine" else f"mlx:{self.mode}"

    @property
    def shape(self) -> Shape:
        *leading, groups = self.scales.shape
        return (*leading, groups * self.group_size)


Recipe = TensorInfo | Rows | Part | Stack | Shifted | Packed


def renamed(recipe: Recipe, name: str) -> Recipe:
    return recipe if recipe.name == name else replace(recipe, name=name)


def stored(recipe: Recipe) -> Iterator[TensorInfo]:
    """The tensors of files that a recipe is made of."""
    match recipe:
        case TensorInfo():
            yield recipe
        case Rows(source=source) | Part(source=source) | Shifted(source=source):
            yield from stored(source)
        case Stack(sources=sources):
            for source in sources:
                yield from stored(source)
        case Packed(weight=weight, scales=scales, biases=biases):
            yield from (t for t in (weight, scales, biases) if t is not None)


def nbytes_of(recipe: Recipe) -> int:
    """The bytes that a recipe's result takes in its encoding."""
    return recipe.encoding.bytes_for(math.prod(recipe.shape))
