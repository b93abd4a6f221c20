"""Values narrower than a byte: row-major, the lowest bits first, across the borders of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from softcoreml.mil import DTYPES, SUB_BYTE_BITS


def unpack(data: np.ndarray[Any, Any], dtype: str, count: int) -> np.ndarray[Any, Any]:
    """`count` values of a packed type, one to a byte.

    >>> unpack(np.array([0x2f, 0x8d, 0x07], np.uint8), "int4", 5)
    array([-1,  2, -3, -8,  7], dtype=int8)
    """
    bits = SUB_BYTE_BITS[dtype]
    if bits == 4:
        both = np.stack([data & 15, data >> 4], axis=-1).reshape(-1)[:count]
        if dtype == "int4":
            return ((both ^ 8).astype(np.int8) - np.int8(8)).astype(np.int8)
        return both
    stream = np.unpackbits(data, bitorder="little")[: count * bits].reshape(count, bits)
    weights = (1 << np.arange(bits)).astype(np.uint8)
    return (stream @ weights).astype(DTYPES[dtype])


def pack(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """The bytes of values of a packed type: the inverse of `unpack`."""
    bits = SUB_BYTE_BITS[dtype]
    stream = (values.reshape(-1, 1).astype(np.uint8) >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(stream.reshape(-1), bitorder="little")
