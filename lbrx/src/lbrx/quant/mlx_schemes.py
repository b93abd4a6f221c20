"""MLX's schemes: words of packed codes, scales, and biases in the affine mode.

Encoding gives the same bits as MLX's quantizer.
"""

from __future__ import annotations

import numpy as np

from lbrx.quant import floats
from lbrx.quant.affine_schemes import GROUP_SIZES, codes_of, words
from lbrx.quant.scheme import Encoder, Fields, FloatArray, Scheme

BITS = (2, 3, 4, 5, 6, 8)
_ROUNDED_UP = np.float32(1 + 1 / 256)  # at most, for a scale that is stored as bfloat16


def _affine(bits: int, group_size: int) -> Scheme:
    """value = code * scale + bias; the end of the range that is farther from zero is exact."""
    top = np.float32((1 << bits) - 1)

    def decode(fields: Fields) -> FloatArray:
        scales, biases = (fields[n].astype(np.float32)[:, None] for n in ("scales", "biases"))
        return codes_of(fields["data"], bits).astype(np.float32) * scales + biases

    def encode(values: FloatArray, importance: FloatArray | None) -> Fields:
        low, high = values.min(axis=1), values.max(axis=1)
        downwards = np.abs(low) > np.abs(high)
        scale = np.maximum((high - low) / top, np.float32(1e-7))
        scale = np.where(downwards, scale, -scale)
        edge = np.where(downwards, low, high)
        steps = np.rint(edge / scale)
        scale = np.where(steps != 0, edge / steps, scale)
        bias = np.where(steps != 0, edge, np.float32(0))
        # Decoding multiplies before it adds the bias; an infinite scale is refused.
        scale = np.where(np.isfinite(scale * (top * _ROUNDED_UP)), scale, np.float32(np.inf))
        codes = np.rint((values - bias[:, None]) / scale[:, None]).clip(0, top)
        return {"data": words(codes, bits), "scales": scale, "biases": bias}

    name = f"mlx:{bits}:{group_size}"
    data = ("data", "<u4", group_size * bits // 32)
    layout = np.dtype([data, ("scales", "<f4"), ("biases", "<f4")])
    return Scheme(
        name,
        bits,
        group_size,
        group_size,
        layout,
        decode,
        encode,
        planar=True,
        keeps_dtype=True,
        codec=f"mlx_{bits}",
        encoder=Encoder.DIRECT,
    )


def _microscaled(mode: str, bits: int, group_size: int) -> Scheme:
    """Small floats with an eight-bit scale: a power of two (mx), or E4M3 (nv)."""
    power_of_two = mode.startswith("mx")
    largest = floats.E2M1_MAX if bits == 4 else floats.E4M3_MAX
    to_scale = floats.to_e8m0 if power_of_two else floats.to_e4m3
    from_scale = floats.from_e8m0 if power_of_two else floats.from_e4m3

    def decode(fields: Fields) -> FloatArray:
        codes = codes_of(fields["data"], bits)
        values = floats.E2M1[codes] if bits == 4 else floats.from_e4m3(codes)
        return values * from_scale(fields["scales"])[:, None]

    def encode(values: FloatArray, importance: FloatArray | None) -> Fields:
        stored = to_scale(np.abs(values).max(axis=1) / largest)
        scale = from_scale(stored)[:, None]
        scaled = np.where(scale == 0, np.float32(0), values / scale)
        codes = floats.to_e2m1(scaled) if bits == 4 else floats.to_e4m3(scaled)
        return {"data": words(codes, bits), "scales": stored}

    layout = np.dtype([("data", "<u4", group_size * bits // 32), ("scales", "u1")])
    return Scheme(
        f"mlx:{mode}",
        bits,
        group_size,
        group_size,
        layout,
        decode,
        encode,
        symmetric=True,
        planar=True,
        codec=f"mlx_{mode}",
        integer_codes=bits == 4,
        # Beyond 2 ** 127, codes times scales would exceed the range of float32.
        limit=2.0**127 if power_of_two else float(largest * floats.E4M3_MAX),
    )


SCHEMES = (
    *(_affine(bits, group_size) for bits in BITS for group_size in GROUP_SIZES),
    _microscaled("mxfp4", 4, 32),
    _microscaled("mxfp8", 8, 32),
    _microscaled("nvfp4", 4, 16),
)
