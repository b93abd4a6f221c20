"""The seed of random test inputs: the same in every run unless TEST_SEED says otherwise."""

from __future__ import annotations

import os
import zlib

SEED = int(os.environ.get("TEST_SEED", "0"))


def derived(key: str) -> int:
    """A seed of its own for each key, such as the name of a test."""
    return zlib.crc32(f"{SEED} {key}".encode())
