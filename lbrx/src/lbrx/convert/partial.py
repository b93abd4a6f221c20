"""Incomplete output: a hidden folder beside the target, with a journal of finished pieces.

An interrupted conversion leaves it, and the next one can continue from it. A line of the journal is
written after the bytes of its piece, and counts only if these have the checksum in it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from lbrx import stored_json
from lbrx.convert.private_folder import PrivateFolder, clear, create_file, open_file, open_folder
from lbrx.errors import FormatError, LbrxError
from lbrx.files.formats.layout import write_frame
from lbrx.files.formats.output import settle, sync, umask
from lbrx.files.formats.writing import OLD_WEIGHTS, Output
from lbrx.files.stored.notes import Notes

JOURNAL = "journal.jsonl"
FILES = "files"
_PAGE = 512  # words
_CACHED = 64  # pages, which stay in a processor's cache between two passes


class PartialOutput:
    """The files of an output until they are complete. Several threads may write."""

    def __init__(self, output: Output, resume: bool, fingerprint: str) -> None:
        """The files are in an inner folder, which gets the output's name if the output is a
        folder."""
        self.output = output
        self.fingerprint = fingerprint
        self.folder = partial_folder(output)
        try:
            with suppress(FileExistsError):  # if it is a file, the next line names the problem
                output.path.parent.mkdir(parents=True)
            own = PrivateFolder.locked(self.folder, JOURNAL)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise FormatError(f"{output.path} cannot be written: {reason}") from problem
        self._own: PrivateFolder | None = own
        self._folder, self._journal, self._inner = own.handle, own.lock, -1
        self._files: dict[str, int] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self.notes: dict[int, Notes] = {}
        """What was noted while the pieces were computed, by number."""
        try:
            self.done = self._journalled(fingerprint) if resume else {}
            if not self.done:
                self._start(fingerprint)
            self._open(new=not self.done)
        except BaseException:
            self.close()
            raise

    @property
    def staged(self) -> Path:
        """The complete output before it has its name."""
        inner = self.folder / FILES
        return inner if self.output.is_folder else inner / self.output.path.name

    def _journalled(self, fingerprint: str) -> dict[int, int]:
        """Checksums of the pieces in the journal."""
        with open(os.dup(self._journal), "rb") as file:
            lines = [line for line in file.read().splitlines() if line]
        if not lines:
            return {}
        if _parsed(lines[0]).get("fingerprint") != fingerprint:
            raise FormatError(
                f"{self.folder} belongs to another conversion, or the source has changed: "
                "start again without --resume"
            )
        result = {}
        for entry in map(_parsed, lines[1:]):
            match entry:
                case {"piece": int(piece), "sum": int(total), **rest} if piece >= 0:
                    result[piece] = total
                    self.notes[piece] = rest.get("notes", [])
        return result

    def _start(self, fingerprint: str) -> None:
        os.ftruncate(self._journal, 0)
        clear(self._folder, keep=JOURNAL)
        self._note({"fingerprint": fingerprint})

    def _open(self, new: bool) -> None:
        self._inner = open_folder(FILES, within=self._folder)
        for name, layout in self.output.layouts.items():
            handle = (
                create_file(self._inner, name)
                if new
                else open_file(self.folder / FILES, self._inner, name)
            )
            self._files[name] = handle
            os.ftruncate(handle, layout.nbytes)
            self._places |= {slot.name: (handle, offset) for slot, offset in layout.tensors}

    def _note(self, entry: dict[str, Any]) -> None:
        # An earlier line may lack its end.
        os.write(self._journal, f"\n{json.dumps(entry)}\n".encode())

    def write(self, slot: str, at: int, data: memoryview) -> None:
        """Write bytes of a stored tensor, starting at offset `at` within it."""
        handle, offset = self._places[slot]
        write_all(handle, data, offset + at)

    def read(self, slot: str, at: int, nbytes: int) -> bytes:
        handle, offset = self._places[slot]
        return os.pread(handle, nbytes, offset + at)

    def finished(self, piece: int, total: int) -> None:
        """Write to the journal that a piece has been written, and its notes."""
        notes = self.notes.get(piece)
        self._note({"piece": piece, "sum": total, **({"notes": notes} if notes else {})})

    def complete(self, late: Mapping[str, bytes]) -> None:
        """Write the rest of the files, with those that were made `late`. They are then at
        `staged`."""
        for name, layout in self.output.layouts.items():
            with open(os.dup(self._files[name]), "r+b") as file:
                write_frame(file, layout)
        for name, content in {**self.output.files, **late}.items():
            if name in os.listdir(self._inner):  # of an earlier run
                os.unlink(name, dir_fd=self._inner)
            self._files[name] = create_file(self._inner, name)
            with open(os.dup(self._files[name]), "wb") as file:
                file.write(content)

    def publish(self, durable: bool) -> None:
        """Give the files their names and the permissions of the umask, and remove the folder.

        If `durable`, the system has stored files and folder before the renaming, and the new names
        on return.
        """
        mask, path = umask(), self.output.path
        for handle in self._files.values():
            os.fchmod(handle, 0o666 & ~mask)
        if durable:
            for handle in (*self._files.values(), self._inner):
                os.fsync(handle)
        if self.output.is_folder:
            existed = path.exists()
            os.fchmod(self._inner, 0o777 & ~mask)
            settle(self.staged, path, OLD_WEIGHTS)
            changed = path if existed else path.parent
        else:
            os.replace(self.staged, path)
            changed = path.parent
        if durable:
            sync(changed)
        self.remove()

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        self._close_files()
        if self._own is not None:
            own, self._own = self._own, None
            own.remove()

    def close(self) -> None:
        """Leave the folder to a later run."""
        self._close_files()
        if self._own is not None:
            own, self._own = self._own, None
            own.close()

    def _close_files(self) -> None:
        handles = [*self._files.values(), *([self._inner] if self._inner >= 0 else [])]
        self._files, self._inner = {}, -1
        for handle in handles:
            os.close(handle)


def write_all(handle: int, data: memoryview, at: int) -> None:
    """Write bytes to a file, from offset `at` on; the system may write a part of them at a time."""
    while data:
        written = os.pwrite(handle, data, at)
        data, at = data[written:], at + written


def partial_folder(output: Output) -> Path:
    """The hidden folder of an unfinished output."""
    return output.path.with_name(f".{output.path.name}.partial")


def _parsed(line: bytes) -> dict[str, Any]:
    """An entry; empty for a line that was not completely written or is damaged."""
    try:
        entry = stored_json.parsed(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def checksum(parts: Iterable[bytes | memoryview]) -> int:
    """A checksum of bytes and their order, at nearly the speed of memory. It finds pages that did
    not reach the disk or are in each other's place, not deliberate changes."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        whole = len(part) // (8 * _PAGE) * (8 * _PAGE)
        words = np.frombuffer(part[:whole], "<u8").reshape(-1, _PAGE)
        # Two words that change places are in another page, or in another column of their page.
        columns, pages = np.zeros(_PAGE, np.uint64), np.empty(len(words), np.uint64)
        for at in range(0, len(words), _CACHED):
            some = words[at : at + _CACHED]
            columns += some.sum(axis=0, dtype=np.uint64)
            some.sum(axis=1, dtype=np.uint64, out=pages[at : at + _CACHED])
        digest.update(columns.tobytes() + pages.tobytes())
        digest.update(part[whole:])
        digest.update(len(part).to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


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
