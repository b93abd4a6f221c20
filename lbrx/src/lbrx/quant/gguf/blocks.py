"""What the codecs of GGUF's types share: how a scheme is declared, and numbers of a block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.quant.gguf.types import BY_NAME
from lbrx.quant.scheme import Fields, Scheme, Values

Encode = Callable[[Values, Values | None], Fields]


def block_scheme(
    name: str,
    bits: int,
    group_size: int,
    layout: list[tuple[Any, ...]],
    decode: Callable[[Fields], Values],
    encode: Encode | None,
    symmetric: bool,
    limit: float = math.inf,
) -> Scheme:
    """The scheme of a GGUF type; `layout` lists the fields as numpy's dtype takes them."""
    gguf = BY_NAME[name.upper()]
    fields = np.dtype(layout)
    return Scheme(
        name,
        bits,
        gguf.elements,
        group_size,
        fields,
        decode,
        encode,
        symmetric=symmetric,
        limit=limit,
        gguf_id=gguf.id,
    )


def column(numbers: NDArray[Any]) -> Values:
    """One number a block, shaped to multiply the block's values."""
    return numbers.astype(np.float32)[:, None]


def inverse(scales: Values) -> Values:
    """1 / scale, and 0 for a scale that is zero or too small to have an inverse."""
    result = 1 / scales
    return np.where(np.isfinite(result), result, np.float32(0))


def extreme(values: Values, axis: int) -> Values:
    """The value of the largest magnitude along an axis, with its sign; the axis stays."""
    at = np.expand_dims(np.abs(values).argmax(axis), axis)
    return np.take_along_axis(values, at, axis)


def round_away(values: Values) -> Values:
    """To the nearest integer, halves away from zero, as C's roundf."""
    whole = np.trunc(values)
    return whole + np.trunc(2 * (values - whole))


def weigh(values: Values, importance: Values, factor: float) -> Values:
    """What errors count for in rows: more where a column matters and where a value is large."""
    squares = np.square(values)
    variance: Values = np.float32(factor) * squares.mean(axis=1, keepdims=True)
    return importance * np.sqrt(variance + squares)


def columns(rows: Values, size: int) -> Values:
    """Groups of `size` as columns."""
    return np.ascontiguousarray(rows.reshape(-1, size).T)
