"""The rows that lbrx/scripts/mlx_vectors.py gave to MLX."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lbrx.quant import mlx_schemes

NAMES = [scheme.name for scheme in mlx_schemes.SCHEMES]
DTYPES = ["float32", "bfloat16"]


def rows(dtype: str) -> NDArray:
    """Gaussian, all zero, constant, one-sided, with an outlier, and on a coarse grid."""
    values = np.random.default_rng(8).standard_normal((7, 128)) * 0.1
    values[1] = 0
    values[2] = -0.37
    values[3] = np.abs(values[3])
    values[4] = -np.abs(values[4])
    values[5, 9] = 50
    values[6] = np.arange(128) % 16 / 4 - 2
    return values.astype(getattr(ml_dtypes, dtype, None) or dtype)
