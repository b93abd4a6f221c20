"""Reads sizes, constants and symbols of a kernel's shared object without loading it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC, _PT_TLS, _SHT_SYMTAB, _SHT_DYNSYM = 1, 2, 7, 2, 11
OBJECT, TLS = 1, 6  # types of symbols


class Elf:
    """A 64-bit little-endian ELF file."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        self.data = data
        self._segments = list(self._table(0x20, 0x36, "<IIQQQQQQ"))
        self._sections = list(self._table(0x28, 0x3A, "<IIQQQQIIQQ"))

    @classmethod
    def read(cls, path: Path) -> Elf:
        return cls(path.read_bytes())

    def _table(self, offset_at: int, size_at: int, layout: str) -> Iterator[tuple[int, ...]]:
        (offset,) = struct.unpack_from("<Q", self.data, offset_at)
        size, count = struct.unpack_from("<HH", self.data, size_at)
        for index in range(count):
            yield struct.unpack_from(layout, self.data, offset + index * size)

    def thread_local_size(self) -> int:
        """Bytes of thread-local storage: a kernel's static threadgroup memory."""
        return next((s[6] for s in self._segments if s[0] == _PT_TLS), 0)

    def words(self, symbol: str) -> tuple[int, ...]:
        """The 32-bit words of a constant."""
        value, size = self.symbols()[symbol]
        for kind, _, offset, address, _, file_size, *_ in self._segments:
            if kind == _PT_LOAD and address <= value < address + file_size:
                return struct.unpack_from(f"<{size // 4}I", self.data, offset + value - address)
        raise ValueError(f"symbol {symbol} has no data")

    def largest_frame(self) -> int:
        """Bytes of stack of the function that takes the most, as clang noted them."""
        names = self._sections[struct.unpack_from("<H", self.data, 0x3E)[0]][4]
        for section in self._sections:
            at, end = section[4], section[4] + section[5]
            name = names + section[0]
            if self.data[name : self.data.index(b"\0", name)] == b".stack_sizes":
                return max(self._frames(at, end), default=0)
        return 0

    def _frames(self, at: int, end: int) -> Iterator[int]:
        """The sizes of entries, each an address and a number of seven bits a byte."""
        while at < end:
            at += 8
            size, shift = 0, 0
            while True:
                byte = self.data[at]
                size |= (byte & 0x7F) << shift
                at, shift = at + 1, shift + 7
                if byte < 0x80:
                    break
            yield size

    def sized_symbols(self, kind: int) -> list[tuple[str, int, int]]:
        """(name, value, size) of the symbols of a type in the full table: locals too."""
        return [
            (name, value, size)
            for name, info, value, size in self._symbols(_SHT_SYMTAB)
            if info & 0xF == kind and size
        ]

    def symbols(self) -> dict[str, tuple[int, int]]:
        """Every dynamic symbol's (address, size); undefined ones have address 0."""
        return {name: (value, size) for name, _, value, size in self._symbols(_SHT_DYNSYM)}

    def undefined(self) -> set[str]:
        """Names that the loader looks for in other libraries."""
        return {n for n, (value, _) in self.symbols().items() if n and not value}

    def dynamic_tags(self) -> set[int]:
        """What the loader is asked to do: the DT_ constants."""
        return {
            struct.unpack_from("<Q", self.data, at)[0]
            for kind, _, offset, _, _, size, *_ in self._segments
            if kind == _PT_DYNAMIC
            for at in range(offset, offset + size, 16)
        }

    def _symbols(self, table: int) -> Iterator[tuple[str, int, int, int]]:
        for section in self._sections:
            if section[1] != table:
                continue
            _, _, _, _, offset, size, link, _, _, entry = section
            names = self._sections[link][4]
            for at in range(offset, offset + size, entry):
                name, info, _, _, value, length = struct.unpack_from("<IBBHQQ", self.data, at)
                end = self.data.index(b"\0", names + name)
                yield self.data[names + name : end].decode(), info, value, length
