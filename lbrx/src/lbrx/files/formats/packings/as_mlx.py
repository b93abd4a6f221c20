"""Packed weights as MLX stores the same values: codes as they are, and biases for zero points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.files.formats.descriptor import plain
from lbrx.files.formats.recipe import PackedWeight, Recipe, RepackedTensor


@dataclass(frozen=True)
class Biases:
    """-zero * scale. Of a zero that is a power of two it is exact in the type of the scales, of
    any other in float32."""

    zero: int = 0
    """The code that stands for zero; 0 where zero points follow the scales."""

    def __call__(self, sources: Sequence[NDArray[Any]]) -> NDArray[Any]:
        scales, *zeros = sources
        zero = zeros[0].astype(np.float32) if zeros else np.float32(self.zero)
        return -zero * scales.astype(np.float32)


@dataclass(frozen=True)
class Exactly:
    """The same numbers in a wider type."""

    def __call__(self, sources: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return sources[0].astype(np.float32)


def as_mlx(recipe: Recipe) -> Recipe:
    """The recipe in MLX's affine scheme, if it is one of integers in groups that this holds
    exactly; else the recipe itself."""
    if not isinstance(recipe, PackedWeight) or not recipe.scheme.startswith("q"):
        return recipe
    scheme = quant.find(recipe.scheme)
    name = f"mlx:{scheme.bits}:{scheme.group_size}"
    if name not in quant.SCHEMES:
        return recipe
    scales, zeros = recipe.scales, recipe.offsets
    sources: tuple[Recipe, ...] = (scales,)
    if zeros is not None:
        wide = plain(dt.float32)
        sources = (scales, zeros)
        scales = RepackedTensor(scales.name, (scales,), wide, scales.shape, Exactly())
    function = Biases(0 if zeros is not None else 1 << (scheme.bits - 1))
    biases = RepackedTensor(scales.name, sources, scales.encoding, scales.shape, function)
    return PackedWeight(recipe.name, name, recipe.data, scales, biases)
