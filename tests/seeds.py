"""The seed of random test inputs: the same in every run unless TEST_SEED gives another."""

from __future__ import annotations

import os
import zlib

import numpy as np

SEED = int(os.environ.get("TEST_SEED") or 1)


def derived(key: str) -> int:
    """A seed that depends on the run's seed and on a key, such as the name of a test."""
    return zlib.crc32(f"{SEED} {key}".encode())


def generator(key: int = 0) -> np.random.Generator:
    """Random numbers that depend on the seed and on `key`, which differs between uses."""
    return np.random.default_rng([SEED, key])
