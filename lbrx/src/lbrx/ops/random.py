"""Random numbers as a function of (seed, offset, element): Philox 4x32 with 10 rounds.

The generator is counter-based: elements do not depend on each other, so a kernel with one thread
per element gives the same numbers. Element i is word i % 4 of the block with counter
offset + i // 4. See Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays.dtype import Dtype, check_scalar
from lbrx.arrays.shape import Shape
from lbrx.errors import DtypeError
from lbrx.ops import rules
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op

WORDS = 4
INTEGERS = 2
"""Integers that a counter makes, of two words each."""
_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)


def philox(seed: int, offset: int, blocks: int) -> NDArray[np.uint32]:
    """The 32-bit words of `blocks` consecutive counters from `offset` on, four per counter."""
    counter = np.arange(blocks, dtype=np.uint64) + np.uint64(offset)
    a, b = counter & _LOW, counter >> _HIGH
    c = d = np.zeros_like(counter)
    keys = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, c = (
            second >> _HIGH ^ b ^ np.uint64(keys[0]),
            first >> _HIGH ^ d ^ np.uint64(keys[1]),
        )
        b, d = second & _LOW, first & _LOW
        keys = [(k + step) & 0xFFFFFFFF for k, step in zip(keys, _KEY_STEPS, strict=True)]
    return np.stack([a, b, c, d], axis=-1).reshape(-1).astype(np.uint32)


def _words(seed: int, offset: int, count: int) -> NDArray[np.uint32]:
    """At least `count` words: complete blocks of four."""
    return philox(seed, offset, -(-count // WORDS))


def _unit(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """The upper 24 bits of each word as a multiple of 2**-24 in [0, 1), exact in float32."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def _float_dtype(_: Dtype, attributes: Attributes) -> Dtype:
    dtype: Dtype = attributes["dtype"]
    if not dtype.is_float:
        raise DtypeError(f"random numbers are floating, not {dtype}: cast the result")
    return dtype


@op(OpFamily.RANDOM, rules.from_attribute, _float_dtype)
def random_uniform(
    *, shape: Shape, dtype: Dtype, seed: int, offset: int, low: float = 0, high: float = 1
) -> NumpyArray:
    """Uniformly distributed in [low, high): computed in float32, rounded to the dtype."""
    count = math.prod(shape)
    unit = _unit(_words(seed, offset, count))[:count].reshape(shape)
    return np.asarray(unit * np.float32(high - low) + np.float32(low))


@op(OpFamily.RANDOM, rules.from_attribute, _float_dtype)
def random_normal(
    *, shape: Shape, dtype: Dtype, seed: int, offset: int, mean: float = 0, std: float = 1
) -> NumpyArray:
    """Normally distributed, by the Box-Muller transform: two words give two numbers."""
    count = math.prod(shape)
    pairs = _unit(_words(seed, offset, count)).reshape(-1, 2)
    # 1 - u is in (0, 1], so the logarithm is finite.
    radius = np.sqrt(-2 * np.log(1 - pairs[:, 0]))
    angle = np.float32(2 * math.pi) * pairs[:, 1]
    both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    values = both.reshape(-1)[:count].reshape(shape)
    return np.asarray(values * np.float32(std) + np.float32(mean))


@op(OpFamily.RANDOM, rules.from_attribute, rules.boolean)
def random_bernoulli(*, shape: Shape, seed: int, offset: int, p: float = 0.5) -> NumpyArray:
    """bool: True with probability p."""
    count = math.prod(shape)
    return _unit(_words(seed, offset, count))[:count].reshape(shape) < np.float32(p)


def _integer_dtype(_: Dtype, attributes: Attributes) -> Dtype:
    dtype: Dtype = attributes["dtype"]
    low, high = attributes["low"], attributes["high"]
    if not dtype.is_integer:
        raise DtypeError(f"random integers are not {dtype}: give an integer type")
    if low >= high:
        raise ValueError(f"no integer is from {low} to below {high}: give a larger high")
    check_scalar(low, dtype)
    check_scalar(high - 1, dtype)
    return dtype


@op(OpFamily.RANDOM, rules.from_attribute, _integer_dtype)
def random_integers(
    *, shape: Shape, dtype: Dtype, seed: int, offset: int, low: int, high: int
) -> NumpyArray:
    """Integers from [low, high): the upper half of 64 random bits times high - low, plus low.

    No integer is more likely than another by more than (high - low) / 2**64.
    """
    count = math.prod(shape)
    words = philox(seed, offset, -(-count // INTEGERS)).reshape(-1, 2).astype(np.uint64)
    scaled = _upper_half(words[:count, 0], words[:count, 1], high - low)
    return (scaled + np.uint64(low & (1 << 64) - 1)).astype(dtype.numpy).reshape(shape)


def _upper_half(low: NumpyArray, high: NumpyArray, factor: int) -> NumpyArray:
    """Bits 64 to 127 of the product of numbers, given as two words each, with a factor."""
    small, large = np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    middle = high * small + (low * small >> _HIGH)
    other = low * large + (middle & _LOW)
    return np.asarray(high * large + (middle >> _HIGH) + (other >> _HIGH))
