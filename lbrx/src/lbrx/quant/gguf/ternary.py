"""Types whose values are -d, 0 and d."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.quant.bits import ByteArray, pack_runs, unpack_runs
from lbrx.quant.gguf.blocks import block_scheme, column, inverse, round_away
from lbrx.quant.scheme import Fields, FloatArray, Scheme

# TQ1_0's pieces: (values before it, values per byte, bytes). A byte's digits are `bytes` apart.
_PIECES = ((0, 5, 32), (160, 5, 16), (240, 4, 4))


def _digits(values: FloatArray) -> tuple[FloatArray, ByteArray]:
    """The scale d, and the values as digits 0, 1 and 2."""
    d = np.abs(values).max(axis=1, keepdims=True)
    return d[:, 0], (round_away(values * inverse(d)) + 1).astype(np.uint8)


def _values(d: NDArray[Any], digits: NDArray[Any]) -> FloatArray:
    return column(d) * (digits.astype(np.float32) - 1)


def _pack_base3(digits: ByteArray) -> ByteArray:
    """Five base-3 digits in each byte, as the fraction n / 243 in units of 1 / 256, rounded up.

    Multiplying such a byte by 3 carries its first digit out of the byte.
    """
    packed = []
    for start, count, size in _PIECES:
        piece = digits[:, start : start + count * size].reshape(-1, count, size)
        powers = (81, 27, 9, 3, 1)[:count]
        number = sum(piece[:, i].astype(np.uint16) * power for i, power in enumerate(powers))
        packed.append((number * np.uint32(256) + 242) // 243)
    return np.concatenate(packed, axis=1).astype(np.uint8)


def _unpack_base3(packed: ByteArray) -> ByteArray:
    digits, at = [], 0
    for _, count, size in _PIECES:
        piece = packed[:, at : at + size]
        at += size
        for i in range(count):
            # The product wraps at 256, which drops the digits before.
            shifted = piece * np.uint8(3**i)
            digits.append((shifted.astype(np.uint16) * 3 >> 8).astype(np.uint8))
    return np.concatenate(digits, axis=1)


def _decode_tq1_0(fields: Fields) -> FloatArray:
    packed = np.concatenate([fields["qs"], fields["qh"]], axis=1)
    return _values(fields["d"], _unpack_base3(packed))


def _encode_tq1_0(values: FloatArray, importance: FloatArray | None) -> Fields:
    d, digits = _digits(values)
    packed = _pack_base3(digits)
    return {"qs": packed[:, :48], "qh": packed[:, 48:], "d": d}


def _decode_tq2_0(fields: Fields) -> FloatArray:
    return _values(fields["d"], unpack_runs(fields["qs"], 2, 32))


def _encode_tq2_0(values: FloatArray, importance: FloatArray | None) -> Fields:
    d, digits = _digits(values)
    return {"qs": pack_runs(digits, 2, 32), "d": d}


_TQ1_0 = [("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")]
_TQ2_0 = [("qs", "u1", 64), ("d", "<f2")]

SCHEMES: tuple[Scheme, ...] = (
    block_scheme("tq1_0", 34, 256, 2, 256, _TQ1_0, _decode_tq1_0, _encode_tq1_0, symmetric=True),
    block_scheme("tq2_0", 35, 256, 2, 256, _TQ2_0, _decode_tq2_0, _encode_tq2_0, symmetric=True),
)
