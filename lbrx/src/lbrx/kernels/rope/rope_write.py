"""RoPE and writes to caches in one launch: what attention needs of a step's tokens.

Queries and keys are rotated, and keys and values are written to their places in a cache. For a few
tokens the time of separate kernels is that of their launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Record, UInt
from lbrx.device_info import DeviceKind
from lbrx.kernels.arrays import buffer_of, kernel_name, whole_buffer
from lbrx.kernels.movement import movement
from lbrx.kernels.overwrite import overwrite
from lbrx.kernels.rope import rope
from lbrx.metal import DeviceInfo
from lbrx.ops import Attributes, Spec

PARTS = 3  # of a launch, as in rope_write.h
MOST_ELEMENTS = 1 << 19  # of all parts: larger ones keep a GPU busy by themselves
THREADS = 128
VECTOR = 8  # bytes, as in rope_write.h
TYPES = (dt.float32, dt.float16, dt.bfloat16)
NO_SPEEDS = bytes(8)


class RowPartRecord(Record, header="rope_write"):
    rope: rope.RopeRecord  # no pairs: rows that are not rotated
    capacity: UInt  # rows of a cache, for each (outer, repeat); 0 for a result
    threads: UInt


@dataclass(frozen=True)
class RowPart:
    """Rows (..., count, features) that are rotated or not, and written to a cache or not."""

    x: Array
    spec: Spec
    """Of the result: the rows, or the cache after they are written."""
    cache: Array | None
    pairs: int
    """Pairs of features that are rotated; 0 for none."""


@dataclass(frozen=True)
class RowRotation:
    """How the rotated parts of a launch are rotated."""

    attributes: Attributes
    factors: Array | None


def takes(dtype: Dtype, features: int, pairs: int, positions: Dtype) -> bool:
    """Whether the kernel can take rows: their features are whole vectors."""
    whole = all(n * dtype.itemsize % VECTOR == 0 for n in (features, pairs))
    return whole and features > 0 and dtype in TYPES and positions in (dt.int32, dt.int64)


def is_worthwhile(info: DeviceInfo, elements: int) -> bool:
    """Whether one launch is better than several: a CPU's kernels of many heads share cosines."""
    return DeviceKind.SIMD.suits(info) and elements <= MOST_ELEMENTS


@dataclass(frozen=True)
class _Rows:
    """A part as the kernel reads and writes it."""

    x: Array  # (outer, repeat, inner, features)
    places: Array  # (outer, repeat, inner)
    pairs: int
    capacity: int  # of the cache; 0 for none
    result: Array

    @property
    def threads(self) -> int:
        features, size = self.x.layout.shape[-1], self.x.dtype.itemsize
        return math.prod(self.places.layout.shape) * (features - self.pairs) * size // VECTOR

    def record(self) -> RowPartRecord:
        """The part as the kernel reads it."""
        rotated = rope.record(self.x, self.places, self.pairs)
        return RowPartRecord(rope=rotated, capacity=self.capacity, threads=self.threads)


def compute(
    b: Builder, parts: Sequence[RowPart], positions: Array, rotation: RowRotation | None
) -> tuple[Array, ...]:
    """Rotate and write the rows of all parts; the results, one for each part."""
    positions = b.placed(positions)
    rows = [_rows(b, part, positions) for part in parts]
    _dispatch(b, rows, positions, rotation)
    return tuple(each.result for each in rows)


def _rows(b: Builder, part: RowPart, positions: Array) -> _Rows:
    rows = b.placed(part.x)
    x, places = rope.by_position(b, rows, positions)
    if not rope.is_aligned(x, part.pairs, VECTOR):
        aligned = b.result(Spec(rows.layout.shape, rows.dtype))
        movement.copy(b, rows, aligned)
        x, places = rope.by_position(b, aligned, positions)
    if part.cache is None:
        return _Rows(x, places, part.pairs, 0, b.result(part.spec))
    result = overwrite.target(b, part.cache, part.spec)
    return _Rows(x, places, part.pairs, part.spec.shape[-2], result)


def _dispatch(
    b: Builder, rows: Sequence[_Rows], positions: Array, rotation: RowRotation | None
) -> None:
    factors, speeds, interleaved = None, NO_SPEEDS, False
    if rotation is not None:
        attributes = rotation.attributes
        factors = rope.plain_factors(b, rotation.factors)
        pairs = max(each.pairs for each in rows)
        speeds = rope.speeds_of(pairs, float(attributes["base"]), float(attributes["scale"]))
        interleaved = bool(attributes["interleaved"])
    filled = [*rows, *[rows[-1]] * (PARTS - len(rows))]  # as many as the kernel has arguments for
    threads = max(each.threads for each in rows)
    b.named(rope.family.name, "write", lambda: "takes rows with their writes").launch(
        b.pipeline(
            "rope_write",
            kernel_name("rope", "write", rows[0].x.dtype, positions.dtype),
            rope.RopeConstants(INTERLEAVED=interleaved, HAS_FACTORS=factors is not None),
            safe_math=True,
        ),
        [
            *(whole_buffer(each.x) for each in filled),
            *(whole_buffer(each.result) for each in filled),
            whole_buffer(positions),
            None if factors is None else buffer_of(factors),
            speeds,
            b"".join(each.record() for each in rows),
        ],
        (-(-threads // THREADS) * THREADS, len(rows), 1),
        (THREADS, 1, 1),
    )
