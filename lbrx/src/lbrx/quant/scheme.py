"""The record of a quantization scheme, and the functions that encode and decode with one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays.dtype import Dtype, float32
from lbrx.arrays.shape import Shape
from lbrx.errors import QuantizationError, ShapeError

FloatArray = NDArray[np.float32]
Fields = Mapping[str, NDArray[Any]]
"""The fields of n blocks by name: arrays whose first axis has length n."""

# Values that are encoded or decoded at a time, so that temporaries stay in the level 2 cache.
CHUNK = 1 << 17


class Encoder(StrEnum):
    """How a kernel encodes, by the name of its variant."""

    DIRECT = "block"
    """One pass over the values of a block."""
    SEARCHED = "groups"
    """A search for the best scales of sixteen groups."""


@dataclass(frozen=True, eq=False, repr=False)
class Scheme:
    """A way to store blocks of values. The last axis of an array holds whole blocks.

    A new scheme is one module that makes such a record and passes it to `quant.register`.
    """

    name: str
    bits: int
    """Bits of one stored code, without its share of the scales."""
    elements: int
    """Number of values in a block."""
    group_size: int
    """Number of values that share a scale: a block, or a part of one."""
    layout: np.dtype[Any]
    """A block's fields in stored order, without padding."""
    decode: Callable[[Fields], FloatArray]
    """From the fields of n blocks to values [n, elements]."""
    encode: Callable[[FloatArray, FloatArray | None], Fields] | None = None
    """From values [n, elements] and their importance to fields; None if lbrx only decodes."""
    symmetric: bool = False
    planar: bool = False
    """Whether each field is a separate array (`data` and its companions). Otherwise blocks are
    stored whole, as rows of bytes."""
    keeps_dtype: bool = False
    """Whether scales and biases take the floating type of the values."""
    limit: float = math.inf
    """The largest magnitude of a value, where the range of the float fields does not set it."""
    gguf_id: int | None = None
    """The number of the type in GGUF files."""
    heeds_importance: bool = False
    """Whether `encode` uses the importance of columns."""
    codec: str | None = None
    """The codec by which kernels read blocks: a name of kernels/quantized/quant_schemes.h, or of
    the struct that `codec_source` defines. None if no kernel reads the scheme: the host
    decodes it."""
    codec_source: str = ""
    """A struct in Metal with the members that kernels/quantized/quant_blocks.h describes, for a
    scheme that quant_schemes.h does not list. Kernels are compiled for it at their first use."""
    integer_codes: bool = True
    """Whether the codec's codes are integers, which integer products multiply as they are."""
    code_book: Callable[[], NDArray[Any]] | None = None
    """The points that codes stand for, as integers of eight bits, where a codec looks them up."""
    encoder: Encoder | None = None
    """The kernel that encodes the scheme; None if the host does."""

    def __repr__(self) -> str:
        return f"<Scheme {self.name}>"

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, with its scales."""
        return self.layout.itemsize

    @property
    def bits_per_weight(self) -> float:
        """Stored bits for each value; scales count as float32 where they take the values' type."""
        return 8 * self.block_bytes / self.elements

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of a block's parts, in order."""
        return self.layout.names or ()

    def blocks(self, shape: Shape) -> int:
        """The number of blocks of an array. Raises ShapeError if its rows are not whole blocks."""
        if not shape or shape[-1] % self.elements:
            raise ShapeError(
                f"shape {shape} does not fit {self.name}: its last axis must be a multiple "
                f"of {self.elements}"
            )
        return math.prod(shape) // self.elements

    def nbytes(self, shape: Shape, dtype: Dtype = float32) -> int:
        """The bytes of an array of that type when stored, scales included."""
        whole = self.block_bytes
        if self.keeps_dtype:
            companions = len(self.fields) - 1
            whole = self.layout["data"].itemsize + companions * dtype.itemsize
        return self.blocks(shape) * whole

    def part_shape(self, name: str, shape: Shape) -> Shape:
        """The shape of a planar field's array for values of this shape."""
        items = math.prod(self.layout[name].shape)
        return (*shape[:-1], shape[-1] // self.elements * items)


def encode(
    values: NDArray[Any], scheme: Scheme, importance: NDArray[Any] | None
) -> dict[str, NDArray[Any]]:
    """The stored parts: each field of a planar scheme, or the blocks as uint8 rows named `data`."""
    assert scheme.encode is not None
    shape = values.shape
    source = values.reshape(scheme.blocks(shape), scheme.elements)
    weights = None if importance is None else _Weights(importance, shape, scheme.elements)
    blocks = np.empty(0 if scheme.planar else len(source), scheme.layout)
    parts = {name: blocks[name] for name in scheme.fields}
    if scheme.planar:
        parts = {name: _empty_part(scheme, name, values) for name in scheme.fields}
    for chunk in _chunks(len(source), scheme.elements):
        with np.errstate(all="ignore"):
            block_values = source[chunk].astype(np.float32)
            _check_values(block_values, chunk.start * scheme.elements, shape, scheme)
            fields = scheme.encode(block_values, None if weights is None else weights.of(chunk))
            for name, part in parts.items():
                part[chunk] = fields[name]
    for name, part in parts.items():
        _check_range(name, part, scheme)
    if scheme.planar:
        return {name: part.reshape(scheme.part_shape(name, shape)) for name, part in parts.items()}
    row_bytes = shape[-1] // scheme.elements * scheme.block_bytes
    return {"data": blocks.view(np.uint8).reshape(*shape[:-1], row_bytes)}


def _empty_part(scheme: Scheme, name: str, values: NDArray[Any]) -> NDArray[Any]:
    keeps = scheme.keeps_dtype and name != "data"
    return np.empty(scheme.blocks(values.shape), values.dtype if keeps else scheme.layout[name])


def decode(parts: Fields, scheme: Scheme, shape: Shape) -> FloatArray:
    """The inverse of `encode`. The sizes of the parts have been checked."""
    count = scheme.blocks(shape)
    if scheme.planar:
        fields = {
            name: part.reshape(count, *scheme.layout[name].shape) for name, part in parts.items()
        }
    else:
        blocks = parts["data"].reshape(-1).view(scheme.layout)
        fields = {name: blocks[name] for name in scheme.fields}
    result = np.empty((count, scheme.elements), np.float32)
    for chunk in _chunks(count, scheme.elements):
        with np.errstate(all="ignore"):
            result[chunk] = scheme.decode({name: field[chunk] for name, field in fields.items()})
    return result.reshape(shape)


def _chunks(count: int, elements: int) -> Iterator[slice]:
    step = max(1, CHUNK // elements)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _check_values(values: FloatArray, before: int, shape: Shape, scheme: Scheme) -> None:
    fine = np.isfinite(values) & (np.abs(values) <= scheme.limit)
    if not fine.all():
        first = int(np.argmin(fine.reshape(-1)))
        at = tuple(int(i) for i in np.unravel_index(before + first, shape))
        limit = (
            "finite float32 values only" if scheme.limit == math.inf else f"up to {scheme.limit:g}"
        )
        raise QuantizationError(
            f"element {at} is {values.reshape(-1)[first]}: {scheme.name} stores {limit}; "
            "replace it, or leave this tensor unquantized"
        )


def _check_range(name: str, part: NDArray[Any], scheme: Scheme) -> None:
    if not np.issubdtype(part.dtype, np.integer) and not np.isfinite(part).all():
        raise QuantizationError(
            f"values are too large for {scheme.name}, whose field {name} is {part.dtype}: "
            "leave this tensor unquantized"
        )


class _Weights:
    """The importance of each value of a block, from one row for all values or one row for each
    leading index."""

    def __init__(self, importance: NDArray[Any], shape: Shape, elements: int) -> None:
        self.rows = np.asarray(importance, np.float32)
        leading = self.rows.shape[:-1]
        try:
            if self.rows.shape[-1:] != shape[-1:]:
                raise ValueError
            which = np.arange(math.prod(leading)).reshape(leading)
            self.row_of = np.broadcast_to(which, shape[:-1]).reshape(-1)
        except ValueError:
            raise ShapeError(
                f"importance of shape {self.rows.shape} does not fit values of shape {shape}: "
                "give one number for each column"
            ) from None
        if not (np.isfinite(self.rows).all() and (self.rows >= 0).all()):
            raise QuantizationError("importance must be finite and not negative")
        self.blocks = self.rows.reshape(-1, elements)
        self.in_row = shape[-1] // elements

    def of(self, chunk: slice) -> FloatArray:
        """The importance of some blocks; ones where it is all zeros."""
        index = np.arange(chunk.start, chunk.stop)
        rows = self.row_of[index // self.in_row]
        weights: FloatArray = self.blocks.take(rows * self.in_row + index % self.in_row, axis=0)
        weights[~weights.any(axis=1)] = 1
        return weights
