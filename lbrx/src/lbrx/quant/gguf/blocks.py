"""What GGUF's block types share: how a scheme is declared, and arithmetic on blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.quant.scheme import Fields, FloatArray, Scheme

Encode = Callable[[FloatArray, FloatArray | None], Fields]


def block_scheme(
    name: str,
    gguf_id: int,
    elements: int,
    bits: int,
    group_size: int,
    layout: list[tuple[Any, ...]],
    decode: Callable[[Fields], FloatArray],
    encode: Encode | None,
    **more: Any,
) -> Scheme:
    """The scheme of a GGUF type; `layout` lists the fields as numpy's dtype takes them, and `more`
    are further fields of `Scheme`."""
    return Scheme(
        name,
        bits,
        elements,
        group_size,
        np.dtype(layout),
        decode,
        encode,
        gguf_id=gguf_id,
        codec=name,
        **more,
    )


def column(numbers: NDArray[Any]) -> FloatArray:
    """One number for each block, shaped to multiply the block's values."""
    return numbers.astype(np.float32)[:, None]


def inverse(scales: FloatArray) -> FloatArray:
    """1 / scale; 0 if the scale is zero or so small that the inverse is infinite."""
    result = 1 / scales
    return np.where(np.isfinite(result), result, np.float32(0))


def extreme(values: FloatArray, axis: int) -> FloatArray:
    """The value of the largest magnitude along an axis, which is kept with length 1."""
    at = np.expand_dims(np.abs(values).argmax(axis), axis)
    return np.take_along_axis(values, at, axis)


def round_away(values: FloatArray) -> FloatArray:
    """Round to the nearest integer, halves away from zero, like C's roundf."""
    whole = np.trunc(values)
    return whole + np.trunc(2 * (values - whole))


def weigh(values: FloatArray, importance: FloatArray, factor: float) -> FloatArray:
    """Weights of the errors in rows: larger for important columns and for large values."""
    squares = np.square(values)
    variance: FloatArray = np.float32(factor) * squares.mean(axis=1, keepdims=True)
    return importance * np.sqrt(variance + squares)


def columns(rows: FloatArray, size: int) -> FloatArray:
    """Groups of `size` values as columns."""
    return np.ascontiguousarray(rows.reshape(-1, size).T)
