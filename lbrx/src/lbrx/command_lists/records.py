"""Records and function constants of kernels, each declared once.

A record is a class whose annotations are MSL types. An instance is the bytes that the kernel reads;
the class also writes itself as a struct of MSL, into the header that its declaration names. The
function constants of a header are declared alike: an instance has their values by index.

    class Rows(Record, header="rows"):
        "The rows of a problem."
        length: UInt
        stride: ULong  # in elements

`python lbrx/scripts/record_headers.py` writes the headers, `records/NAME.h` beside the module.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import get_annotations
from operator import itemgetter
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Self,
    dataclass_transform,
)

import numpy as np

if TYPE_CHECKING:
    from lbrx.metal.library import ConstantValue

DECLARED: list[type[Record] | type[Constants]] = []
"""The declarations with a header, of the modules that are imported."""


@dataclass(frozen=True)
class Scalar:
    """A type of MSL: its name, its code in `struct`, and how a function constant of it is given."""

    msl: str
    code: str
    constant: Any = None
    sizes: tuple[int, ...] = ()
    """Of an array; a record is given its elements one after the other."""

    def __getitem__(self, sizes: int | tuple[int, ...]) -> Scalar:
        return Scalar(self.msl, self.code, sizes=sizes if isinstance(sizes, tuple) else (sizes,))

    @property
    def count(self) -> int:
        """Elements of an array; 0 for one value."""
        return math.prod(self.sizes) if self.sizes else 0


UINT, INT = Scalar("uint", "I", int), Scalar("int", "i", np.int32)
ULONG, LONG = Scalar("ulong", "Q"), Scalar("long", "q")
UCHAR = Scalar("uchar", "B")
FLOAT, BOOL = Scalar("float", "f", float), Scalar("bool", "?", bool)

UInt = Annotated[int, UINT]
Int = Annotated[int, INT]
ULong = Annotated[int, ULONG]
Long = Annotated[int, LONG]
Float = Annotated[float, FLOAT]
Bool = Annotated[bool, BOOL]


@dataclass(frozen=True)
class Field:
    """One member of a record, or one function constant."""

    name: str
    type: Scalar | type[Record]
    place: int
    """The offset in bytes, or the index of a function constant."""


def _annotations(kind: type) -> Iterator[tuple[str, Scalar | type[Record]]]:
    """The fields that a class itself declares."""
    for name, annotation in get_annotations(kind, eval_str=True).items():
        for type_ in (*getattr(annotation, "__metadata__", ()), annotation):
            if isinstance(type_, Scalar) or (isinstance(type_, type) and issubclass(type_, Record)):
                yield name, type_


# ---- records ----


@dataclass_transform(kw_only_default=True)
class Record(bytes):
    """The bytes of a struct of MSL. Fields are given by name; of an array, a sequence."""

    header: ClassVar[str]

    def __init_subclass__(cls, header: str = "") -> None:
        cls.header = header
        if header:
            DECLARED.append(cls)

    def __new__(cls, **values: Any) -> Self:
        layout = _layout(cls)
        if values.keys() != layout.names:
            wrong = ", ".join(sorted(values.keys() ^ layout.names))
            raise TypeError(f"{cls.__name__} lacks, or does not have, {wrong}")
        try:
            return bytes.__new__(cls, layout.form.pack(*layout.flat(values)))
        except struct.error as problem:
            raise ValueError(f"{cls.__name__} cannot hold {values}: {problem}") from problem

    def values(self) -> Mapping[str, Any]:
        """What the fields hold, by name."""
        layout = _layout(type(self))
        unpacked_values = iter(layout.form.unpack(self))
        result: dict[str, Any] = {}
        for field in layout.fields:
            if not isinstance(field.type, Scalar):
                result[field.name] = bytes.__new__(field.type, next(unpacked_values))
            elif field.type.sizes:
                result[field.name] = tuple(next(unpacked_values) for _ in range(field.type.count))
            else:
                result[field.name] = next(unpacked_values)
        return result

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.values().items())
        return f"{type(self).__name__}({values})"


def fields_of(kind: type[Record]) -> tuple[Field, ...]:
    """The members of a record with their offsets in MSL."""
    return _layout(kind).fields


class _Layout:
    """The members of a record, and the format of the whole: as C does, each at a multiple of its
    alignment."""

    def __init__(self, kind: type[Record]) -> None:
        fields, form, end, most = [], "=", 0, 1
        for name, type_ in _annotations(kind):
            size, alignment, code = _shape(type_)
            padding = -end % alignment
            fields.append(Field(name, type_, end + padding))
            form += f"{padding}x{code}"
            end += padding + size
            most = max(most, alignment)
        self.name = kind.__name__
        self.fields = tuple(fields)
        self.alignment = most
        self.form = struct.Struct(f"{form}{-end % most}x")
        self.names = {field.name for field in fields}
        self.in_order = itemgetter(*(field.name for field in fields), fields[0].name)
        sizes = (field.type.count if isinstance(field.type, Scalar) else 0 for field in fields)
        self.arrays = [(i, size) for i, size in enumerate(sizes) if size]

    def flat(self, values: Mapping[str, Any]) -> Sequence[Any]:
        """The numbers in order, with those of arrays among them."""
        numbers: list[Any]
        *numbers, _ = self.in_order(values)
        for i, size in reversed(self.arrays):
            if len(numbers[i]) != size:
                raise TypeError(f"{self.name}.{self.fields[i].name} has {size} values")
            numbers[i : i + 1] = numbers[i]
        return numbers


_layout = cache(_Layout)


def _shape(type_: Scalar | type[Record]) -> tuple[int, int, str]:
    """Size, alignment and `struct`'s code of a member."""
    if isinstance(type_, Scalar):
        size = struct.calcsize(f"={type_.code}")
        count = type_.count or 1
        return size * count, size, f"{count}{type_.code}"
    inner = _layout(type_)
    return inner.form.size, inner.alignment, f"{inner.form.size}s"


