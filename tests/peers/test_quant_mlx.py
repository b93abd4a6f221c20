"""Encoding against MLX's own quantizer, from the package `mlx` (`mlx[cpu]`) where it is installed."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lbrx import quant
from lbrx.quant.mlx import SCHEMES

mx = pytest.importorskip("mlx.core", reason="mlx is not installed: pip install 'mlx[cpu]'")


def mlx_parts(values: np.ndarray, name: str) -> list[np.ndarray]:
    """Weight, scales, and biases where there are any."""
    _, mode, *rest = name.split(":")
    settings = {"bits": int(mode), "group_size": int(rest[0])} if rest else {"mode": mode}
    array = mx.array(values.astype(np.float32)).astype(getattr(mx, values.dtype.name))
    parts = mx.quantize(array, **settings)
    # numpy cannot read MLX's bfloat16: its values pass through float32.
    wide = [part.astype(mx.float32) if part.dtype == mx.bfloat16 else part for part in parts]
    narrow = [part.dtype == mx.bfloat16 for part in parts]
    return [
        np.array(part).astype(ml_dtypes.bfloat16) if is_narrow else np.array(part)
        for part, is_narrow in zip(wide, narrow, strict=True)
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", [scheme.name for scheme in SCHEMES])
def test_encoding_is_mlx_own_bit_for_bit(name: str, dtype: type) -> None:
    if dtype is np.float16 and name.count(":") == 1:
        pytest.skip("MLX computes these scales in half precision on the CPU, in float32 on Metal")
    rng = np.random.default_rng()
    sizes = np.exp(rng.normal(-3, 2, (64, 1)))
    values = (rng.standard_normal((64, 512)) * sizes).astype(dtype)
    data, info = quant.quantize(values, name)
    for mine, theirs in zip([data, *info.arrays.values()], mlx_parts(values, name), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine.view(np.uint8), theirs.view(np.uint8))
