"""How codes, scales and zero points are brought from a checkpoint's order into that of schemes.

Each is a function of NumPy arrays; none of them rounds, except those that give values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import FormatError
from lbrx.quant.affine_schemes import words
from lbrx.quant.bits import unpack_stream
from lbrx.quant.checkpoint_schemes import POINTS

Arrays = Sequence[NDArray[Any]]
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where a word has its values of 0 to 7


def codes_in(packed: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """The codes in rows of words, each row a stream."""
    return unpack_stream(np.ascontiguousarray(packed).view(np.uint8), bits)


def to_groups(scales: NDArray[Any], groups: int) -> NDArray[Any]:
    """Scales (rows, some) as (rows, groups), of which several share one."""
    return np.repeat(scales, groups // scales.shape[-1], axis=-1)


@dataclass(frozen=True)
class Spread:
    """Scales of blocks of rows and of several groups, as one for each row and group."""

    rows: int
    groups: int
    block_rows: int = 1
    block_groups: int = 0
    """0 for all."""

    def __call__(self, sources: Arrays) -> NDArray[Any]:
        scales = sources[0]
        by_row = np.repeat(scales, self.block_rows, axis=-2)[..., : self.rows, :]
        wide = np.repeat(by_row, self.block_groups or self.groups, axis=-1)
        return wide[..., : self.groups]


@dataclass(frozen=True)
class ScaledBytes:
    """Eight-bit floats times their scales, for rows that schemes cannot divide into groups."""

    kind: str
    block_rows: int
    block_columns: int

    def __call__(self, sources: Arrays) -> NDArray[Any]:
        codes, scales = sources
        rows, columns = codes.shape[-2:]
        spread = Spread(rows, columns, self.block_rows, self.block_columns)
        values: NDArray[Any] = codes.astype(np.float32) * spread([scales.astype(np.float32)])
        return values


@dataclass(frozen=True)
class Transposed:
    """GPTQ's words, whose values follow each other down a column: rows of words."""

    def __call__(self, sources: Arrays) -> NDArray[Any]:
        return sources[0].T.view(np.uint32)


@dataclass(frozen=True)
class TransposedGroups:
    """GPTQ's and AWQ's scales (groups, outputs). Inputs have to be in order."""

    groups: int
    name: str

    def __call__(self, sources: Arrays) -> NDArray[Any]:
        scales, *order = sources
        if order:
            columns = len(order[0])
            expected = np.arange(columns) // -(-columns // len(scales))
            if not np.array_equal(order[0], expected):
                raise FormatError(
                    f"tensor {self.name!r} has its inputs in another order than desc_act: false "
                    "in config.json says: set desc_act to true"
                )
        return to_groups(scales.T, self.groups)


@dataclass(frozen=True)
class ZeroPoints:
    """GPTQ's or AWQ's zero points, packed along outputs: (outputs, groups)."""

    bits: int
    groups: int
    added: int
    awq: bool = False

    def __call__(self, sources: Arrays) -> NDArray[np.uint8]:
        codes = codes_in(sources[0], self.bits)
        if self.awq:
            codes = _in_order(codes)
        stepped = (codes + np.uint8(self.added)) & np.uint8((1 << self.bits) - 1)
        return to_groups(stepped.T, self.groups)


def _in_order(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """AWQ's codes along outputs in the order of the outputs."""
    eights = codes.reshape(*codes.shape[:-1], -1, 8)[..., _AWQ_ORDER]
    return eights.reshape(codes.shape)


@dataclass(frozen=True)
class AwqWords:
    """AWQ's codes (inputs, outputs / 8) as rows of words along inputs."""

    def __call__(self, sources: Arrays) -> NDArray[np.uint32]:
        return words(_in_order(codes_in(sources[0], 4)).T, 4)


@dataclass(frozen=True)
class GptqValues:
    """(code - zero point) * scale of inputs in any order, in the type of the scales."""

    bits: int
    added: int

    def __call__(self, sources: Arrays) -> NDArray[Any]:
        packed, zeros, scales, order = sources
        if len(order) and not 0 <= order.min() <= order.max() < len(scales):
            raise FormatError(f"g_idx has groups from {order.min()} to {order.max()}")
        zero = ZeroPoints(self.bits, len(scales), self.added)([zeros]).astype(np.float32)
        centred = codes_in(packed.T, self.bits) - zero[:, order]
        return (centred * scales.T.astype(np.float32)[:, order]).astype(scales.dtype)


@dataclass(frozen=True)
class RowZeroPoints:
    """compressed-tensors' zero points, packed along rows: (rows, groups)."""

    bits: int
    rows: int
    groups: int

    def __call__(self, sources: Arrays) -> NDArray[np.uint8]:
        codes = codes_in(sources[0].T, self.bits)[:, : self.rows]
        return to_groups(codes.T, self.groups)


@dataclass(frozen=True)
class UnsignedBytes:
    """Signed bytes as codes from 0 to 255, in words or as they are."""

    groups: int = 0
    """For zero points: how many groups a row has."""

    def __call__(self, sources: Arrays) -> NDArray[Any]:
        codes = np.ascontiguousarray(sources[0]).view(np.uint8) ^ np.uint8(128)
        return to_groups(codes, self.groups) if self.groups else codes.view(np.uint32)


@dataclass(frozen=True)
class Int8Scales:
    """bitsandbytes' largest magnitudes of rows, as scales of their groups."""

    groups: int

    def __call__(self, sources: Arrays) -> NDArray[Any]:
        scales = sources[0].reshape(-1, 1) * np.float32(7.874015718698502e-3)
        return to_groups(scales, self.groups)


@dataclass(frozen=True)
class GlobalScales:
    """E4M3 scales of groups, times or divided by the scale of the whole, in float32."""

    divided: bool

    def __call__(self, sources: Arrays) -> NDArray[np.float32]:
        scales, whole = sources[0].astype(np.float32), sources[1].reshape(()).astype(np.float32)
        return scales / whole if self.divided else scales * whole


@dataclass(frozen=True)
class BlockSizes:
    """bitsandbytes' scales of blocks of a flat tensor, which may be quantized themselves."""

    blocks: int
    """The number of blocks."""
    repeated: int
    """How many groups of a scheme a block has."""
    nested_size: int = 0
    nested_offset: float = 0

    def __call__(self, sources: Arrays) -> NDArray[np.float32]:
        sizes = sources[0].reshape(-1)
        if self.nested_size:
            _, largest, points = sources
            outer = np.repeat(largest.reshape(-1), self.nested_size)[: self.blocks]
            sizes = points.reshape(-1)[sizes] * outer + np.float32(self.nested_offset)
        return np.repeat(sizes.astype(np.float32), self.repeated)


@dataclass(frozen=True)
class FourBitValues:
    """bitsandbytes' values of blocks that cross rows."""

    points: str
    size: int
    count: int
    blocks: BlockSizes

    def __call__(self, sources: Arrays) -> NDArray[np.float32]:
        codes, *beside = sources
        data = codes.reshape(-1)
        pair = np.stack([data >> 4, data & 15], axis=-1).reshape(-1)[: self.count]
        scales = np.repeat(self.blocks(beside), self.size)[: self.count]
        return POINTS[self.points][pair] * scales
