"""Zip files with uncompressed members, laid out before they are written."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_WIDE_END = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4s4H2IH")
_WIDE_FIELD, _PADDING_FIELD = 1, 0x5A5A
_VERSION = 45  # with 64-bit sizes
_UTF8 = 0x800
_DATE = 0x21  # 1 January 1980, so that equal contents give equal files
_UNIX_FILE = 0o100644 << 16
_FULL, _SHORT = 0xFFFFFFFF, 0xFFFF  # the value is in the 64-bit field


@dataclass(frozen=True)
class StoredMember:
    """A member whose header is at `start` and whose content is at `content`."""

    name: str
    start: int
    content: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.content + self.nbytes


def place(name: str, start: int, nbytes: int, alignment: int) -> StoredMember:
    """A member that begins at `start`, with its content at a multiple of the alignment."""
    least = start + _LOCAL.size + len(name.encode()) + struct.calcsize("<2H2Q") + 4
    return StoredMember(name, start, least + -least % alignment, nbytes)


def local_header(member: StoredMember, crc: int) -> bytes:
    """The bytes from a member's start to its content."""
    name = member.name.encode()
    wide = struct.pack("<2H2Q", _WIDE_FIELD, 16, member.nbytes, member.nbytes)
    padding = member.content - member.start - _LOCAL.size - len(name) - len(wide) - 4
    extra = wide + struct.pack("<2H", _PADDING_FIELD, padding) + bytes(padding)
    fixed = (_VERSION, _UTF8, 0, 0, _DATE, crc, _FULL, _FULL, len(name), len(extra))
    return _LOCAL.pack(b"PK\x03\x04", *fixed) + name + extra


def directory(members: Sequence[StoredMember], crcs: Sequence[int], start: int) -> bytes:
    """The bytes after the last member. NumPy recognises an empty file by the short form."""
    if not members:
        return _END.pack(b"PK\x05\x06", 0, 0, 0, 0, 0, start, 0)
    entries = b"".join(map(_entry, members, crcs))
    count, size, end = len(members), len(entries), start + len(entries)
    wide = (_WIDE_END.size - 12, _VERSION, _VERSION, 0, 0, count, count, size, start)
    short = min(count, _SHORT)
    return (
        entries
        + _WIDE_END.pack(b"PK\x06\x06", *wide)
        + _LOCATOR.pack(b"PK\x06\x07", 0, end, 1)
        + _END.pack(b"PK\x05\x06", 0, 0, short, short, min(size, _FULL), min(start, _FULL), 0)
    )


def directory_size(members: Sequence[StoredMember]) -> int:
    return len(directory(members, [0] * len(members), 0))


def _entry(member: StoredMember, crc: int) -> bytes:
    name = member.name.encode()
    wide = struct.pack("<2H3Q", _WIDE_FIELD, 24, member.nbytes, member.nbytes, member.start)
    made_by = 3 << 8 | _VERSION  # Unix, with permissions in the attributes
    fixed = (made_by, _VERSION, _UTF8, 0, 0, _DATE, crc, _FULL, _FULL, len(name), len(wide))
    return _CENTRAL.pack(b"PK\x01\x02", *fixed, 0, 0, 0, _UNIX_FILE, _FULL) + name + wide
