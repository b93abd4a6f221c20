"""Incomplete output: a hidden folder beside the target, with a journal of finished pieces.

An interrupted conversion leaves it, and the next one can continue from it. A line of the journal is
written after the bytes of its piece, and counts only if these have the checksum in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lbrx.errors import FormatError, LbrxError
from lbrx.formats.layout import write_frame
from lbrx.formats.output import settle
from lbrx.formats.writing import OLD_WEIGHTS, Output

_JOURNAL = "journal.jsonl"
_FILES = "files"


class PartialOutput:
    """The files of an output until they are complete. Several threads may write."""

    def __init__(self, output: Output, resume: bool, fingerprint: str) -> None:
        """The files are in an inner folder, which gets the output's name if the output is a
        folder."""
        self.output = output
        self.folder = output.path.with_name(f".{output.path.name}.partial")
        self._inner = self.folder / _FILES
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        try:
            self._inner.mkdir(parents=True, exist_ok=True)
            self._journal = os.open(self.folder / _JOURNAL, flags, 0o666)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise FormatError(f"{output.path} cannot be written: {reason}") from problem
        self._files: dict[str, int] = {}
        try:
            self._lock()
            self.done = self._journalled(fingerprint) if resume else {}
            if not self.done:
                self._start(fingerprint)
            self._open()
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        """Lock the journal. The system releases it when the process ends."""
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FormatError(f"{self.output.path} is being written by another process") from None

    def _journalled(self, fingerprint: str) -> dict[int, int]:
        """Checksums of the pieces in the journal."""
        lines = (self.folder / _JOURNAL).read_text().splitlines()
        if not lines:
            return {}
        if _parsed(lines[0]).get("fingerprint") != fingerprint:
            raise FormatError(
                f"{self.folder} belongs to another conversion, or the source has changed: "
                "start again without --resume"
            )
        entries = [_parsed(line) for line in lines[1:]]
        return {e["piece"]: e["sum"] for e in entries if e.keys() >= {"piece", "sum"}}

    def _start(self, fingerprint: str) -> None:
        os.ftruncate(self._journal, 0)
        for file in self._inner.iterdir():
            file.unlink()
        self._note({"fingerprint": fingerprint})

    def _open(self) -> None:
        self._places: dict[str, tuple[int, int]] = {}
        for name, layout in self.output.layouts.items():
            handle = os.open(self._inner / name, os.O_RDWR | os.O_CREAT, 0o666)
            self._files[name] = handle
            os.ftruncate(handle, layout.nbytes)
            self._places |= {slot.name: (handle, offset) for slot, offset in layout.tensors}

    def _note(self, entry: dict[str, Any]) -> None:
        os.write(self._journal, (json.dumps(entry) + "\n").encode())

    def write(self, slot: str, at: int, data: memoryview) -> None:
        """Write bytes of a stored tensor, starting at offset `at` within it."""
        handle, offset = self._places[slot]
        while data:
            written = os.pwrite(handle, data, offset + at)
            data, at = data[written:], at + written

    def read(self, slot: str, at: int, nbytes: int) -> bytes:
        handle, offset = self._places[slot]
        return os.pread(handle, nbytes, offset + at)

    def finished(self, piece: int, total: int) -> None:
        """Note in the journal that a piece has been written."""
        self._note({"piece": piece, "sum": total})

    def complete(self) -> None:
        """Write the rest of the files and give them their names."""
        for name, layout in self.output.layouts.items():
            with open(os.dup(self._files[name]), "r+b") as file:
                write_frame(file, layout)
        for name, content in self.output.files.items():
            (self._inner / name).write_bytes(content)
        if self.output.is_folder:
            settle(self._inner, self.output.path, OLD_WEIGHTS)
        else:
            os.replace(self._inner / self.output.path.name, self.output.path)
        self.remove()

    def remove(self) -> None:
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        handles = [self._journal, *self._files.values()] if self._journal >= 0 else []
        self._journal, self._files = -1, {}
        for handle in handles:
            os.close(handle)


def _parsed(line: str) -> dict[str, Any]:
    """An entry; empty for a line that was not completely written."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def checksum(parts: Iterable[bytes | memoryview]) -> int:
    """The sum of all 64-bit words, at the speed of memory. It finds pages that did not reach the
    disk, not deliberate changes."""
    total = 0
    for part in parts:
        words = len(part) // 8 * 8
        total += int(np.frombuffer(part[:words], "<u8").sum(dtype=np.uint64))
        total += int.from_bytes(part[words:], "little")
    return total % 2**64


@contextmanager
def partial_output(output: Output, resume: bool, fingerprint: str) -> Iterator[PartialOutput]:
    """The partial output. It is removed after an LbrxError, which would happen again, and left for
    `resume` after any other error."""
    partial = PartialOutput(output, resume, fingerprint)
    try:
        yield partial
    except LbrxError:
        partial.remove()
        raise
    finally:
        partial.close()
