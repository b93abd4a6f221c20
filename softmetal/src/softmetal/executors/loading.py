"""Kernels that are loaded, each once, until nothing uses them."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from softmetal.errors import ToolchainError
from softmetal.types import Artifact

_Key = tuple[Path, frozenset[str]]  # a kernel's file and its checks


def open_library(path: Path, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
    """Load native code from the cache; raises ToolchainError."""
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError as problem:
        raise ToolchainError(not_loadable(path, str(problem))) from None


def not_loadable(path: Path, said: str) -> str:
    """Why a file of the cache cannot be loaded, from what the dynamic linker said."""
    try:
        forbidden = os.statvfs(path).f_flag & os.ST_NOEXEC
    except OSError:
        forbidden = 0
    if forbidden:
        return (
            f"cannot load {path}: its file system is mounted with noexec: set SOFTMETAL_CACHE to a "
            "folder on one that allows execution"
        )
    return f"cannot load {path}: {said}"


class LoadedKernels:
    """Counts the loads of each kernel.

    Finalisers drop kernels at any moment on any thread, so a drop is only noted; the kernel is
    unloaded at the next `load` or `unload_dropped`.
    """

    def __init__(self, load: Callable[[Artifact], int], unload: Callable[[int], None]) -> None:
        self._load = load
        self._unload = unload
        self._lock = Lock()
        self._handles: dict[_Key, int] = {}
        self._loads: dict[int, list[_Key]] = {}  # by handle, one for each load that is not undone
        self._dropped: deque[int] = deque()

    def load(self, artifact: Artifact) -> int:
        key = (artifact.path, artifact.checks)
        with self._lock:
            self._collect()
            if key not in self._handles:
                self._handles[key] = self._load(artifact)
            handle = self._handles[key]
            self._loads.setdefault(handle, []).append(key)
        return handle

    def drop(self, handle: int) -> None:
        self._dropped.append(handle)

    def unload_dropped(self) -> None:
        if self._dropped:
            with self._lock:
                self._collect()

    def _collect(self) -> None:
        while self._dropped:
            handle = self._dropped.popleft()
            key = self._loads[handle].pop()
            if not self._loads[handle]:
                del self._loads[handle], self._handles[key]
                self._unload(handle)
