"""A content-addressed cache on disk, shared by processes.

An entry is a folder named by its key, with a manifest of the lengths and hashes of its files. It is
filled under a temporary name and renamed when it is complete: a reader sees all of it or nothing,
also when another process writes the same entry or is killed. An entry that does not match its
manifest, as after a power failure, or that another user could have written, counts as missing and
is built again: nothing has to be synced to the disk.
Used entries are touched; above the size limit the least recently used are removed.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path

from softmetal import env
from softmetal.toolchain import ownership

FORMAT = 2
_MANIFEST = "manifest"
_CHECK_SECONDS = 300  # between two measurements of the total size, by all processes together
_STALE_SECONDS = 3600  # a temporary folder older than this belonged to a process that died
_REPLACEMENTS = 10  # attempts to replace a damaged entry while other processes do the same

# Files whose content matched their manifest, with what changes when they are written.
_verified: dict[Path, tuple[int, int, int]] = {}


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One folder of the cache."""

    path: Path
    size: int
    used: float

    def is_used_since(self) -> bool:
        """Whether a process has used it since it was listed, or removed it."""
        try:
            return self.path.stat().st_mtime != self.used
        except OSError:
            return True


def key_of(*parts: str | bytes) -> str:
    """A digest of `parts`. Their lengths are part of it, so that (ab, c) and (a, bc) differ."""
    digest = hashlib.sha256(str(FORMAT).encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


class DiskCache:
    """The cache under one folder."""

    def __init__(self, root: Path, limit: int) -> None:
        self.root = root
        self.limit = limit

    def find(self, kind: str, key: str) -> Path | None:
        """The folder of an entry, None if it is missing or damaged. Finding it counts as a use."""
        path = self._place(kind, key)
        if not _is_intact(path):
            return None
        with suppress(OSError):  # a cache that is only read
            os.utime(path)
        return path

    def insert(self, kind: str, key: str, fill: Callable[[Path], None]) -> Path:
        """Fill a new entry. If another process has inserted it meanwhile, that entry is used.

        Raises OSError if the cache cannot be written.
        """
        final = self._place(kind, key)
        staging = self._new_staging()
        try:
            fill(staging)
            _seal(staging, key)
            self._publish(staging, final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        if self._is_due():
            self.evict(keep=final)
        return final

    def get(self, kind: str, key: str, fill: Callable[[Path], None]) -> Path:
        """Find an entry, or fill it."""
        return self.find(kind, key) or self.insert(kind, key, fill)

    def discard(self, kind: str, key: str) -> None:
        """Remove an entry if it is there."""
        self._remove(self._place(kind, key))

    def entries(self) -> Iterator[CacheEntry]:
        """All complete entries."""
        for folder in self.root.glob("*/??/*"):
            try:
                size = sum(file.stat().st_size for file in os.scandir(folder))
                yield CacheEntry(folder, size, folder.stat().st_mtime)
            except OSError:  # evicted meanwhile by another process
                continue

    def evict(self, keep: Path | None = None) -> None:
        """Remove the least recently used entries above the limit except `keep`, and what dead
        processes left."""
        for leftover in (self.root / "tmp").glob("*"):
            if _age(leftover) > _STALE_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        excess = sum(entry.size for entry in entries) - self.limit
        for entry in entries:
            if excess <= 0:
                break
            # Listing many entries takes seconds, in which other processes go on using them.
            if entry.path != keep and not entry.is_used_since():
                self._remove(entry.path)
                excess -= entry.size

    def clear(self) -> int:
        """Remove everything; returns how many entries there were."""
        entries = list(self.entries())
        for entry in entries:
            self._remove(entry.path)
        return len(entries)

    def _place(self, kind: str, key: str) -> Path:
        return self.root / kind / key[:2] / key

    def _new_staging(self) -> Path:
        """A new folder to fill. Damage can have made a file of what should be a folder."""
        folder = self.root / "tmp"
        self._make_folder(folder)
        return Path(tempfile.mkdtemp(dir=folder))

    def _make_folder(self, folder: Path) -> None:
        _make_private(self.root)
        steps = folder.relative_to(self.root).parts
        for step in (self.root.joinpath(*steps[: n + 1]) for n in range(len(steps))):
            # Another process may make a missing one now.
            if os.path.lexists(step) and not _is_own_folder(step):
                self._remove_any(step)
            step.mkdir(mode=0o700, exist_ok=True)

    def _publish(self, staging: Path, final: Path) -> None:
        """Rename a filled folder to its final name, in place of a damaged entry."""
        self._make_folder(final.parent)
        for _ in range(_REPLACEMENTS):
            try:
                staging.rename(final)
                return
            except OSError:
                if _is_intact(final):
                    return
                self._remove(final)
        staging.rename(final)

    def _is_due(self) -> bool:
        """Whether it is time to measure the total size, which takes seconds for many entries."""
        stamp = self.root / "checked"
        if stamp.exists() and abs(_age(stamp)) < _CHECK_SECONDS:
            return False
        try:
            stamp.touch(mode=0o600)
        except OSError:  # without a stamp every insertion would measure
            return False
        return True

    def _remove(self, path: Path) -> None:
        # Renamed first, so that no reader finds it half removed.
        grave = self.root / "tmp" / f"gone-{os.getpid()}-{time.monotonic_ns()}"
        try:
            grave.parent.mkdir(mode=0o700, exist_ok=True)
            path.rename(grave)
        except OSError:  # another process removed it
            return
        self._remove_any(grave)

    @staticmethod
    def _remove_any(path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


# ---- intact entries -----------------------------------------------------------------------------


def _seal(folder: Path, key: str) -> None:
    """Write the manifest of a filled folder."""
    sums = {}
    for file in sorted(folder.iterdir()):
        file.chmod(file.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
        data = file.read_bytes()
        sums[file.name] = [len(data), hashlib.sha256(data).hexdigest()]
    text = json.dumps(sums).encode()
    manifest = folder / _MANIFEST
    manifest.write_bytes(key_of(key, text).encode() + b"\n" + text)
    manifest.chmod(0o644)


def _is_intact(folder: Path) -> bool:
    """Whether an entry is what was inserted. Each file is hashed once in a process."""
    try:
        if not all(map(_is_own_folder, (folder, folder.parent, folder.parent.parent))):
            return False
        manifest = folder / _MANIFEST
        if not _is_own_file(os.lstat(manifest)):
            return False
        digest, _, text = manifest.read_bytes().partition(b"\n")
        if key_of(folder.name, text).encode() != digest:
            return False
        sums = json.loads(text)
        return all(_matches(folder / name, *expected) for name, expected in sums.items())
    except OSError:
        return False


def _is_own_folder(path: Path) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and ownership.distrusted(status) is None


def _is_own_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and ownership.distrusted(status) is None


def _matches(file: Path, size: int, digest: str) -> bool:
    status = os.lstat(file)
    if status.st_size != size or not _is_own_file(status):
        return False
    version = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    if _verified.get(file) != version:
        if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            return False
        _verified[file] = version
    return True


def _make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


# ---- the cache of this process ------------------------------------------------------------------


class ProcessCache(DiskCache):
    """A cache that goes on without its folder: what the folder has and can be trusted is used, and
    what cannot be written there goes to a temporary folder of this process."""

    def find(self, kind: str, key: str) -> Path | None:
        found = super().find(kind, key) if _is_trusted(self.root) else None
        if found is None and _temporary.cache_info().currsize:
            return _temporary().find(kind, key)
        return found

    def insert(self, kind: str, key: str, fill: Callable[[Path], None]) -> Path:
        if self.root not in _refused:
            try:
                _make_private(self.root)
                if _is_trusted(self.root):
                    return super().insert(kind, key, fill)
                why = f"is not trusted: {ownership.distrusted_folder(self.root)}"
            except OSError as problem:
                why = f"cannot be written ({problem.strerror or problem})"
            _refused.add(self.root)
            _notify(f"the cache {self.root} {why}; compiled kernels are kept in "
                    f"{_temporary().root} until this process ends. Set SOFTMETAL_CACHE to a "
                    "folder that only you can write.")  # fmt: skip
        return _temporary().insert(kind, key, fill)


_refused: set[Path] = set()  # folders that this process does not write
_trusted: set[Path] = set()


def _is_trusted(root: Path) -> bool:
    if root not in _trusted and ownership.distrusted_folder(root) is None:
        _trusted.add(root)
    return root in _trusted


@once
def _temporary() -> DiskCache:
    """A private folder that is removed when this process ends."""
    folder, process = tempfile.mkdtemp(prefix="softmetal-"), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return DiskCache(Path(folder), env.cache_limit())


def _notify(text: str) -> None:
    print(f"softmetal: {text}", file=sys.stderr)


def default() -> DiskCache:
    """The cache that SOFTMETAL_CACHE and SOFTMETAL_CACHE_LIMIT describe."""
    return ProcessCache(env.cache_dir(), env.cache_limit())
