"""MTLDataType: its values for MSL type names, and their sizes."""

from __future__ import annotations

import re

from softmetal.api import enums

# MSL name of the scalar -> (the enumeration's spelling, bytes)
_SCALARS = {
    "bool": ("Bool", 1),
    "char": ("Char", 1),
    "uchar": ("UChar", 1),
    "short": ("Short", 2),
    "ushort": ("UShort", 2),
    "int": ("Int", 4),
    "uint": ("UInt", 4),
    "long": ("Long", 8),
    "ulong": ("ULong", 8),
    "half": ("Half", 2),
    "bfloat": ("BFloat", 2),
    "float": ("Float", 4),
}

_SYNONYMS = {
    "int8_t": "char",
    "uint8_t": "uchar",
    "int16_t": "short",
    "uint16_t": "ushort",
    "int32_t": "int",
    "uint32_t": "uint",
    "int64_t": "long",
    "uint64_t": "ulong",
    "size_t": "ulong",
    "ptrdiff_t": "long",
    "unsigned": "uint",
    "unsigned int": "uint",
    "unsigned char": "uchar",
    "unsigned short": "ushort",
    "unsigned long": "ulong",
    "signed char": "char",
    "atomic_int": "int",
    "atomic_uint": "uint",
    "atomic_float": "float",
    "atomic_ulong": "ulong",
}


def _names() -> dict[str, tuple[int, int]]:
    """MSL name -> (MTLDataType, bytes). Vectors of three have the size of four."""
    known = {}
    for name, (spelling, size) in _SCALARS.items():
        for width in (1, 2, 3, 4):
            suffix = "" if width == 1 else str(width)
            value = getattr(enums, f"MTLDataType{spelling}{suffix}")
            known[name + suffix] = (value, size * (4 if width == 3 else width))
    for name in ("float", "half"):
        spelling, size = _SCALARS[name]
        for columns in (2, 3, 4):
            for rows in (2, 3, 4):
                value = getattr(enums, f"MTLDataType{spelling}{columns}x{rows}")
                known[f"{name}{columns}x{rows}"] = (
                    value,
                    size * columns * (4 if rows == 3 else rows),
                )
    return known


_KNOWN = _names()
_SIZES = dict(_KNOWN.values())
_QUALIFIERS = re.compile(r"\b(device|constant|threadgroup|thread|const|volatile|coherent)\b|[*&]")


def data_type(declared: str) -> int:
    """The MTLDataType of a declared type; of its pointee, if it is a pointer or a reference."""
    bare = " ".join(_QUALIFIERS.sub(" ", declared).replace("metal::", "").split())
    bare = bare.removeprefix("packed_")
    bare = _SYNONYMS.get(bare, bare)
    return _KNOWN[bare][0] if bare in _KNOWN else enums.MTLDataTypeStruct


def data_size(value: int) -> int | None:
    """The bytes of a value of this MTLDataType; None for types without a size."""
    return _SIZES.get(value)
