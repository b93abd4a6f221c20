"""Random weights that depend on a tensor's name and shape alone, for models of any architecture."""

from __future__ import annotations

import zlib

import numpy as np

_SPREADS = {"embed": 0.2, "conv": 0.3, "dt_bias": 0.5, "bias": 0.1, "sinks": 0.5}


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """In float32, of sizes at which no layer saturates."""
    normal = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith("A_log"):
        return np.log(1 + 3 * np.abs(normal)).astype(np.float32)
    if name.endswith(".D") or (len(shape) == 1 and "bias" not in name and "norm" in name):
        return (1 + 0.1 * normal).astype(np.float32)
    spread = next((size for part, size in _SPREADS.items() if part in name), None)
    if spread is None:
        spread = 0.7 / shape[-1] ** 0.5 if len(shape) > 1 else 0.2
    return (spread * normal).astype(np.float32)
