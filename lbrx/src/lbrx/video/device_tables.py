"""Tables of a conversion on the device: made once, and kept for further batches."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx.kernels.arrays import long_lived, whole_buffer
from lbrx.metal import Buffer, Context
from lbrx.ops import Spec

K = TypeVar("K", bound=Hashable)
REMEMBERED = 64


@dataclass(frozen=True, eq=False)
class Tables:
    """A record, and which samples are weighted how, as kernels take them."""

    record: bytes
    """The C struct of the shader, without `height`, `width` and `run` at its start."""
    firsts: NDArray[np.int32]
    weights: NDArray[np.float32]


class DeviceTables(Generic[K]):
    """The tables of conversions in memory that no replay moves: positions, then weights."""

    def __init__(self, make: Callable[[K], Tables]) -> None:
        self._make = make
        self._known: weakref.WeakKeyDictionary[Context, dict[K, tuple[Buffer, Buffer]]] = (
            weakref.WeakKeyDictionary()
        )

    def get(self, gpu: Context, what: K) -> tuple[Buffer, Buffer]:
        known = self._known.setdefault(gpu, {})
        if what not in known:
            if len(known) >= REMEMBERED:
                known.pop(next(iter(known)))
            made = self._make(what)
            known[what] = _sent(gpu, made.firsts), _sent(gpu, made.weights)
        return known[what]


def _sent(gpu: Context, values: NDArray[np.float32] | NDArray[np.int32]) -> Buffer:
    kept = whole_buffer(long_lived(gpu, Spec(values.shape, dt.parse(values.dtype)), "video tables"))
    gpu.write(kept, values)
    return kept
