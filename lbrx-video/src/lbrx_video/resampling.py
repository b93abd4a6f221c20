"""Resampling along one axis: which samples of a plane make each pixel, and with which weights.

Chroma siting, subsampling, cropping and resizing are all decided here. A kernel only applies the
weights, so every combination is one pass over the samples.

Positions are in luma samples: sample i covers i to i + 1, and its centre is i + 1/2. Weights of
samples beyond the edge of the plane are left out and the others are scaled up, as Pillow does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.errors import LbrxError

Floats = NDArray[np.float64]
REMEMBERED = 64


@dataclass(frozen=True)
class Filter:
    """An interpolation kernel: its reach in samples, and its weight at a distance."""

    reach: float
    weight: Callable[[Floats], Floats]


def _triangle(x: Floats) -> Floats:
    weights: Floats = np.maximum(1 - np.abs(x), 0)
    return weights


def _catmull_rom(x: Floats) -> Floats:
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _lanczos(x: Floats) -> Floats:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


FILTERS = {
    "nearest": Filter(0, np.ones_like),
    "bilinear": Filter(1, _triangle),
    "bicubic": Filter(2, _catmull_rom),
    "lanczos": Filter(3, _lanczos),
}


@dataclass(frozen=True)
class Axis:
    """How pixels along one axis are made of a plane's samples.

    samples: in the plane. start, length: the part of the picture that is used, in luma samples.
    pixels: that are made of it. shift: logarithm of the plane's subsampling. centered: whether a
    chroma sample lies in the middle of its luma samples, not on the first.
    """

    samples: int
    start: float
    length: float
    pixels: int
    filter: str = "bilinear"
    antialias: bool = True
    shift: int = 0
    centered: bool = False


@dataclass(frozen=True, eq=False)
class Taps:
    """Pixel i is the sum over k of weights[i, k] times sample first[i] + k."""

    first: NDArray[np.int64]
    weights: Floats

    @property
    def count(self) -> int:
        return int(self.weights.shape[1])

    def dense(self, samples: int) -> Floats:
        """The weights as a matrix (pixels, samples)."""
        matrix = np.zeros((len(self.first), samples))
        for k in range(self.count):
            matrix[np.arange(len(self.first)), self.first + k] += self.weights[:, k]
        return matrix

    @property
    def is_identity(self) -> bool:
        """Whether pixels are consecutive samples."""
        return self.count == 1 and bool((np.diff(self.first) == 1).all())


@lru_cache(REMEMBERED)
def taps(axis: Axis) -> Taps:
    """The samples and weights of each pixel."""
    position = axis.start + (np.arange(axis.pixels) + 0.5) * (axis.length / axis.pixels)
    if axis.filter == "nearest":
        luma = np.floor(position).astype(np.int64)
        first = np.clip(luma >> axis.shift, 0, axis.samples - 1)
        return Taps(first, np.ones((axis.pixels, 1)))
    chosen, step = FILTERS[axis.filter], 1 << axis.shift
    # In samples of the plane, with sample k at k.
    at = (position - (step / 2 if axis.centered else 0.5)) / step
    stretch = max(axis.length / axis.pixels / step, 1.0) if axis.antialias else 1.0
    radius = chosen.reach * stretch
    first = np.ceil(at - radius).astype(np.int64)
    places = first[:, None] + np.arange(math.floor(2 * radius) + 1)
    weights = chosen.weight((places - at[:, None]) / stretch)
    weights[(places < 0) | (places >= axis.samples)] = 0
    weights /= weights.sum(axis=1, keepdims=True)
    return _trimmed(first, weights, axis.samples)


def _trimmed(first: NDArray[np.int64], weights: Floats, samples: int) -> Taps:
    """Without columns of zeros, and with all taps inside the plane. `first` never decreases."""
    used = np.flatnonzero((np.abs(weights) > 1e-12).any(axis=0))
    low, count = int(used[0]), min(int(used[-1] - used[0]) + 1, samples)
    inside = np.clip(first + low, 0, samples - count)
    places = inside[:, None] + np.arange(count) - first[:, None]
    valid = (places >= 0) & (places < weights.shape[1])
    moved = np.take_along_axis(weights, np.clip(places, 0, weights.shape[1] - 1), axis=1)
    return Taps(inside, np.where(valid, moved, 0.0))


@dataclass(frozen=True)
class Doubling:
    """Chroma of half the width at full width: pixels 2i and 2i + 1 are weighted means of the two
    samples from base + i and base + i + odd on, where samples beyond an edge repeat it."""

    base: int
    odd: int
    weights: tuple[float, float, float, float]

    def dense(self, pixels: int, samples: int) -> Floats:
        matrix = np.zeros((pixels, samples))
        for i in range(pixels):
            begin = self.base + i // 2 + self.odd * (i % 2)
            for k in range(2):
                matrix[i, min(max(begin + k, 0), samples - 1)] += self.weights[2 * (i % 2) + k]
        return matrix


@lru_cache(REMEMBERED)
def doubling(axis: Axis) -> Doubling | None:
    """The doubling that an axis is; None for any other resampling."""
    found = taps(axis)
    if axis.shift != 1 or axis.length != axis.pixels or found.count != 2 or axis.pixels < 8:
        return None
    middle = axis.pixels // 4 * 2
    even, odd = (
        (int(found.first[i]) - i // 2, tuple(map(float, found.weights[i])))
        for i in (middle, middle + 1)
    )
    made = Doubling(even[0], odd[0] - even[0], (*even[1], *odd[1]))  # type: ignore[arg-type]
    same = np.allclose(
        made.dense(axis.pixels, axis.samples), found.dense(axis.samples), rtol=0, atol=1e-9
    )
    return made if same else None


def check_filter(name: Any) -> str:
    """The name itself; LbrxError for an unknown one."""
    if name not in FILTERS:
        raise LbrxError(f"filter={name!r}: give one of {', '.join(FILTERS)}")
    return str(name)
