"""The positions of members in zip files, for formats that store tensors in them."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lbrx.errors import FormatError
from lbrx.files.formats.checks import MAX_HEADER, MAX_TENSORS, bad, shown
from lbrx.files.formats.descriptor import Deflated, FileRange

ZIP_MAGIC = b"PK\x03\x04"
# The record at the end of the directory (an empty zip file begins with it), its 64-bit form, and
# the
# most bytes from these to the end of the file.
EMPTY_ZIP_MAGIC, _WIDE_END_MAGIC = b"PK\x05\x06", b"PK\x06\x06"
_LOCAL_HEADER = 30
_END_SEARCH = (1 << 16) + 22 + 20 + 56
# Deflate compresses by at most about 1,032 to 1.
_MAX_RATIO = 1040


@dataclass(frozen=True)
class ZipMember:
    """A member: `packed` bytes at `offset` of the file, which may be deflated."""

    file: Path
    name: str
    offset: int
    packed: int
    nbytes: int
    is_deflated: bool

    def range(self, skip: int, nbytes: int) -> FileRange | Deflated:
        """A range of its content as the source of a tensor."""
        if self.is_deflated:
            return Deflated(self.file, self.offset, self.packed, skip, nbytes)
        return FileRange(self.file, self.offset + skip, nbytes)

    def head(self, file: IO[bytes], limit: int) -> bytes:
        """Its first bytes, at most `limit`, read from the open file."""
        file.seek(self.offset)
        if not self.is_deflated:
            return file.read(min(limit, self.nbytes))
        return b"".join(inflate(self.file, file, self.packed, min(limit, self.nbytes)))

    def content(self) -> bytes:
        """Its whole content. Raises FormatError above the limit for headers."""
        if self.nbytes > MAX_HEADER:
            problem = f"{self.nbytes:,} bytes, at most {MAX_HEADER:,}"
            raise bad(self.file, problem, field=f"member {shown(self.name)}")
        with self.file.open("rb") as file:
            return self.head(file, self.nbytes)


def inflate(path: Path, file: IO[bytes], packed: int, nbytes: int) -> Iterator[bytes]:
    """Inflate the first `nbytes` bytes from the file's current position."""
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    left, wanted = packed, nbytes
    try:
        while wanted:
            data = stream.unconsumed_tail or file.read(min(left, 1 << 20))
            left -= 0 if stream.unconsumed_tail else len(data)
            part = stream.decompress(data, min(wanted, 1 << 24))
            wanted -= len(part)
            yield part
            if not part and (stream.eof or not data):
                raise bad(path, f"ends {wanted:,} bytes early", field="deflated member")
    except zlib.error as error:
        raise bad(path, f"is damaged ({error})", field="deflated member") from None


def member_names(path: Path) -> list[str]:
    with _opened(path) as archive:
        return archive.namelist()


def members(path: Path) -> dict[str, ZipMember]:
    """All members by name. Raises FormatError if one is not within the file."""
    result: dict[str, ZipMember] = {}
    with _opened(path) as archive, path.open("rb") as file:
        size = file.seek(0, 2)
        for info in archive.infolist():
            if info.filename in result:
                raise bad(path, f"the member {shown(info.filename)} occurs twice")
            result[info.filename] = _member(path, file, size, info)
    return result


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    _check_directory(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if len(archive.infolist()) > MAX_TENSORS:
                raise bad(path, f"has more than {MAX_TENSORS:,} members")
            yield archive
    except FormatError:
        raise
    except (zipfile.BadZipFile, struct.error, NotImplementedError, ValueError, OSError) as error:
        raise bad(path, f"is not a readable zip file ({error})") from None


def _check_directory(path: Path) -> None:
    """Check the size of the directory, which Python's zipfile reads as a whole."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _END_SEARCH))
        tail = file.read()
    at = tail.rfind(EMPTY_ZIP_MAGIC)
    length = int.from_bytes(tail[at + 12 : at + 16], "little")
    wide = tail.rfind(_WIDE_END_MAGIC)
    if wide >= 0:
        told = int.from_bytes(tail[wide + 40 : wide + 48], "little")
        length = told if length == 0xFFFF_FFFF else max(length, told)
    if at < 0 or length > MAX_HEADER:
        problem = f"{length:,} bytes, at most {MAX_HEADER:,}" if at >= 0 else "is missing"
        raise bad(path, problem, field="zip directory")


def _member(path: Path, file: IO[bytes], size: int, info: zipfile.ZipInfo) -> ZipMember:
    field = f"member {shown(info.filename)}"
    if info.flag_bits & 1:
        raise bad(path, "is encrypted", field=field)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise bad(path, f"compression {info.compress_type} is not read", field=field)
    is_deflated = info.compress_type == zipfile.ZIP_DEFLATED
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER)
    if len(header) < _LOCAL_HEADER or not header.startswith(ZIP_MAGIC):
        raise bad(path, "its header is not where the directory says", field=field)
    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    offset = info.header_offset + _LOCAL_HEADER + name + extra
    if offset + info.compress_size > size:
        raise bad(path, f"ends past the file's {size:,} bytes: it is cut short", field=field)
    if not is_deflated and info.compress_size != info.file_size:
        raise bad(path, "is stored, but its two sizes differ", field=field)
    if info.file_size > info.compress_size * _MAX_RATIO + 1024:
        problem = f"{info.compress_size:,} bytes cannot expand to {info.file_size:,}"
        raise bad(path, problem, field=field)
    return ZipMember(path, info.filename, offset, info.compress_size, info.file_size, is_deflated)
