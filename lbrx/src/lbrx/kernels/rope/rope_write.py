"""RoPE and writes to caches in one launch: what attention needs of a step's tokens.

Queries and keys are rotated, and keys and values are written to their places in a cache. For a few
tokens the time of separate kernels is that of their launches.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from lbrx import dtype as dt
from lbrx.dtype import Dtype
from lbrx.kernels import movement, overwrite, rope
from lbrx.kernels.arrays import buffer_of, empty, kernel_name, placed, whole_buffer
from lbrx.metal import Context, DeviceInfo
from lbrx.ops import Attributes, Spec
from lbrx.storage import Array

PARTS = 3  # of a launch, as in rope_write.h
MOST_ELEMENTS = 1 << 19  # of all parts: larger ones keep a GPU busy by themselves
THREADS = 128
VECTOR = 8  # bytes, as in rope_write.h
TYPES = (dt.float32, dt.float16, dt.bfloat16)
NO_SPEEDS = bytes(8)


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
    return info.simd_hardware and elements <= MOST_ELEMENTS


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

    def record(self) -> bytes:
        """The `RowPart` record of rope_write.h."""
        rotated = rope.record(self.x, self.places, self.pairs)
        return rotated + struct.pack("2I", self.capacity, self.threads)


def compute(
    gpu: Context, parts: Sequence[RowPart], positions: Array, rotation: RowRotation | None
) -> tuple[Array, ...]:
    """Rotate and write the rows of all parts; the results, one for each part."""
    positions = placed(gpu, positions)
    rows = [_rows(gpu, part, positions) for part in parts]
    _dispatch(gpu, rows, positions, rotation)
    return tuple(each.result for each in rows)


def _rows(gpu: Context, part: RowPart, positions: Array) -> _Rows:
    given = placed(gpu, part.x)
    x, places = rope.by_position(gpu, given, positions)
    if not rope.is_aligned(x, part.pairs, VECTOR):
        aligned = empty(gpu, Spec(given.layout.shape, given.dtype))
        movement.copy(gpu, given, aligned)
        x, places = rope.by_position(gpu, aligned, positions)
    if part.cache is None:
        return _Rows(x, places, part.pairs, 0, empty(gpu, part.spec))
    result = overwrite.target(gpu, part.cache, part.spec)
    return _Rows(x, places, part.pairs, part.spec.shape[-2], result)


def _dispatch(
    gpu: Context, rows: Sequence[_Rows], positions: Array, rotation: RowRotation | None
) -> None:
    factors, speeds, interleaved = None, NO_SPEEDS, False
    if rotation is not None:
        given = rotation.attributes
        factors = rope.plain_factors(gpu, rotation.factors)
        pairs = max(each.pairs for each in rows)
        speeds = rope.speeds_of(pairs, float(given["base"]), float(given["scale"]))
        interleaved = bool(given["interleaved"])
    filled = [*rows, *[rows[-1]] * (PARTS - len(rows))]  # as many as the kernel has arguments for
    threads = max(each.threads for each in rows)
    gpu.queue.dispatch(
        gpu.shaders.pipeline(
            "rope_write",
            kernel_name("rope", "write", rows[0].x.dtype, positions.dtype),
            {0: interleaved, 1: factors is not None},
            safe_math=True,
        ),
        [
            *(whole_buffer(each.x) for each in filled),
            *(whole_buffer(each.result) for each in filled),
            whole_buffer(positions),
            None if factors is None else buffer_of(factors),
            rope.inline(gpu, speeds),
            b"".join(each.record() for each in rows),
        ],
        (-(-threads // THREADS) * THREADS, len(rows), 1),
        (THREADS, 1, 1),
        kernel="rope",
        variant="write",
    )
