"""Protobuf's wire format: messages are decoded by a table of their fields.

Lengths are checked before anything is read or allocated, nesting and the number of fields are
bounded, and byte fields are views of the given buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from softcoreml.errors import ModelError

MAX_DEPTH = 96
MAX_FIELDS = 50_000_000
_LIMIT = 1 << 64


@dataclass(frozen=True)
class Field:
    """One field: `kind` is a scalar's name or the table of a nested message."""

    name: str
    kind: str | Message
    repeated: bool = False


class Message:
    """The fields of a message by number. Filled later, so that tables may be cyclic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: dict[int, Field] = {}

    def define(self, fields: Mapping[int, Field]) -> None:
        self.fields.update(fields)


Decoded = dict[str, Any]
"""A decoded message: a value for each field that is there, a list for each repeated field."""


def decode(data: memoryview, message: Message) -> Decoded:
    """Decode `data`, which must be one whole message.

    Raises:
        ModelError: it is truncated, nested too deeply, or not of this message's form.
    """
    return _Decoder().message(data, message, 0)


def raw_field(data: memoryview, number: int) -> memoryview:
    """The bytes of the last length-delimited field `number` of a message, empty if it has none."""
    found = memoryview(b"")
    for given, wire, value in _Decoder().fields(data, "message"):
        if given == number and wire == 2:
            found = value
    return found


class _Decoder:
    def __init__(self) -> None:
        self._fields_left = MAX_FIELDS

    def message(self, data: memoryview, message: Message, depth: int) -> Decoded:
        if depth > MAX_DEPTH:
            raise ModelError(f"{message.name} is nested more than {MAX_DEPTH} messages deep")
        result: Decoded = {}
        for number, wire, value in self.fields(data, message.name):
            field = message.fields.get(number)
            if field is None:
                continue
            if isinstance(field.kind, Message):
                _expect(wire, 2, message, field)
                decoded: Any = self.message(value, field.kind, depth + 1)
                if not field.repeated and field.name in result:
                    decoded = result[field.name] | decoded
            elif wire == 2 and field.repeated and field.kind not in ("string", "bytes"):
                result.setdefault(field.name, []).append(_packed(value, field.kind, message))
                continue
            else:
                decoded = _scalar(value, wire, field, message)
                if field.repeated and field.kind not in ("string", "bytes"):
                    decoded = np.array([decoded], _NUMBERS[field.kind])
            if field.repeated:
                result.setdefault(field.name, []).append(decoded)
            else:
                result[field.name] = decoded
        return result

    def fields(self, data: memoryview, where: str) -> Iterator[tuple[int, int, Any]]:
        """Number, wire type and value (an int, or a view of bytes) of each field."""
        at, end = 0, len(data)
        while at < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise ModelError(f"more than {MAX_FIELDS} fields in one model")
            tag, at = varint(data, at, where)
            number, wire = tag >> 3, tag & 7
            if not 0 < number < 1 << 29:
                raise ModelError(f"{where}: field number {number} at byte {at} is not a valid one")
            if wire == 0:
                value, at = varint(data, at, where)
                yield number, wire, value
                continue
            if wire == 2:
                size, at = varint(data, at, where)
            elif wire in (1, 5):
                size = 8 if wire == 1 else 4
            else:
                raise ModelError(f"{where}: wire type {wire} at byte {at} is not supported")
            if size > end - at:
                raise ModelError(f"{where}: {size} bytes at byte {at} where {end - at} are left")
            yield number, wire, data[at : at + size]
            at += size


def varint(data: memoryview, at: int, where: str) -> tuple[int, int]:
    """The unsigned number at `at`, and the position after it."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise ModelError(f"{where}: the data ends inside a number at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= _LIMIT:
                raise ModelError(f"{where}: a number of more than 64 bits at byte {at}")
            return value, at
        shift += 7
        if shift > 63:
            raise ModelError(f"{where}: a number of more than 10 bytes at byte {at}")


_NUMBERS = {
    "int32": np.int32,
    "int64": np.int64,
    "uint64": np.uint64,
    "bool": np.bool_,
    "float": np.float32,
    "double": np.float64,
}


def _expect(wire: int, wanted: int, message: Message, field: Field) -> None:
    if wire != wanted:
        raise ModelError(f"{message.name}.{field.name} has wire type {wire} instead of {wanted}")


def _scalar(value: Any, wire: int, field: Field, message: Message) -> Any:
    kind = field.kind
    if kind in ("string", "bytes"):
        _expect(wire, 2, message, field)
        if kind == "bytes":
            return value
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError as problem:
            raise ModelError(f"{message.name}.{field.name} is not UTF-8: {problem}") from None
    if kind in ("float", "double"):
        _expect(wire, 5 if kind == "float" else 1, message, field)
        return struct.unpack("<f" if kind == "float" else "<d", value)[0]
    _expect(wire, 0, message, field)
    return _signed(value, str(kind))


def _signed(value: int, kind: str) -> int | bool:
    if kind == "bool":
        return bool(value)
    if kind == "uint64":
        return value
    bits = 32 if kind == "int32" else 64
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _packed(data: memoryview, kind: str | Message, message: Message) -> np.ndarray[Any, Any]:
    """The numbers of a packed field; floating point is a view of the data."""
    dtype = _NUMBERS[str(kind)]
    if kind in ("float", "double"):
        if len(data) % np.dtype(dtype).itemsize:
            raise ModelError(f"{message.name}: {len(data)} bytes are not a whole number of {kind}s")
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))
    numbers = _varints(np.frombuffer(data, np.uint8), message)
    if kind == "int32":
        return numbers.astype(np.uint32).view(np.int32)
    return numbers.astype(np.bool_) if kind == "bool" else numbers.view(dtype)


def _varints(data: np.ndarray[Any, Any], message: Message) -> np.ndarray[Any, Any]:
    """All numbers of a packed field at once, as uint64."""
    last = data < 0x80
    if not len(data):
        return np.zeros(0, np.uint64)
    if not last[-1]:
        raise ModelError(f"{message.name}: the data ends inside a number")
    ends = np.flatnonzero(last)
    starts = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - starts + 1
    if sizes.max() > 10:
        raise ModelError(f"{message.name}: a number of more than 10 bytes")
    place = np.arange(len(data)) - np.repeat(starts, sizes)
    bits = (data & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts)
