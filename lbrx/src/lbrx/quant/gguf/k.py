"""The K types: 256 values in 8 or 16 groups, whose scales (and minima) are themselves quantized."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.quant.bits import ByteArray, pack_runs, unpack_runs
from lbrx.quant.gguf import search
from lbrx.quant.gguf.blocks import block_scheme, column, columns, extreme, inverse, weigh
from lbrx.quant.gguf.search import FINE, Candidates
from lbrx.quant.scheme import Encoder, Fields, FloatArray, Scheme

COARSE = Candidates(-0.5, 0.1, 16, absolute=True)
NARROW = Candidates(-0.5, 0.1, 16)
USUAL = Candidates(-1.0, 0.1, 21)


def _spread(numbers: NDArray[Any]) -> FloatArray:
    """One number for each group, [blocks, groups], shaped to multiply [blocks, groups, size]."""
    return numbers.astype(np.float32)[:, :, None]


def _grouped(codes: ByteArray, groups: int) -> FloatArray:
    return codes.reshape(len(codes), groups, -1).astype(np.float32)


def _half(numbers: FloatArray) -> FloatArray:
    """Rounded as it is stored."""
    return numbers.astype(np.float16).astype(np.float32)


# --- value = d * scale * code - dmin * minimum


def _offset_values(
    d: FloatArray, dmin: FloatArray, scales: ByteArray, minima: ByteArray, codes: ByteArray
) -> FloatArray:
    scale, minimum = _spread(column(d) * scales), _spread(column(dmin) * minima)
    return (scale * _grouped(codes, scales.shape[1]) - minimum).reshape(len(codes), -1)


def _encode_offset(
    values: FloatArray,
    importance: FloatArray | None,
    bits: int,
    size: int,
    scale_top: int,
    candidates: Candidates,
) -> tuple[dict[str, FloatArray], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """({d, dmin}, scale codes, minimum codes, codes)."""
    shape = len(values), 256 // size
    groups = columns(values, size)
    if importance is not None:
        weights = columns(weigh(values, importance, 1 if bits == 2 else 2), size)
        candidates = FINE
    elif bits == 2:
        weights = np.abs(groups)
    else:
        weights = np.abs(groups) + np.sqrt(np.square(groups).mean(axis=0))
    top = (1 << bits) - 1
    scales, minima = search.offset(groups, weights, top, candidates)
    group_weights = None if importance is None else weights.sum(axis=0).reshape(shape)
    d, scale_codes = _levels(scales.reshape(shape), group_weights, scale_top)
    dmin, minimum_codes = _levels(minima.reshape(shape), group_weights, scale_top)
    scale = _spread(column(_half(d)) * scale_codes)
    minimum = _spread(column(_half(dmin)) * minimum_codes)
    codes = np.rint((values.reshape(*shape, size) + minimum) * inverse(scale)).clip(0, top)
    return {"d": d, "dmin": dmin}, scale_codes, minimum_codes, codes.reshape(values.shape)


def _levels(
    numbers: FloatArray, weights: FloatArray | None, top: int
) -> tuple[FloatArray, FloatArray]:
    """A block's scale for its groups' scales, and their codes 0 to top."""
    if weights is None:
        d = numbers.max(axis=1).clip(0) / np.float32(top)
    else:
        d = search.positive(numbers.clip(0).T, weights.T, top)
    return d, np.rint(numbers * inverse(column(d))).clip(0, top)


def _decode_q2_k(fields: Fields) -> FloatArray:
    scales, minima = np.split(unpack_runs(fields["scales"], 4, 16), 2, axis=1)
    codes = unpack_runs(fields["qs"], 2, 32)
    return _offset_values(fields["d"], fields["dmin"], scales, minima, codes)


def _encode_q2_k(values: FloatArray, importance: FloatArray | None) -> Fields:
    halves, scales, minima, codes = _encode_offset(values, importance, 2, 16, 15, COARSE)
    packed = pack_runs(np.concatenate([scales, minima], axis=1), 4, 16)
    return {**halves, "scales": packed, "qs": pack_runs(codes, 2, 32)}


def unpack_sixes(packed: ByteArray) -> tuple[ByteArray, ByteArray]:
    """Eight scales and eight minima of six bits, in twelve bytes.

    Bytes 0 to 7 are the first four scales and minima; their two top bits complete the other
    four of each, whose low nibbles are scale and minimum of bytes 8 to 11.
    """
    first, top = packed[:, :8] & 63, packed[:, :8] >> 6
    second = unpack_runs(packed[:, 8:], 4, 4) | top << np.uint8(4)
    both = np.concatenate([first.reshape(-1, 2, 4), second.reshape(-1, 2, 4)], axis=2)
    return both[:, 0], both[:, 1]


def pack_sixes(scales: NDArray[Any], minima: NDArray[Any]) -> ByteArray:
    both = np.stack([scales, minima], axis=1).astype(np.uint8)
    first, second = both[:, :, :4].reshape(-1, 8), both[:, :, 4:].reshape(-1, 8)
    return np.concatenate([first | second >> 4 << 6, pack_runs(second & 15, 4, 4)], axis=1)


def _decode_q4_k(fields: Fields) -> FloatArray:
    codes = unpack_runs(fields["qs"], 4, 32)
    if "qh" in fields:
        codes |= unpack_runs(fields["qh"], 1, 32) << np.uint8(4)
    return _offset_values(fields["d"], fields["dmin"], *unpack_sixes(fields["scales"]), codes)


def _encode_q4_k(
    bits: int, candidates: Candidates
) -> Callable[[FloatArray, FloatArray | None], Fields]:
    def encode(values: FloatArray, importance: FloatArray | None) -> Fields:
        halves, scales, minima, codes = _encode_offset(values, importance, bits, 32, 63, candidates)
        whole = codes.astype(np.uint8)
        high = {"qh": pack_runs(whole >> 4, 1, 32)} if bits == 5 else {}
        qs = pack_runs(whole & 15, 4, 32)
        return {**halves, "scales": pack_sixes(scales, minima), "qs": qs, **high}

    return encode


# --- value = d * scale * (code - half)


def _centred_values(d: FloatArray, scales: NDArray[Any], codes: ByteArray, half: int) -> FloatArray:
    scale = _spread(column(d) * scales)
    return (scale * (_grouped(codes, 16) - half)).reshape(len(codes), -1)


def _encode_centred(
    values: FloatArray, d: FloatArray, scales: FloatArray, half: int, scale_half: int
) -> tuple[FloatArray, ByteArray]:
    """The codes of the scales, and those of the values for the stored scales."""
    scale_codes = np.rint(scales * inverse(column(d))).clip(-scale_half, scale_half - 1)
    scale = _spread(column(_half(d)) * scale_codes)
    codes = np.rint(values.reshape(-1, 16, 16) * inverse(scale)).clip(-half, half - 1) + half
    return scale_codes, codes.astype(np.uint8).reshape(values.shape)


def _decode_q3_k(fields: Fields) -> FloatArray:
    low, high = fields["scales"][:, :8], fields["scales"][:, 8:]
    scales = unpack_runs(low, 4, 8) | unpack_runs(high, 2, 4) << np.uint8(4)
    codes = unpack_runs(fields["qs"], 2, 32) | unpack_runs(fields["hmask"], 1, 32) << np.uint8(2)
    return _centred_values(fields["d"], scales.astype(np.float32) - 32, codes, 4)


def _encode_q3_k(values: FloatArray, importance: FloatArray | None) -> Fields:
    groups = columns(values, 16)
    if importance is None:
        codes = np.rint(groups * (-4 * inverse(extreme(groups, 0)))).clip(-4, 3)
        scales = search.descended(groups, np.square(groups), codes, -4, 3).reshape(-1, 16)
        d = extreme(scales, 1)[:, 0] / np.float32(-32)
    else:
        weights = columns(weigh(values, importance, 2), 16)
        scales = search.centred(groups, weights, 4).reshape(-1, 16)
        d = search.centred(scales.T, weights.sum(axis=0).reshape(-1, 16).T, 32)
    scale_codes, whole = _encode_centred(values, d, scales, 4, 32)
    six = (scale_codes + 32).astype(np.uint8)
    packed = np.concatenate([pack_runs(six & 15, 4, 8), pack_runs(six >> 4, 2, 4)], axis=1)
    high = pack_runs(whole >> 2, 1, 32)
    return {"hmask": high, "qs": pack_runs(whole & 3, 2, 32), "scales": packed, "d": d}


def _decode_q6_k(fields: Fields) -> FloatArray:
    codes = unpack_runs(fields["ql"], 4, 64) | unpack_runs(fields["qh"], 2, 32) << np.uint8(4)
    return _centred_values(fields["d"], fields["scales"], codes, 32)


def _encode_q6_k(values: FloatArray, importance: FloatArray | None) -> Fields:
    groups = columns(values, 16)
    weights = np.square(groups) if importance is None else columns(importance, 16)
    scales = search.centred(groups, weights, 32).reshape(-1, 16)
    d = extreme(scales, 1)[:, 0] / np.float32(-128)
    scale_codes, codes = _encode_centred(values, d, scales, 32, 128)
    low, high = pack_runs(codes & 15, 4, 64), pack_runs(codes >> 4, 2, 32)
    return {"ql": low, "qh": high, "scales": scale_codes, "d": d}


# --- the type that llama.cpp keeps activations in


def _decode_q8_k(fields: Fields) -> FloatArray:
    return column(fields["d"]) * fields["qs"]


def _encode_q8_k(values: FloatArray, importance: FloatArray | None) -> Fields:
    d = extreme(values, 1) / np.float32(-127)
    codes = np.rint(values * inverse(d)).clip(-127, 127)
    return {"d": d[:, 0], "qs": codes, "bsums": codes.reshape(-1, 16, 16).sum(axis=2)}


_HALVES = [("d", "<f2"), ("dmin", "<f2")]
_Q2_K = [("scales", "u1", 16), ("qs", "u1", 64), *_HALVES]
_Q3_K = [("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")]
_Q4_K = [*_HALVES, ("scales", "u1", 12), ("qs", "u1", 128)]
_Q5_K = [*_HALVES, ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
_Q6_K = [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]
_Q8_K = [("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16)]

_searched = partial(block_scheme, heeds_importance=True, encoder=Encoder.SEARCHED)

SCHEMES: tuple[Scheme, ...] = (
    _searched("q2_k", 10, 256, 2, 16, _Q2_K, _decode_q2_k, _encode_q2_k),
    _searched("q3_k", 11, 256, 3, 16, _Q3_K, _decode_q3_k, _encode_q3_k, symmetric=True),
    _searched("q4_k", 12, 256, 4, 32, _Q4_K, _decode_q4_k, _encode_q4_k(4, USUAL)),
    _searched("q5_k", 13, 256, 5, 32, _Q5_K, _decode_q4_k, _encode_q4_k(5, NARROW)),
    _searched("q6_k", 14, 256, 6, 16, _Q6_K, _decode_q6_k, _encode_q6_k, symmetric=True),
    block_scheme("q8_k", 15, 256, 8, 256, _Q8_K, _decode_q8_k, _encode_q8_k, symmetric=True),
)
