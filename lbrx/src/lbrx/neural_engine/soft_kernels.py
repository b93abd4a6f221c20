"""Kernels that lbrx gives softcoreml: the same values as its definitions, computed faster.

A language model's weights are fp16 constants that every prediction multiplies. They are converted
to float32 once and kept, up to a bound of memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT_BYTES = 4 << 30
"""Bytes of widened weights that are kept; beyond it a weight is converted at each use."""
SMALLEST = 1 << 14  # elements of a weight that is kept


class _Widened:
    """float32 copies of constant arrays, dropped with the arrays that they were made from."""

    def __init__(self) -> None:
        self._kept: dict[int, NDArray[np.float32]] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, array: NDArray[Any]) -> NDArray[np.float32]:
        if array.dtype != np.float16:
            return array.astype(np.float32, copy=False)
        known = self._kept.get(id(array))
        if known is not None:
            return known
        made = array.astype(np.float32)
        # Only a read-only array is a constant: another one may change after the copy.
        if array.size >= SMALLEST and not array.flags.writeable:
            self._keep(array, made)
        return made

    def _keep(self, array: NDArray[Any], made: NDArray[np.float32]) -> None:
        with self._lock:
            if self._nbytes + made.nbytes > KEPT_BYTES or id(array) in self._kept:
                return
            weakref.finalize(array, self._drop, id(array))
            self._kept[id(array)] = made
            self._nbytes += made.nbytes

    def _drop(self, key: int) -> None:
        dropped = self._kept.pop(key, None)
        if dropped is not None:
            self._nbytes -= dropped.nbytes


_widened = _Widened()


def pointwise_conv(
    *,
    x: NDArray[Any],
    weight: NDArray[Any],
    bias: NDArray[Any] | None = None,
    groups: Any = 1,
    strides: Any = None,
    pad: Any = None,
    **others: Any,
) -> Any:
    """A 1x1 convolution of (1, channels, 1, sequence) as one matrix product in float32."""
    moves = strides is not None and np.any(np.asarray(strides) != 1)
    plain = not moves and (pad is None or not np.any(pad))
    if x.ndim != 4 or x.shape[0] != 1 or weight.shape[2:] != (1, 1) or int(groups) != 1:
        return NotImplemented
    if not plain or x.shape[1] != weight.shape[1]:
        return NotImplemented
    del others  # dilations and the kind of padding do not concern a 1x1 kernel
    columns = x.reshape(x.shape[1], -1).astype(np.float32)
    result = _widened.get(weight).reshape(weight.shape[:2]) @ columns
    if bias is not None:
        result += np.asarray(bias, np.float32).reshape(-1, 1)
    return result.reshape(1, weight.shape[0], *x.shape[2:])


KERNELS: dict[str, Callable[..., Any]] = {"conv": pointwise_conv}
"""By the name of the operation that they replace."""
