"""Sums over whole tensors, which methods compute on the host in float64.

Each sum is one kernel that reads its operands once. It is evaluated by itself: a graph of several
sums would store what they share.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.tensors import Tensor
from lbrx.tensors.core import apply
from lbrx.tensors.evaluation import start


def as_rows(x: Tensor) -> Tensor:
    """x as a matrix of rows along its last axis."""
    return x.reshape(-1, x.shape[-1]) if x.ndim and x.size else x.reshape(1, x.size)


def total(x: Tensor) -> float:
    """The sum of all elements: rows in float32 on the device, then float64."""
    return float(as_rows(x).sum(axis=-1).numpy().sum(dtype=np.float64))


def stored(x: Tensor) -> Tensor:
    """x, computed by kernels of its own: those that use it would compute it for each element."""
    start(x)
    return x


def gram(tensors: Sequence[Tensor], base: Tensor | None = None) -> NDArray[np.float64]:
    """The inner products of all pairs of two or more tensors, or of their differences from a base:
    one kernel for each pair."""
    more = () if base is None else (base,)
    pairs = [*combinations(range(len(tensors)), 2)]
    # All are started before the first is waited for.
    sums = [stored(apply("row_products", tensors[i], tensors[j], *more)) for i, j in pairs]
    result = np.empty((len(tensors), len(tensors)))
    for (i, j), rows in zip(pairs, sums, strict=True):
        result[i, i], result[i, j], result[j, j] = rows.numpy().sum(axis=0, dtype=np.float64)
        result[j, i] = result[i, j]
    return result


def differences(tensors: tuple[Tensor, ...], base: Tensor | None) -> list[Tensor]:
    """The tensors in float32, minus the base if there is one."""
    if base is None:
        return [x.astype(dt.float32) for x in tensors]
    start = base.astype(dt.float32)
    return [x - start for x in tensors]
