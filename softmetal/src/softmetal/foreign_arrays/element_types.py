"""Types of elements, by the names that numpy, PyTorch, MLX and lbrx share."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from softmetal.errors import SoftmetalError

# DLPack's DLDataTypeCode
INTEGER, UNSIGNED, FLOAT, BFLOAT, BOOL = 0, 1, 2, 4, 6


@dataclass(frozen=True, slots=True)
class ElementType:
    """A type of elements; `format` packs one with `struct`, and is empty for bfloat16."""

    name: str
    metal: str
    size: int
    code: int  # DLPack's
    format: str

    def pack(self, value: float) -> bytes:
        """The bytes of a number, rounded to nearest; raises SoftmetalError if it does not fit."""
        try:
            if self.code == BFLOAT:
                return _bfloat(struct.pack("<f", value))
            if self.code in (INTEGER, UNSIGNED):
                value = int(value)
            return struct.pack(f"<{self.format}", value)
        except (struct.error, OverflowError, ValueError) as problem:
            raise SoftmetalError(f"{value!r} does not fit {self.name}: {problem}") from None

    def unpack(self, data: memoryview | bytes) -> list[float]:
        """The numbers in some bytes."""
        if self.code != BFLOAT:
            return [value for (value,) in struct.iter_unpack(f"<{self.format}", data)]
        halves = struct.iter_unpack("<H", data)
        return [struct.unpack("<f", struct.pack("<I", half << 16))[0] for (half,) in halves]


def _bfloat(single: bytes) -> bytes:
    (word,) = struct.unpack("<I", single)
    if word & 0x7FFFFFFF > 0x7F800000:  # NaN stays one
        return struct.pack("<H", word >> 16 | 0x40)
    return struct.pack("<H", word + 0x7FFF + (word >> 16 & 1) >> 16)


_ALL = (
    ElementType("bool", "bool", 1, BOOL, "?"),
    ElementType("uint8", "uint8_t", 1, UNSIGNED, "B"),
    ElementType("uint16", "uint16_t", 2, UNSIGNED, "H"),
    ElementType("uint32", "uint32_t", 4, UNSIGNED, "I"),
    ElementType("uint64", "uint64_t", 8, UNSIGNED, "Q"),
    ElementType("int8", "int8_t", 1, INTEGER, "b"),
    ElementType("int16", "int16_t", 2, INTEGER, "h"),
    ElementType("int32", "int32_t", 4, INTEGER, "i"),
    ElementType("int64", "int64_t", 8, INTEGER, "q"),
    ElementType("float16", "float16_t", 2, FLOAT, "e"),
    ElementType("bfloat16", "bfloat16_t", 2, BFLOAT, ""),
    ElementType("float32", "float", 4, FLOAT, "f"),
)
BY_NAME = {each.name: each for each in _ALL} | {"bool_": _ALL[0]}
BY_CODE = {(each.code, 8 * each.size): each for each in _ALL}


def named(dtype: object) -> ElementType:
    """The type that a dtype of some library means: numpy.float32, torch.float32, mx.float32 or
    "float32". Raises SoftmetalError."""
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype)
    found = BY_NAME.get(name.rpartition(".")[2])
    if found is None:
        known = ", ".join(each.name for each in _ALL)
        raise SoftmetalError(f"{dtype!r:.100} is not a type of elements: give one of {known}")
    return found
