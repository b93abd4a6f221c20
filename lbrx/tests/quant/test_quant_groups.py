"""Schemes with scales beside the data: lbrx's own groups, and MLX's."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import mlx_rows
import numpy as np
import pytest
from quant_data import make, round_trip

from lbrx import quant
from lbrx.quant import affine_schemes

VECTORS = np.load(Path(__file__).parent / "mlx_vectors.npz")
OWN = [scheme.name for scheme in affine_schemes.SCHEMES]


@pytest.mark.parametrize("dtype", mlx_rows.DTYPES)
@pytest.mark.parametrize("name", mlx_rows.NAMES)
def test_encoding_is_mlx_own_bit_for_bit(name, dtype):
    """lbrx/scripts/mlx_vectors.py wrote them, with MLX's quantizer."""
    data, info = quant.quantize(mlx_rows.rows(dtype), name)
    assert data.dtype == np.uint32
    parts = [data, *info.arrays.values()]
    stored = np.concatenate([part.view(np.uint8).reshape(-1) for part in parts])
    np.testing.assert_array_equal(stored, VECTORS[f"{name} {dtype}"])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_mlx_scales_keep_the_values_type(dtype):
    info = quant.quantize(np.ones((2, 64), dtype), "mlx:4").info
    assert info.scales.dtype == info.biases.dtype == dtype
    assert info.zero_points is None


@pytest.mark.parametrize("name", OWN)
def test_own_groups_span_the_values_and_round_to_the_nearest(rng, name):
    scheme = quant.find(name)
    codes = np.arange(2**scheme.bits)
    for kind in ("gaussian", "positive", "negative", "outliers", "constant"):
        groups = make(kind, rng, (12, scheme.group_size)).astype(np.float64)
        data, info = quant.quantize(groups, name)
        scales = info.scales.astype(np.float64)
        if scheme.symmetric:
            zero = np.full_like(scales, 2 ** (scheme.bits - 1))
            expected = np.abs(groups).max(axis=1, keepdims=True) / zero
        else:
            zero = info.zero_points.astype(np.float64)
            span = groups.max(axis=1).clip(0) - groups.min(axis=1).clip(None, 0)
            expected = span[:, None] / codes[-1]
        np.testing.assert_allclose(np.abs(scales), expected, rtol=2**-11)
        levels = (codes - zero) * scales
        nearest = np.abs(groups[:, :, None] - levels[:, None, :]).min(axis=2)
        error = np.abs(quant.dequantize(data, info) - groups)
        np.testing.assert_allclose(error, nearest, rtol=1e-4, atol=np.abs(groups).max() * 1e-6)


@pytest.mark.parametrize("name", OWN)
def test_own_groups_hold_zero_exactly(rng, name):
    values = make("gaussian", rng, (3, 128))
    values[:, ::5] = 0
    assert (round_trip(values, name)[:, ::5] == 0).all()


def test_own_layout(rng):
    values = make("gaussian", rng, (6, 256))
    data, info = quant.quantize(values, "q5:128")
    assert (data.shape, data.dtype) == ((6, 256 * 5 // 32), np.uint32)
    assert (info.scales.shape, info.scales.dtype) == ((6, 2), np.float16)
    assert (info.zero_points.shape, info.zero_points.dtype) == ((6, 2), np.uint8)
    number = int.from_bytes(data[4].tobytes(), "little")
    codes = np.array([number >> 5 * i & 31 for i in range(256)]).reshape(2, 128)
    expected = (codes - info.zero_points[4, :, None].astype(int)) * info.scales[4, :, None].astype(
        float
    )
    np.testing.assert_allclose(quant.dequantize(data, info)[4], expected.reshape(-1), rtol=1e-6)
