"""Types whose sixteen codes are indices of a table: IQ4_NL, IQ4_XS, MXFP4 and NVFP4."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.quant import floats
from lbrx.quant.bits import ByteArray, pack_runs, unpack_runs
from lbrx.quant.gguf.blocks import block_scheme, column, columns, extreme, inverse, weigh
from lbrx.quant.gguf.search import total
from lbrx.quant.scheme import Fields, FloatArray, Scheme

# IQ4's values: steps grow with the distance from zero, for normally distributed weights.
UNEVEN = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
# The midpoints are multiples of a half, so floor(2 x) finds the code of x.
_UNEVEN_CODES: ByteArray = np.searchsorted(
    UNEVEN[1:] + UNEVEN[:-1], np.arange(-256, 256), side="right"
).astype(np.uint8)
# GGUF's table of E2M1 is doubled and its scales are halved: the largest scale stays finite.
# Its zeros have no sign: adding 0.0 turns -0.0 into 0.0.
_DOUBLED = 2 * floats.E2M1 + np.float32(0)


# --- IQ4: the scale is searched for, as for the K types


def _nearest(values: FloatArray) -> ByteArray:
    """Codes of the nearest table entries; ties go to the upper one."""
    halves = np.floor(2 * values).clip(-256, 255).astype(np.int16)
    return _UNEVEN_CODES.take(halves + 256)


def _uneven_scales(groups: FloatArray, weights: FloatArray) -> FloatArray:
    """The best of several scales that put the extreme value near either end of the table."""
    peak = inverse(extreme(groups, 0)[0])
    scale, best = np.zeros_like(peak), np.zeros_like(peak)
    for reach in (-UNEVEN[0], *(UNEVEN[0] + step for step in range(-7, 8))):
        entries = UNEVEN.take(_nearest(groups * (reach * peak)))
        weighted = weights * entries
        products, squares = total(weighted, groups), total(weighted, entries)
        explained = products * products / squares
        better = explained > best
        best = np.where(better, explained, best)
        scale = np.where(better, products / squares, scale)
    return scale


def _uneven_weights(values: FloatArray, importance: FloatArray | None) -> FloatArray:
    rows = np.square(values) if importance is None else weigh(values, importance, 2)
    return columns(rows, 32)


def _decode_iq4_nl(fields: Fields) -> FloatArray:
    return column(fields["d"]) * UNEVEN[unpack_runs(fields["qs"], 4, 16)]


def _encode_iq4_nl(values: FloatArray, importance: FloatArray | None) -> Fields:
    d = _uneven_scales(columns(values, 32), _uneven_weights(values, importance))
    return {"d": d, "qs": pack_runs(_nearest(values * inverse(column(d))), 4, 16)}


def _decode_iq4_xs(fields: Fields) -> FloatArray:
    high = np.ascontiguousarray(fields["scales_h"]).view(np.uint8).reshape(-1, 2)
    scales = unpack_runs(fields["scales_l"], 4, 1) | unpack_runs(high, 2, 1) << np.uint8(4)
    scale = column(fields["d"]) * (scales.astype(np.float32) - 32)
    entries = UNEVEN[unpack_runs(fields["qs"], 4, 16)].reshape(-1, 8, 32)
    return (scale[:, :, None] * entries).reshape(-1, 256)


def _encode_iq4_xs(values: FloatArray, importance: FloatArray | None) -> Fields:
    groups = _uneven_scales(columns(values, 32), _uneven_weights(values, importance))
    scales = groups.reshape(-1, 8)
    d = extreme(scales, 1) / np.float32(-32)
    codes = np.rint(scales * inverse(d)).clip(-32, 31)
    scale = (d.astype(np.float16).astype(np.float32) * codes)[:, :, None]
    entries = _nearest(values.reshape(-1, 8, 32) * inverse(scale)).reshape(-1, 256)
    six = (codes + 32).astype(np.uint8)
    return {
        "d": d[:, 0],
        "scales_h": pack_runs(six >> 4, 2, 1).view("<u2")[:, 0],
        "scales_l": pack_runs(six & 15, 4, 1),
        "qs": pack_runs(entries, 4, 16),
    }


# --- E2M1 with an eight-bit scale


def _half_power(exponents: NDArray[Any]) -> FloatArray:
    """2 ** (e - 128): half the value of E8M0, as the table has doubled values."""
    return floats.from_e8m0(exponents.astype(np.int32) - 1)


def _decode_mxfp4(fields: Fields) -> FloatArray:
    return _half_power(fields["e"])[:, None] * _DOUBLED[unpack_runs(fields["qs"], 4, 16)]


def _encode_mxfp4(values: FloatArray, importance: FloatArray | None) -> Fields:
    largest = np.abs(values).max(axis=1)
    # E2M1 goes up to 4 * 1.5, so the scale is the power of two that makes the largest 4 to 8.
    exponents = np.where(largest > 0, np.floor(np.log2(largest)) - 2 + 127, 0).clip(0, 254)
    codes = floats.to_e2m1(values / (2 * _half_power(exponents))[:, None])
    return {"e": exponents, "qs": pack_runs(codes, 4, 16)}


def _e4m3(stored: ByteArray) -> FloatArray:
    """Half of what E4M3 means, without its sign; 0x7f, which is not a number, is zero."""
    exponent, mantissa = (stored >> 3 & 15).astype(np.int32), (stored & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissa / 8, exponent - 8)
    numbers = np.where(exponent == 0, np.ldexp(mantissa, -10), normal)
    return np.where(stored == 0x7F, np.float32(0), numbers.astype(np.float32))


def _decode_nvfp4(fields: Fields) -> FloatArray:
    codes = unpack_runs(fields["qs"], 4, 8).reshape(-1, 4, 16)
    return (_e4m3(fields["d"])[:, :, None] * _DOUBLED[codes]).reshape(-1, 64)


def _encode_nvfp4(values: FloatArray, importance: FloatArray | None) -> Fields:
    groups = values.reshape(-1, 4, 16)
    largest = np.abs(groups).max(axis=2) / floats.E2M1_MAX
    d = floats.to_e4m3(largest)
    codes = floats.to_e2m1(groups * inverse(2 * _e4m3(d))[:, :, None])
    return {"d": d, "qs": pack_runs(codes.reshape(-1, 64), 4, 8)}


_IQ4_NL = [("d", "<f2"), ("qs", "u1", 16)]
_IQ4_XS = [("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)]
_MXFP4 = [("e", "u1"), ("qs", "u1", 16)]
_NVFP4 = [("d", "u1", 4), ("qs", "u1", 32)]

SCHEMES: tuple[Scheme, ...] = (
    block_scheme(
        "iq4_nl",
        20,
        32,
        4,
        32,
        _IQ4_NL,
        _decode_iq4_nl,
        _encode_iq4_nl,
        symmetric=True,
        heeds_importance=True,
    ),
    block_scheme(
        "iq4_xs",
        23,
        256,
        4,
        32,
        _IQ4_XS,
        _decode_iq4_xs,
        _encode_iq4_xs,
        symmetric=True,
        heeds_importance=True,
    ),
    block_scheme("mxfp4", 39, 32, 4, 32, _MXFP4, _decode_mxfp4, _encode_mxfp4, symmetric=True),
    block_scheme(
        "nvfp4",
        40,
        64,
        4,
        16,
        _NVFP4,
        _decode_nvfp4,
        _encode_nvfp4,
        symmetric=True,
        limit=float(floats.E2M1_MAX * floats.E4M3_MAX),
    ),
)
