"""Bytes of a file, mapped when they are first read.

Reading a page beyond the end of a file that has become shorter is a SIGBUS, which ends the process.
The length is therefore compared whenever the host asks for the bytes. What Python cannot prevent is
a file that shrinks after that, while a numpy array over the mapping is in use.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

from lbrx.arrays.storage.array import Bytes
from lbrx.arrays.storage.lazy import LazyStorage
from lbrx.errors import FormatError

_MAP_FIXED = 0x10  # on Linux and macOS


class FileMapping(mmap.mmap):
    """A mapped range of a file that can tell whether the file still contains it."""

    path: Path
    start: int

    @classmethod
    def of(cls, path: Path, start: int, length: int) -> FileMapping:
        """Map `length` bytes from `start` on, which must be a multiple of the page size."""
        with path.open("rb") as file:
            _check_size(path, os.fstat(file.fileno()).st_size, start + length)
            mapping = cls(file.fileno(), length, access=mmap.ACCESS_READ, offset=start)
        mapping.path = path
        mapping.start = start
        return mapping

    def check(self) -> None:
        """Raise FormatError if the file has become shorter."""
        _check_size(self.path, self.size(), self.start + len(self))

    def placed(self, page: int) -> tuple[Bytes, int]:
        """The same bytes of the file in complete pages of this size, which may be larger than the
        system's: mapped again, not copied. Also returns the index of the mapping's first byte."""
        before = self.start % page
        length = -(-(before + len(self)) // page) * page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        room = mmap.mmap(-1, length + page, flags=flags, prot=mmap.PROT_READ)
        address = np.frombuffer(room, np.uint8).ctypes.data
        skipped = -address % page
        with self.path.open("rb") as file:
            _map_over(address + skipped, length, file.fileno(), self.start - before)
        return np.frombuffer(room, np.uint8, length, skipped), before


def _map_over(address: int, length: int, file: int, start: int) -> None:
    """Map a file in place of what is mapped at an address."""
    libc = ctypes.CDLL(None, use_errno=True)
    map_ = libc.mmap
    map_.restype = ctypes.c_void_p
    word = ctypes.c_size_t
    map_.argtypes = (ctypes.c_void_p, word, *[ctypes.c_int] * 3, ctypes.c_int64)
    got = map_(address, length, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, file, start)
    if got != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _check_size(path: Path, size: int, needed: int) -> None:
    if size < needed:
        raise FormatError(
            f"{path} was cut short while it was in use: it has only {size} bytes where {needed} "
            "are needed; load it again when it is complete"
        )


class MmapStorage(LazyStorage):
    """A read-only range of a file, which is opened at the first access."""

    def __init__(self, path: str | os.PathLike[str], offset: int = 0, nbytes: int | None = None):
        self.path = Path(path)
        self.offset = offset
        size = self.path.stat().st_size
        length = size - offset if nbytes is None else nbytes
        if min(offset, length) < 0 or offset + length > size:
            raise FormatError(
                f"{self.path} has {size} bytes, not {length} from {offset} on: "
                "the file is cut short or its header is wrong"
            )
        super().__init__(length, self._map)
        self._pages: FileMapping | None = None

    def _map(self) -> Bytes:
        if self._nbytes == 0:
            empty = np.empty(0, np.uint8)
            empty.flags.writeable = False
            return empty
        # A mapping starts on a page.
        start = self.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        inside = self.offset - start
        self._pages = FileMapping.of(self.path, start, inside + self._nbytes)
        return np.frombuffer(self._pages, np.uint8, self._nbytes, inside)

    def host(self) -> Bytes:
        """The mapped bytes; raises FormatError if the file has become shorter."""
        data = super().host()
        if self._pages is not None:
            self._pages.check()
        return data

    def forget(self, offset: int, nbytes: int) -> None:
        """Drop a range from memory. The next access reads the file again."""
        if self._pages is None:
            return
        inside = self.offset % mmap.ALLOCATIONGRANULARITY + offset
        first = inside // mmap.PAGESIZE * mmap.PAGESIZE
        last = min(inside + nbytes, len(self._pages))
        if last > first:
            self._pages.madvise(mmap.MADV_DONTNEED, first, last - first)

    def __repr__(self) -> str:
        return f"<MmapStorage of {self._nbytes} bytes at {self.offset} of {self.path}>"