def dtype_of(kind: type[Record]) -> np.dtype[np.void]:
    """The layout of a record in numpy, for arrays of records."""
    layout = _layout(kind)
    return np.dtype(
        {
            "names": [field.name for field in layout.fields],
            "formats": [_numpy(field.type) for field in layout.fields],
            "offsets": [field.place for field in layout.fields],
            "itemsize": layout.form.size,
        }
    )


def _numpy(type_: Scalar | type[Record]) -> np.dtype[Any]:
    if isinstance(type_, Scalar):
        return np.dtype((f"={type_.code}", type_.sizes))
    return dtype_of(type_)


def struct_of(kind: type[Record], comments: Mapping[str, str] | None = None) -> list[str]:
    """The lines of a record's declaration in MSL."""
    lines = [f"struct {kind.__name__} {{"]
    for field in fields_of(kind):
        comment = (comments or {}).get(field.name, "")
        lines.append(f"  {_declared(field)};{comment and f'  // {comment}'}")
    return [*lines, "};"]


def _declared(field: Field) -> str:
    if not isinstance(field.type, Scalar):
        return f"{field.type.__name__} {field.name}"
    sizes = "".join(f"[{size}]" for size in field.type.sizes)
    return f"{field.type.msl} {field.name}{sizes}"


def record_type(name: str, **types: Scalar) -> type[Record]:
    """A record that is declared at run time, for generated source."""
    return type(name, (Record,), {"__annotations__": types})


def packed(type_: Scalar, *values: float) -> bytes:
    """The bytes of one value, or of an array whose length is known at the call."""
    return struct.pack(f"={len(values)}{type_.code}", *values)


def unpacked(type_: Scalar, data: bytes) -> tuple[Any, ...]:
    """The values of such an array."""
    return struct.unpack(f"={len(data) // struct.calcsize(type_.code)}{type_.code}", data)


# ---- function constants ----


@dataclass_transform(kw_only_default=True)
class Constants(dict[int, "ConstantValue"]):
    """Function constants by index, given by name. A subclass has those of its base, too, which
    another header declares."""

    header: ClassVar[str]

    def __init_subclass__(cls, header: str = "") -> None:
        cls.header = header
        if header:
            DECLARED.append(cls)

    def __init__(self, **values: Any) -> None:
        known = _defaults(type(self))
        chosen = known | values
        if len(chosen) > len(known) or any(value is None for value in chosen.values()):
            wrong = [name for name in chosen if name not in known or chosen[name] is None]
            raise TypeError(f"{type(self).__name__} lacks, or does not have, {', '.join(wrong)}")
        for field, value in zip(constants_of(type(self)), chosen.values(), strict=True):
            assert isinstance(field.type, Scalar)
            self[field.place] = field.type.constant(value)


@cache
def _defaults(kind: type[Constants]) -> dict[str, Any]:
    """The values of function constants that are not given, in order; None if one has to be."""
    return {field.name: getattr(kind, field.name, None) for field in constants_of(kind)}


@cache
def constants_of(kind: type[Constants]) -> tuple[Field, ...]:
    """The function constants with their indices, those of the base first."""
    base = kind.__bases__[0]
    fields = [*constants_of(base)] if issubclass(base, Constants) else []
    for name, type_ in _annotations(kind):
        fields.append(Field(name, type_, len(fields)))
    return tuple(fields)


def constant_of(field: Field) -> str:
    """A function constant's declaration in MSL."""
    assert isinstance(field.type, Scalar)
    return f"constant {field.type.msl} {field.name} [[function_constant({field.place})]];"
