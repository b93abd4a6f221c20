"""GGUF's first types: 32 values with one scale, and in the types *_1 one minimum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.quant.bits import pack_runs, unpack_runs
from lbrx.quant.gguf import search
from lbrx.quant.gguf.blocks import (
    block_scheme,
    column,
    columns,
    extreme,
    inverse,
    round_away,
    weigh,
)
from lbrx.quant.gguf.search import FINE
from lbrx.quant.scheme import Encoder, Fields, FloatArray, Scheme

_BOTH: dict[str, Any] = {"heeds_importance": True, "encoder": Encoder.DIRECT}


def _codes(fields: Fields) -> FloatArray:
    """Nibbles, with the fifth bits of the Q5 types."""
    low = unpack_runs(fields["qs"], 4, 16)
    if "qh" in fields:
        low |= unpack_runs(fields["qh"], 1, 1) << np.uint8(4)
    return low.astype(np.float32)


def _packed(q: NDArray[Any], bits: int) -> dict[str, NDArray[Any]]:
    whole = q.astype(np.uint8)
    high = {"qh": pack_runs(whole >> 4, 1, 1)} if bits == 5 else {}
    return {"qs": pack_runs(whole & 15, 4, 16), **high}


def _centred(name: str, gguf_id: int, bits: int) -> Scheme:
    """value = d * (code - half)."""
    half = 1 << (bits - 1)

    def decode(fields: Fields) -> FloatArray:
        return column(fields["d"]) * (_codes(fields) - half)

    def encode(values: FloatArray, importance: FloatArray | None) -> Fields:
        if importance is not None:
            weights = columns(weigh(values, importance, 1), 32)
            d = column(search.centred(columns(values, 32), weights, half))
        else:
            # The extreme value gets the code of -half, so that the whole range is used.
            d = extreme(values, 1) / np.float32(-half)
        q = np.trunc(values * inverse(d) + np.float32(half + 0.5)).clip(0, 2 * half - 1)
        return {"d": d[:, 0], **_packed(q, bits)}

    high = [("qh", "u1", 4)] if bits == 5 else []
    layout = [("d", "<f2"), *high, ("qs", "u1", 16)]
    return block_scheme(
        name, gguf_id, 32, bits, 32, layout, decode, encode, symmetric=True, **_BOTH
    )


def _offset(name: str, gguf_id: int, bits: int) -> Scheme:
    """value = d * code + m."""
    top = (1 << bits) - 1

    def decode(fields: Fields) -> FloatArray:
        return column(fields["d"]) * _codes(fields) + column(fields["m"])

    def encode(values: FloatArray, importance: FloatArray | None) -> Fields:
        if importance is not None:
            weights = columns(weigh(values, importance, 1), 32)
            d, minimum = map(column, search.offset(columns(values, 32), weights, top, FINE))
            low = -minimum
        else:
            low = values.min(axis=1, keepdims=True)
            d = (values.max(axis=1, keepdims=True) - low) / np.float32(top)
        q = np.trunc((values - low) * inverse(d) + np.float32(0.5)).clip(0, top)
        return {"d": d[:, 0], "m": low[:, 0], **_packed(q, bits)}

    high = [("qh", "u1", 4)] if bits == 5 else []
    layout = [("d", "<f2"), ("m", "<f2"), *high, ("qs", "u1", 16)]
    return block_scheme(name, gguf_id, 32, bits, 32, layout, decode, encode, **_BOTH)


def _decode_q8_0(fields: Fields) -> FloatArray:
    return column(fields["d"]) * fields["qs"]


def _encode_q8_0(values: FloatArray, importance: FloatArray | None) -> Fields:
    d = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    return {"d": d[:, 0], "qs": round_away(values * inverse(d))}


def _decode_q1_0(fields: Fields) -> FloatArray:
    signs = unpack_runs(fields["qs"], 1, 1).astype(np.float32) * 2 - 1
    return column(fields["d"]) * signs


def _encode_q1_0(values: FloatArray, importance: FloatArray | None) -> Fields:
    return {"d": np.abs(values).mean(axis=1), "qs": pack_runs(values >= 0, 1, 1)}


SCHEMES = (
    _centred("q4_0", 2, 4),
    _offset("q4_1", 3, 4),
    _centred("q5_0", 6, 5),
    _offset("q5_1", 7, 5),
    block_scheme(
        "q8_0",
        8,
        32,
        8,
        32,
        [("d", "<f2"), ("qs", "i1", 32)],
        _decode_q8_0,
        _encode_q8_0,
        symmetric=True,
        encoder=Encoder.DIRECT,
    ),
    block_scheme(
        "q1_0",
        41,
        128,
        1,
        128,
        [("d", "<f2"), ("qs", "u1", 16)],
        _decode_q1_0,
        _encode_q1_0,
        symmetric=True,
    ),
)
