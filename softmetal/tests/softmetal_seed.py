"""The seed of every random input of these tests: fixed, unless SOFTMETAL_TEST_SEED gives another."""

from __future__ import annotations

import os

import numpy as np

SEED = int(os.environ.get("SOFTMETAL_TEST_SEED") or 1)


def generator(key: int = 0) -> np.random.Generator:
    """Random numbers that depend on the seed and on `key`, which differs between uses."""
    return np.random.default_rng([SEED, key])
