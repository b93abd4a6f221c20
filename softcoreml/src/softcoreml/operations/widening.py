"""float32 copies of float16 weights, made once for each weight and within a bound of memory."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from softcoreml.operations.arguments import Array, widen

KEPT_BYTES = 1 << 30
"""Bytes of copies that are kept in all; beyond them a weight is widened at each use."""
_SMALL = 4096


class Widened:
    """Copies by the identity of their weights. A copy goes when its weight does."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._kept: dict[int, tuple[weakref.ref[Array], Array]] = {}
        self._lock = threading.RLock()  # a weight may be collected while the lock is held

    def get(self, weight: Array) -> Array:
        """The weight in float32; a copy that is shared must not be written."""
        key = id(weight)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept[0]() is weight:
                return kept[1]
        wide = widen(weight)
        wide.flags.writeable = False
        with self._lock:
            if self.nbytes + wide.nbytes <= self.limit and key not in self._kept:
                self._kept[key] = weakref.ref(weight, lambda _: self._forget(key)), wide
                self.nbytes += wide.nbytes
        return wide

    def _forget(self, key: int) -> None:
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self.nbytes -= kept[1].nbytes


_WIDENED = Widened(KEPT_BYTES)


def _never_changes(x: Array) -> bool:
    """Whether nobody can write x: it and everything it is a view of are read-only."""
    part: Any = x
    while isinstance(part, np.ndarray):
        if part.flags.writeable:
            return False
        part = part.base
    return part is None or memoryview(part).readonly


def widen_weight(x: Array) -> Array:
    """`widen`, with a copy that is kept for large weights that never change."""
    x = np.asarray(x)
    if x.dtype != np.float16 or x.size < _SMALL or not _never_changes(x):
        return widen(x)
    return _WIDENED.get(x)
