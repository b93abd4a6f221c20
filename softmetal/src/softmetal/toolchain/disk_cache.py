"""A content-addressed cache on disk, shared by processes.

An entry is a folder named by its key. It is filled under a temporary name and renamed when it is
complete: a reader sees all of it or nothing, also when another process writes the same entry or is
killed. Used entries are touched; above the size limit the least recently used are removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from softmetal import env

FORMAT = 1
_CHECK_SECONDS = 300  # between two measurements of the total size, by all processes together
_STALE_SECONDS = 3600  # a temporary folder older than this belonged to a process that died


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One folder of the cache."""

    path: Path
    size: int
    used: float


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
        """The folder of an entry, None if it is missing. Finding it counts as a use."""
        path = self.root / kind / key[:2] / key
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    def insert(self, kind: str, key: str, fill: Callable[[Path], None]) -> Path:
        """Fill a new entry. If another process has inserted it meanwhile, that entry is used."""
        final = self.root / kind / key[:2] / key
        staging_root = self.root / "tmp"
        staging_root.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=staging_root))
        try:
            fill(staging)
            final.parent.mkdir(parents=True, exist_ok=True)
            try:
                staging.rename(final)
            except OSError:
                if not final.is_dir():
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        if self._is_due():
            self.evict()
        return final

    def _is_due(self) -> bool:
        """Whether it is time to measure the total size, which takes seconds for many entries."""
        stamp = self.root / "checked"
        if stamp.exists() and _age(stamp) < _CHECK_SECONDS:
            return False
        stamp.touch()
        return True

    def get(self, kind: str, key: str, fill: Callable[[Path], None]) -> Path:
        """Find an entry, or fill it."""
        return self.find(kind, key) or self.insert(kind, key, fill)

    def entries(self) -> Iterator[CacheEntry]:
        """All complete entries."""
        for folder in self.root.glob("*/??/*"):
            try:
                size = sum(file.stat().st_size for file in os.scandir(folder))
                yield CacheEntry(folder, size, folder.stat().st_mtime)
            except OSError:  # evicted meanwhile by another process
                continue

    def evict(self) -> None:
        """Remove the least recently used entries above the limit, and what dead processes left."""
        for leftover in (self.root / "tmp").glob("*"):
            if _age(leftover) > _STALE_SECONDS:
                shutil.rmtree(leftover, ignore_errors=True)
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        excess = sum(entry.size for entry in entries) - self.limit
        for entry in entries:
            if excess <= 0:
                break
            self._remove(entry)
            excess -= entry.size

    def clear(self) -> int:
        """Remove everything; returns how many entries there were."""
        entries = list(self.entries())
        for entry in entries:
            self._remove(entry)
        return len(entries)

    def _remove(self, entry: CacheEntry) -> None:
        # Renamed first, so that no reader finds it half removed.
        grave = self.root / "tmp" / f"gone-{os.getpid()}-{time.monotonic_ns()}"
        try:
            grave.parent.mkdir(parents=True, exist_ok=True)
            entry.path.rename(grave)
        except OSError:  # another process removed it
            return
        shutil.rmtree(grave, ignore_errors=True)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def default() -> DiskCache:
    """The cache that SOFTMETAL_CACHE and SOFTMETAL_CACHE_LIMIT describe."""
    return DiskCache(env.cache_dir(), env.cache_limit())
