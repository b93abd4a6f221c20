"""Encoding against MLX's own quantizer, from the package `mlx` where it is installed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lbrx import quant
from lbrx.quant.mlx_schemes import SCHEMES

pytest.importorskip("mlx.core", reason="mlx is not installed: pip install 'mlx[cpu]'")
from mlx_quantizer import mlx_parts

DTYPES = (np.float32, ml_dtypes.bfloat16, np.float16)
# For float16, MLX computes the scales of its small floats in half precision on the CPU.
CASES = [
    (scheme.name, dtype)
    for scheme in SCHEMES
    for dtype in (DTYPES[:2] if scheme.symmetric else DTYPES)
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_encoding_is_mlx_own_bit_for_bit(name: str, dtype: type) -> None:
    rng = np.random.default_rng(3)
    sizes = np.exp(rng.normal(-3, 2, (64, 1)))
    values = (rng.standard_normal((64, 512)) * sizes).astype(dtype)
    data, info = quant.quantize(values, name)
    for mine, theirs in zip([data, *info.arrays.values()], mlx_parts(values, name), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine.view(np.uint8), theirs.view(np.uint8))
