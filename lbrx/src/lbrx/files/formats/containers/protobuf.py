"""A reader of the wire format of protocol buffers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lbrx.files.formats.checks import bad

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class ProtobufMessage:
    """A message in a buffer. It iterates over fields in stored order; contents are ranges, not
    copies."""

    def __init__(self, path: Path, data: memoryview, start: int = 0, end: int | None = None):
        self.path = path
        self.data = data
        self.start = start
        self.end = len(data) if end is None else end

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """(number, wire type, start, end) of each field; for a varint, start and end are its
        value."""
        at = self.start
        while at < self.end:
            key, at = self._varint(at)
            number, wire = key >> 3, key & 7
            if wire == VARINT:
                value, at = self._varint(at)
                yield number, wire, value, value
                continue
            length = {FIXED64: 8, FIXED32: 4}.get(wire)
            if wire == BYTES:
                length, at = self._varint(at)
            if length is None or number == 0 or at + length > self.end:
                raise self._damaged(at)
            yield number, wire, at, at + length
            at += length

    def _varint(self, at: int) -> tuple[int, int]:
        value = shift = 0
        while at < self.end and shift < 70:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at
            shift += 7
        raise self._damaged(at)

    def _damaged(self, at: int) -> Exception:
        return bad(self.path, f"is damaged at byte {at:,}", field="protobuf message")

    def inner(self, start: int, end: int) -> ProtobufMessage:
        return ProtobufMessage(self.path, self.data, start, end)

    def text(self, start: int, end: int) -> str:
        return str(self.data[start:end], "utf-8", "replace")

    def varints(self) -> Iterator[int]:
        """The numbers of a packed field."""
        at = self.start
        while at < self.end:
            value, at = self._varint(at)
            yield value


def signed(value: int) -> int:
    """A varint as a signed 64-bit integer."""
    return value - (1 << 64) if value >= 1 << 63 else value
