"""GGUF's first types: 32 values with one scale, and with one minimum in the *_1 types."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.quant.bits import Bytes, pack_runs, unpack_runs
from lbrx.quant.gguf import search
from lbrx.quant.gguf.types import scheme
from lbrx.quant.scheme import Fields, Values


def single(halves: NDArray[Any]) -> Values:
    """One number a block, as a column that multiplies the block's values."""
    return halves.astype(np.float32)[:, None]


def inverse(scales: Values) -> Values:
    """1 / scale, and 0 for a scale that is zero or too small to have an inverse."""
    result = 1 / scales
    return np.where(np.isfinite(result), result, np.float32(0))


def extreme(values: Values) -> Values:
    """The value of the largest magnitude in each row, with its sign, as a column."""
    at = np.abs(values).argmax(axis=1)
    return np.take_along_axis(values, at[:, None], axis=1)


def round_away(values: Values) -> Values:
    """To the nearest integer, halves away from zero, as C's roundf."""
    whole = np.trunc(values)
    return whole + np.trunc(2 * (values - whole))


def codes(fields: Fields) -> Values:
    """Nibbles, with the fifth bits of the Q5 types."""
    low = unpack_runs(fields["qs"], 4, 16)
    if "qh" in fields:
        low |= unpack_runs(fields["qh"], 1, 1) << np.uint8(4)
    return low.astype(np.float32)


def packed(q: NDArray[Any], bits: int) -> dict[str, Bytes]:
    whole = q.astype(np.uint8)
    fields = {"qs": pack_runs(whole & 15, 4, 16)}
    if bits == 5:
        fields["qh"] = pack_runs(whole >> 4, 1, 1)
    return fields


def _symmetric(name: str, bits: int, **layout: Any) -> None:
    half = 1 << (bits - 1)

    def decode(fields: Fields) -> Values:
        return single(fields["d"]) * (codes(fields) - half)

    def encode(values: Values, importance: Values | None) -> Fields:
        if importance is not None:
            found = search.symmetric(values.T, search.spread(values, importance, 1).T, half)
            return {"d": found.scale, **packed(found.codes.T + half, bits)}
        # The extreme value becomes -half exactly, so the other sign loses at most half a step.
        d = extreme(values) / np.float32(-half)
        q = np.trunc(values * inverse(d) + np.float32(half + 0.5)).clip(0, 2 * half - 1)
        return {"d": d[:, 0], **packed(q, bits)}

    scheme(name, bits, decode, encode, symmetric=True, **layout)


def _affine(name: str, bits: int, **layout: Any) -> None:
    top = (1 << bits) - 1

    def decode(fields: Fields) -> Values:
        return single(fields["d"]) * codes(fields) + single(fields["m"])
