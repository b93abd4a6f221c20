"""Constants of a program: views of weights, and decompressed weights within a bound of memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from softcoreml import mil
from softcoreml.errors import ModelError
from softcoreml.format.weights import Weights
from softcoreml.interpreter.rounding import as_argument

DECOMPRESSED_BYTES = 2 << 30
"""Bytes of decompressed weights that one model keeps; beyond it they are computed at each use."""


class Decompressed:
    """Results of constexpr operations, the least recently used dropped first."""

    def __init__(self, limit: int = DECOMPRESSED_BYTES) -> None:
        self.limit = limit
        self.nbytes = 0
        self._kept: OrderedDict[object, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object, compute: Callable[[], Any]) -> Any:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = compute()
        size = _size(value)
        if size > self.limit:
            return value
        with self._lock:
            if key not in self._kept:
                self._kept[key] = value
                self.nbytes += size
            while self.nbytes > self.limit:
                _, dropped = self._kept.popitem(last=False)
                self.nbytes -= _size(dropped)
        return value


def _size(value: Any) -> int:
    return sum(_size(one) for one in value) if isinstance(value, tuple) else int(value.nbytes)


class Constant:
    """A value that a program holds. Small ones are ready, packed ones are unpacked at each use."""

    __slots__ = ("compute", "ready")

    def __init__(self, ready: Any = None, compute: Callable[[], Any] | None = None) -> None:
        self.ready = ready
        self.compute = compute

    def get(self) -> Any:
        return self.ready if self.compute is None else self.compute()


def constant(value: mil.Value, weights: Weights) -> Constant:
    """The constant of a value of the program; blobs are checked now."""
    kind, data = value.type, value.data
    if isinstance(data, mil.Blob):
        if not isinstance(kind, mil.TensorType):
            raise ModelError(f"a constant of type {kind} cannot be in a weight file")
        array = weights.array(kind, data)
        if kind.dtype in mil.SUB_BYTE_BITS:
            return Constant(compute=lambda: weights.array(kind, data))
        return Constant(as_argument(array))
    if isinstance(data, np.ndarray):
        data.flags.writeable = False
    return Constant(_plain(value))


def _plain(value: mil.Value) -> Any:
    if isinstance(value.data, tuple):
        return tuple(_plain(one) for one in value.data)
    if isinstance(value.data, dict):
        return {key: _plain(one) for key, one in value.data.items()}
    return as_argument(value.data)
