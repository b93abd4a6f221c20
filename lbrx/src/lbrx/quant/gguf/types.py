"""The element types of a GGUF file: number, name, and how many elements take how many bytes."""

from __future__ import annotations

from dataclasses import dataclass

from lbrx import dtype as dt
from lbrx.dtype import Dtype
from lbrx.errors import FormatError


@dataclass(frozen=True)
class GgufType:
    """A plain type has a dtype and blocks of one; the others have a scheme of that name."""

    id: int
    name: str
    elements: int
    bytes: int
    dtype: Dtype | None = None

    @property
    def is_plain(self) -> bool:
        return self.dtype is not None


def _plain(id: int, name: str, dtype: Dtype) -> GgufType:
    return GgufType(id, name, 1, dtype.itemsize, dtype)


TYPES = (
    _plain(0, "F32", dt.float32),
    _plain(1, "F16", dt.float16),
    GgufType(2, "Q4_0", 32, 18),
    GgufType(3, "Q4_1", 32, 20),
    GgufType(6, "Q5_0", 32, 22),
    GgufType(7, "Q5_1", 32, 24),
    GgufType(8, "Q8_0", 32, 34),
    GgufType(10, "Q2_K", 256, 84),
    GgufType(11, "Q3_K", 256, 110),
    GgufType(12, "Q4_K", 256, 144),
    GgufType(13, "Q5_K", 256, 176),
    GgufType(14, "Q6_K", 256, 210),
    GgufType(15, "Q8_K", 256, 292),
    GgufType(16, "IQ2_XXS", 256, 66),
    GgufType(17, "IQ2_XS", 256, 74),
    GgufType(18, "IQ3_XXS", 256, 98),
    GgufType(19, "IQ1_S", 256, 50),
    GgufType(20, "IQ4_NL", 32, 18),
    GgufType(21, "IQ3_S", 256, 110),
    GgufType(22, "IQ2_S", 256, 82),
    GgufType(23, "IQ4_XS", 256, 136),
    _plain(24, "I8", dt.int8),
    _plain(25, "I16", dt.int16),
    _plain(26, "I32", dt.int32),
    _plain(27, "I64", dt.int64),
    _plain(28, "F64", dt.float64),
    GgufType(29, "IQ1_M", 256, 56),
    _plain(30, "BF16", dt.bfloat16),
    GgufType(34, "TQ1_0", 256, 54),
    GgufType(35, "TQ2_0", 256, 66),
    GgufType(39, "MXFP4", 32, 17),
    GgufType(40, "NVFP4", 64, 36),
    GgufType(41, "Q1_0", 128, 18),
)

BY_ID = {type.id: type for type in TYPES}
BY_NAME = {type.name: type for type in TYPES}


def by_id(id: int) -> GgufType:
    """The type that a tensor's header names by number."""
    try:
        return BY_ID[id]
    except KeyError:
        known = ", ".join(f"{type.id} {type.name}" for type in TYPES)
        raise FormatError(f"GGUF type {id} is unknown or withdrawn: lbrx reads {known}") from None
