"""Decoding of IQ1 to IQ3: some bits are indices of a code book, others signs and scales."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.quant.bits import ByteArray, unpack_runs
from lbrx.quant.gguf.blocks import block_scheme, column
from lbrx.quant.gguf.grids import grid
from lbrx.quant.scheme import Fields, FloatArray, Scheme

_DELTA = np.float32(0.125)


def _bit_fields(words: NDArray[Any], bits: int, count: int) -> NDArray[Any]:
    """The lowest `count` fields of each word, in a new last axis."""
    shifts = np.arange(0, bits * count, bits, dtype=words.dtype)
    return np.asarray((words[..., None] >> shifts) & words.dtype.type((1 << bits) - 1))


def _signs(bits: ByteArray) -> FloatArray:
    """1 for a clear bit and -1 for a set one, eight to a byte."""
    return 1 - 2 * unpack_runs(bits, 1, 1).astype(np.float32)


def _even_signs(sevens: NDArray[Any]) -> FloatArray:
    """Eight signs from seven stored bits: the number of negative signs is even."""
    parity = np.bitwise_xor.reduce(_bit_fields(sevens, 1, 7), axis=-1)
    stored = (sevens | parity << sevens.dtype.type(7)).astype(np.uint8)
    return _signs(stored.reshape(len(sevens), -1))


def _scaled(scales: FloatArray, points: FloatArray, signs: FloatArray) -> FloatArray:
    """Multiply the 256 values of each block by scales [blocks, groups]."""
    blocks, groups = scales.shape
    whole = points.reshape(blocks, groups, -1), signs.reshape(blocks, groups, -1)
    return (scales[:, :, None] * whole[0] * whole[1]).reshape(blocks, 256)


def _quarter(d: NDArray[Any], codes: NDArray[Any]) -> FloatArray:
    return column(d) * (np.float32(0.5) + codes.astype(np.float32)) * np.float32(0.25)


def _decode_iq2_xxs(fields: Fields) -> FloatArray:
    """A group of 32 values has two words: four indices, and four sets of signs with the scale."""
    words = fields["qs"].reshape(-1, 8, 2)
    indices = _bit_fields(words[:, :, 0], 8, 4)
    signs = _even_signs(_bit_fields(words[:, :, 1], 7, 4))
    return _scaled(_quarter(fields["d"], words[:, :, 1] >> 28), grid("iq2_xxs")[indices], signs)


def _decode_iq2_xs(fields: Fields) -> FloatArray:
    words = fields["qs"]
    scales = _quarter(fields["d"], unpack_runs(fields["scales"], 4, 1))
    return _scaled(scales, grid("iq2_xs")[words & 511], _even_signs(words >> 9))


def _decode_iq2_s(fields: Fields) -> FloatArray:
    high = unpack_runs(fields["qh"], 2, 1).astype(np.uint16) << 8
    scales = _quarter(fields["d"], unpack_runs(fields["scales"], 4, 1))
    return _scaled(scales, grid("iq2_s")[fields["qs"] | high], _signs(fields["signs"]))


def _decode_iq3_xxs(fields: Fields) -> FloatArray:
    words = fields["scales"]
    scales = column(fields["d"]) * (np.float32(0.5) + (words >> 28).astype(np.float32))
    signs = _even_signs(_bit_fields(words, 7, 4))
    return _scaled(scales * np.float32(0.5), grid("iq3_xxs")[fields["qs"]], signs)


def _decode_iq3_s(fields: Fields) -> FloatArray:
    high = unpack_runs(fields["qh"], 1, 1).astype(np.uint16) << 8
    codes = unpack_runs(fields["scales"], 4, 1).astype(np.float32)
    scales = column(fields["d"]) * (1 + 2 * codes)
    return _scaled(scales, grid("iq3_s")[fields["qs"] | high], _signs(fields["signs"]))


def _shifted(scales: FloatArray, indices: NDArray[Any], negative: NDArray[Any]) -> FloatArray:
    """Points of the ternary book, shifted up or down by an eighth."""
    groups = scales.shape[1]
    delta = np.where(negative, -_DELTA, _DELTA).reshape(len(scales), -1, 1)
    points: FloatArray = grid("iq1")[indices].reshape(len(scales), delta.shape[1], -1)
    moved = points + delta
    return (scales[:, :, None] * moved.reshape(len(scales), groups, -1)).reshape(-1, 256)


def _decode_iq1_s(fields: Fields) -> FloatArray:
    words = fields["qh"]
    high = _bit_fields(words, 3, 4).reshape(-1, 32) << 8
    scales = column(fields["d"]) * (2 * ((words >> 12) & 7).astype(np.float32) + 1)
    return _shifted(scales, fields["qs"] | high, words >> 15 != 0)


def _decode_iq1_m(fields: Fields) -> FloatArray:
    """The block's scale is stored in the top four bits of the scale words."""
    words = fields["scales"]
    nibbles = (words >> 12) << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.bitwise_or.reduce(nibbles, axis=1).astype("<u2").view("<f2")
    scales = column(d) * (2 * _bit_fields(words, 3, 4).reshape(-1, 16).astype(np.float32) + 1)
    high = unpack_runs(fields["qh"], 4, 1)
    return _shifted(scales, fields["qs"] | (high & 7).astype(np.uint16) << 8, high & 8 != 0)


_IQ2_XXS = [("d", "<f2"), ("qs", "<u4", 16)]
_IQ2_XS = [("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)]
_IQ2_S = [("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)]
_IQ3_XXS = [("d", "<f2"), ("qs", "u1", 64), ("scales", "<u4", 8)]
_IQ3_S = [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
_IQ1_S = [("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)]
_IQ1_M = [("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)]


def _scheme(
    name: str,
    gguf_id: int,
    bits: int,
    group_size: int,
    layout: list[tuple[Any, ...]],
    decode: Callable[[Fields], FloatArray],
    book: str,
) -> Scheme:
    """A type of 256 values in a block, which lbrx only decodes. Those of IQ1 have an offset."""
    more = {"symmetric": book != "iq1", "code_book": partial(grid, book)}
    return block_scheme(name, gguf_id, 256, bits, group_size, layout, decode, None, **more)


SCHEMES: tuple[Scheme, ...] = (
    _scheme("iq2_xxs", 16, 2, 32, _IQ2_XXS, _decode_iq2_xxs, "iq2_xxs"),
    _scheme("iq2_xs", 17, 2, 16, _IQ2_XS, _decode_iq2_xs, "iq2_xs"),
    _scheme("iq2_s", 22, 2, 16, _IQ2_S, _decode_iq2_s, "iq2_s"),
    _scheme("iq3_xxs", 18, 3, 32, _IQ3_XXS, _decode_iq3_xxs, "iq3_xxs"),
    _scheme("iq3_s", 21, 3, 64, _IQ3_S, _decode_iq3_s, "iq3_s"),
    _scheme("iq1_s", 19, 1, 32, _IQ1_S, _decode_iq1_s, "iq1"),
    _scheme("iq1_m", 29, 1, 16, _IQ1_M, _decode_iq1_m, "iq1"),
)
