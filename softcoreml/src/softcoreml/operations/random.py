"""Random tensors. A seed of 0 or more makes every run the same; -1 makes each run different.

The numbers are NumPy's, not Core ML's: only their distribution is the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import Array, define, integers, require_size, widen


def _generator(seed: Any) -> np.random.Generator:
    return np.random.default_rng(None if int(seed) < 0 else int(seed))


def _shape(shape: Array) -> tuple[int, ...]:
    return require_size(integers(shape, "shape"), "shape")


@define("random_bernoulli")
def random_bernoulli(shape: Array, prob: Any = 0.5, seed: Any = -1) -> Array:
    """Ones with the given probability, else zeros."""
    return (_generator(seed).random(_shape(shape)) < float(prob)).astype(np.float32)


@define("random_normal")
def random_normal(shape: Array, mean: Any = 0.0, stddev: Any = 1.0, seed: Any = -1) -> Array:
    values = _generator(seed).standard_normal(_shape(shape), dtype=np.float32)
    return values * np.float32(stddev) + np.float32(mean)


@define("random_uniform")
def random_uniform(shape: Array, low: Any = 0.0, high: Any = 1.0, seed: Any = -1) -> Array:
    """From low up to but without high."""
    values = _generator(seed).random(_shape(shape), dtype=np.float32)
    return values * np.float32(high - low) + np.float32(low)


@define("random_categorical")
def random_categorical(x: Array, mode: str = "logits", size: Any = 1, seed: Any = -1) -> Array:
    """`size` draws with replacement from each distribution along the last axis, as float32."""
    if mode not in ("logits", "probs"):
        raise ModelError(f"mode {mode!r} is not one of logits and probs")
    real = widen(x).astype(np.float64)
    if not real.ndim or not real.shape[-1]:
        raise ModelError(f"x {list(real.shape)} needs categories along its last axis")
    weights = np.exp(real - real.max(axis=-1, keepdims=True)) if mode == "logits" else real
    limits = np.cumsum(weights, axis=-1)
    draws = require_size((*real.shape[:-1], int(size), real.shape[-1]), "size")[:-1]
    points = _generator(seed).random(draws) * limits[..., -1:]
    chosen = np.sum(points[..., None] >= limits[..., None, :], axis=-1)
    return np.asarray(np.minimum(chosen, real.shape[-1] - 1), dtype=np.float32)
