"""Constants of GGUF files: the magic, limits, and the types of metadata."""

from __future__ import annotations

from typing import Any

import numpy as np

MAGIC = b"GGUF"
VERSION = 3
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_NAME = 63
"""The most bytes of a tensor's name in llama.cpp."""

BOOL, STRING, ARRAY = 7, 8, 9
NUMBERS: dict[int, np.dtype[Any]] = {
    kind: np.dtype(code)
    for kind, code in {
        0: "u1",
        1: "i1",
        2: "<u2",
        3: "<i2",
        4: "<u4",
        5: "<i4",
        6: "<f4",
        BOOL: "u1",
        10: "<u8",
        11: "<i8",
        12: "<f8",
    }.items()
}
U16, U32, I32, F32, U64, I64, F64 = 2, 4, 5, 6, 10, 11, 12


class GgufInteger(int):
    """An integer from a file that keeps its type for writing."""

    kind: int

    @classmethod
    def of(cls, kind: int, value: int) -> GgufInteger:
        result = cls(value)
        result.kind = kind
        return result
