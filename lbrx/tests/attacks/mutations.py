"""Random damage to files: bytes that change, move, repeat or vanish, and numbers in text and in
JSON that become other values."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import numpy as np

BYTES = (0, 1, 2, 0x0A, 0x20, 0x22, 0x2D, 0x2E, 0x5C, 0x7F, 0x80, 0xC0, 0xED, 0xFE, 0xFF)
WORDS = (0, 1, 2, 3, 255, 256, 1 << 15, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, 1 << 63)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 5, 255, 256, 1 << 31, 1 << 63, 10**12, 10**25, -(10**12)),
    *(0.5, 1.0, -1.5, 1e-320, 1e308, float("inf"), float("nan")),
    *("", "x", "\0", "\ud800", "x" * 300, "../x", "2 3", "1e9", [], [1], [[]], [None], {}),
    *({"x": 1}, {"": {}}, [{"x": []}], "F32", "llama"),
)
_NUMBER = re.compile(rb"-?\d+")


class Mutator:
    """Makes damaged copies; the same seed makes the same ones."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def below(self, count: int) -> int:
        return int(self.rng.integers(count))

    def one_of(self, values: Any) -> Any:
        return values[self.below(len(values))]

    def damaged(self, data: bytes) -> bytes:
        """One to five changes, of JSON values where the data is JSON."""
        for _ in range(1 + self.below(5)):
            change = self.one_of((self._bytes, self._bytes, self._text, self._json))
            data = change(data)
        return data

    def _bytes(self, data: bytes) -> bytes:
        at, size = self.below(len(data) + 1), 1 + self.below(16)
        head, middle, tail = data[:at], data[at : at + size], data[at + size :]
        match self.below(8):
            case 0:
                return head + bytes([self.one_of(BYTES)]) + data[at + 1 :]
            case 1:
                return head + self.rng.bytes(len(middle)) + tail
            case 2:
                return head
            case 3:
                return head + tail
            case 4:
                return head + middle * (2 + self.below(3)) + tail
            case 5:
                width = self.one_of("HIQ")
                word = self.one_of(WORDS) & ((1 << 8 * struct.calcsize(width)) - 1)
                return head + struct.pack(f"<{width}", word) + data[at + struct.calcsize(width) :]
            case 6:
                there = self.below(len(data) + 1)
                return head + data[there : there + 4 * size] + data[at:]
            case _:
                flipped = bytes([middle[0] ^ (1 << self.below(8))]) if middle else b""
                return head + flipped + data[at + 1 :]

    def _text(self, data: bytes) -> bytes:
        """Another number in text."""
        found = list(_NUMBER.finditer(data))
        if not found:
            return self._bytes(data)
        place = self.one_of(found)
        new = str(self.one_of(VALUES)).encode(errors="surrogatepass")
        return data[: place.start()] + new + data[place.end() :]

    def _json(self, data: bytes) -> bytes:
        """Another value at one place of JSON: a whole file, or the header of safetensors."""
        start = 8 if data[8:9] == b"{" else 0
        end = start + int.from_bytes(data[:8], "little") if start else len(data)
        try:
            value = json.loads(data[start:end])
        except (ValueError, RecursionError):
            return self._bytes(data)
        value = self._other(value)
        text = json.dumps(value).encode()
        return (struct.pack("<Q", len(text)) + text + data[end:]) if start else text

    def _other(self, value: Any) -> Any:
        """A value with one of its parts replaced, removed, renamed or repeated."""
        if not isinstance(value, dict | list) or not value or self.below(6) == 0:
            return self.one_of(VALUES)
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key, copy = self.one_of(keys), value.copy()
        match self.below(8):
            case 0:
                del copy[key]
            case 1 if isinstance(copy, dict):
                copy[str(self.one_of(VALUES))] = copy.pop(key)
            case 1:
                copy.append(copy[key])
            case _:
                copy[key] = self._other(value[key])
        return copy
