"""Tables of a conversion on the device: made once, and kept for further batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lbrx.extension.kernels import Buffer, Builder, Record, UInt
from lbrx_video.resampling import Taps

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", int, float)
COMPONENTS = 4  # or channels, in arrays of records


class VideoAxisRecord(Record, header="video_axes"):
    """How rows or columns of the results are made of samples."""

    taps: UInt  # samples of a result
    first: UInt  # where the first samples are in the table of positions
    weights: UInt  # where the weights are in the table of weights


class VideoAxesRecord(Record, header="video_axes"):
    """How the results are made of the samples of a component."""

    down: VideoAxisRecord
    right: VideoAxisRecord


def by_component(values: Sequence[V]) -> tuple[V, ...]:
    """Values of components or channels, with zeros for those that are missing."""
    return tuple(values) + (0,) * (COMPONENTS - len(values))


@dataclass(frozen=True, eq=False)
class Tables:
    """Which samples are weighted how, as kernels take them."""

    firsts: NDArray[np.int32]
    weights: NDArray[np.float32]


class AxisTables:
    """The tables of axes, one after the other."""

    def __init__(self) -> None:
        self._firsts: list[NDArray[np.int64]] = []
        self._weights: list[NDArray[np.float64]] = []

    def add(self, found: Taps, multiple: int = 1) -> VideoAxisRecord:
        """Append an axis. Its weights are filled up with zeros to a multiple for each result."""
        weights = np.pad(found.weights, ((0, 0), (0, -found.count % multiple)))
        record = VideoAxisRecord(
            taps=weights.shape[1],
            first=sum(first.size for first in self._firsts),
            weights=sum(each.size for each in self._weights),
        )
        self._firsts.append(found.first)
        self._weights.append(weights.reshape(-1))
        return record

    @property
    def firsts(self) -> NDArray[np.int32]:
        """The first samples of all axes."""
        return np.concatenate(self._firsts).astype(np.int32)

    @property
    def weights(self) -> NDArray[np.float32]:
        """The weights of all axes."""
        return np.concatenate(self._weights).astype(np.float32)


def on_device(
    b: Builder, kind: str, what: K, tables: Callable[[K], Tables]
) -> tuple[Buffer, Buffer]:
    """The tables of a conversion in memory: positions, then weights."""
    firsts = b.kept((kind, what, "firsts"), lambda: tables(what).firsts)
    return firsts, b.kept((kind, what, "weights"), lambda: tables(what).weights)
