"""Sums over whole tensors, which methods compute on the host in float64.

Each sum is one kernel that reads its operands once. It is evaluated by itself: a graph of several
sums would store what they share.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from lbrx import dtype as dt
from lbrx.tensor import Tensor
from lbrx.tensor.evaluation import start


def as_rows(x: Tensor) -> Tensor:
    """x as a matrix of rows along its last axis."""
    return x.reshape(-1, x.shape[-1]) if x.ndim and x.size else x.reshape(1, x.size)


def total(x: Tensor) -> float:
    """The sum of all elements: rows in float32 on the device, then float64."""
    return _sum_of_rows(as_rows(x).sum(axis=-1))


def _sum_of_rows(sums: Tensor) -> float:
    return float(sums.numpy().sum(dtype=np.float64))


def stored(x: Tensor) -> Tensor:
    """x, computed by kernels of its own: those that use it would compute it for each element."""
    start(x)
    return x


def gram(vectors: list[Tensor]) -> NDArray[np.float64]:
    """The inner products of all pairs."""
    rows = [as_rows(x) for x in vectors]
    pairs = [*combinations_with_replacement(range(len(rows)), 2)]
    # All are started, one after the other, before the first is waited for.
    sums = [stored((rows[i] * rows[j]).sum(axis=-1)) for i, j in pairs]
    result = np.empty((len(rows), len(rows)))
    for (i, j), products in zip(pairs, sums, strict=True):
        result[i, j] = result[j, i] = _sum_of_rows(products)
    return result


def differences(tensors: tuple[Tensor, ...], base: Tensor | None) -> list[Tensor]:
    """The tensors in float32, minus the base if there is one."""
    if base is None:
        return [x.astype(dt.float32) for x in tensors]
    start = base.astype(dt.float32)
    return [x - start for x in tensors]
