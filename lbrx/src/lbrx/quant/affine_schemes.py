"""lbrx's schemes in groups: a row's codes are one stream of bits, and scales a float16 array.

`q4:64` is four bits in groups of 64 with zero points, `q8:32:symmetric` eight bits without.
Zero is stored exactly in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.quant.bits import pack_stream, unpack_stream
from lbrx.quant.scheme import Encoder, Fields, FloatArray, Scheme

GROUP_SIZES = (32, 64, 128)
BITS = range(2, 9)


def words(codes: NDArray[Any], bits: int) -> NDArray[np.uint32]:
    """Codes [n, group] as little-endian words."""
    return np.ascontiguousarray(pack_stream(codes, bits)).view("<u4")


def codes_of(packed: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    return unpack_stream(np.ascontiguousarray(packed, "<u4").view(np.uint8), bits)


def inverse(scales: FloatArray) -> FloatArray:
    return np.where(scales == 0, np.float32(0), 1 / scales)


def _rounded(scales: FloatArray) -> FloatArray:
    """Rounded to float16, so that codes are computed with the stored scales."""
    return scales.astype(np.float16).astype(np.float32)


def _symmetric(bits: int) -> tuple[Callable[[Fields], FloatArray], Callable[..., Fields]]:
    """(q - half) * scale. The extreme value is code 0, so a scale may be negative."""
    half = 1 << (bits - 1)

    def decode(fields: Fields) -> FloatArray:
        codes = codes_of(fields["data"], bits).astype(np.float32)
        return (codes - half) * fields["scales"].astype(np.float32)[:, None]

    def encode(values: FloatArray, importance: FloatArray | None) -> Fields:
        at = np.abs(values).argmax(axis=1)[:, None]
        scales = _rounded(np.take_along_axis(values, at, axis=1) / np.float32(-half))
        codes = np.rint(values * inverse(scales)).clip(-half, half - 1) + half
        return {"data": words(codes, bits), "scales": scales[:, 0]}

    return decode, encode


def _asymmetric(bits: int) -> tuple[Callable[[Fields], FloatArray], Callable[..., Fields]]:
    """(q - zero_point) * scale, over a range that includes zero."""
    top = (1 << bits) - 1

    def decode(fields: Fields) -> FloatArray:
        codes = codes_of(fields["data"], bits).astype(np.float32)
        centred = codes - fields["zero_points"].astype(np.float32)[:, None]
        return centred * fields["scales"].astype(np.float32)[:, None]

    def encode(values: FloatArray, importance: FloatArray | None) -> Fields:
        low = np.minimum(values.min(axis=1, keepdims=True), 0)
        high = np.maximum(values.max(axis=1, keepdims=True), 0)
        scales = _rounded((high - low) / np.float32(top))
        zero = np.rint(-low * inverse(scales)).clip(0, top)
        codes = np.rint(values * inverse(scales) + zero).clip(0, top)
        return {"data": words(codes, bits), "scales": scales[:, 0], "zero_points": zero[:, 0]}

    return decode, encode


def _scheme(bits: int, group_size: int, symmetric: bool) -> Scheme:
    name = f"q{bits}:{group_size}" + ":symmetric" * symmetric
    decode, encode = _symmetric(bits) if symmetric else _asymmetric(bits)
    data, scales = ("data", "<u4", group_size * bits // 32), ("scales", "<f2")
    layout = [data, scales] if symmetric else [data, scales, ("zero_points", "u1")]
    return Scheme(
        name,
        bits,
        group_size,
        group_size,
        np.dtype(layout),
        decode,
        encode,
        symmetric=symmetric,
        planar=True,
        codec=f"q{bits}" + "_symmetric" * symmetric,
        encoder=Encoder.DIRECT,
    )


SCHEMES = tuple(
    _scheme(bits, group_size, symmetric)
    for symmetric in (False, True)
    for bits in BITS
    for group_size in GROUP_SIZES
)
