"""The types of tensors in GGUF files: number, name, and the elements and bytes of a block."""

from __future__ import annotations

from dataclasses import dataclass

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.errors import FormatError
from lbrx.quant.gguf import iq, k, legacy, tables, ternary
from lbrx.quant.scheme import Scheme


@dataclass(frozen=True)
class GgufType:
    """A plain type has a dtype and blocks of one element; the others have a scheme of that name."""

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


_PLAIN = (
    _plain(0, "F32", dt.float32),
    _plain(1, "F16", dt.float16),
    _plain(24, "I8", dt.int8),
    _plain(25, "I16", dt.int16),
    _plain(26, "I32", dt.int32),
    _plain(27, "I64", dt.int64),
    _plain(28, "F64", dt.float64),
    _plain(30, "BF16", dt.bfloat16),
)
SCHEMES = (*legacy.SCHEMES, *k.SCHEMES, *tables.SCHEMES, *ternary.SCHEMES, *iq.SCHEMES)


def _blocks(scheme: Scheme) -> GgufType:
    assert scheme.gguf_id is not None
    return GgufType(scheme.gguf_id, scheme.name.upper(), scheme.elements, scheme.block_bytes)


TYPES = tuple(sorted((*_PLAIN, *map(_blocks, SCHEMES)), key=lambda type: type.id))
BY_ID = {type.id: type for type in TYPES}
BY_NAME = {type.name: type for type in TYPES}


def by_id(id: int) -> GgufType:
    """The type of a number in a tensor's header. Raises FormatError for unknown numbers."""
    try:
        return BY_ID[id]
    except KeyError:
        known = ", ".join(f"{type.id} {type.name}" for type in TYPES)
        raise FormatError(f"GGUF type {id} is unknown or withdrawn: lbrx reads {known}") from None
