"""Rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Layout
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import LONG, UINT, Bool, Constants, Long, Record, UInt
from lbrx.device_info import DeviceKind
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, kernel_name, size_class, whole_buffer
from lbrx.kernels.launching import CHUNK_BYTES, SMALL_GROUP
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer
from lbrx.metal.library import PipelineRequest
from lbrx.ops import Attributes, Spec

ROW_AXES = 3  # (outer, repeat, inner), as in `rope.h`
SERIAL_ROWS = 8  # rows of each head per serial thread
CHUNK_THREADS = 128
SHARING = 4  # repeats whose features a thread rotates by the same angles


class RopeConstants(Constants, header="rope"):
    INTERLEAVED: Bool  # features of a pair are neighbours
    HAS_FACTORS: Bool


class RopeRecord(Record, header="rope"):
    """Rows are (outer, repeat, inner)."""

    start: Long  # of x in elements
    strides: Annotated[Sequence[int], LONG[3]]
    position: Long
    position_strides: Annotated[Sequence[int], LONG[3]]
    sizes: Annotated[Sequence[int], UINT[3]]
    pairs: UInt
    features: UInt


@dataclass(frozen=True)
class RopeProblem:
    """The problem: the number of rows, and the features that are rotated."""

    dtype: Dtype
    position_dtype: Dtype
    rows: tuple[int, ...]
    pairs: int
    features: int
    interleaved: bool
    has_factors: bool
    shared: bool = True
    """Whether all repeats of a row have its position."""
    aligned: bool = False
    """Whether rows and halves of rows start at multiples of a vector."""

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        return f"{self.dtype} {size_class(*self.rows, self.features)}"


@dataclass(frozen=True)
class RopeOperands:
    """What RoPE reads and writes."""

    x: Array
    positions: Array
    factors: Array | None
    speeds: bytes
    out: Array

    def arguments(self, b: Builder, problem: RopeProblem) -> list[Buffer | bytes | None]:
        """In the order of the kernels' parameters."""
        factors = None if self.factors is None else buffer_of(self.factors)
        arrays = whole_buffer(self.x), whole_buffer(self.positions)
        fields = record(self.x, self.positions, problem.pairs)
        return [*arrays, factors, self.speeds, whole_buffer(self.out), fields]


def record(x: Array, positions: Array, pairs: int) -> RopeRecord:
    """Of rows and positions as `by_position` gives them."""
    rows, places = x.layout, positions.layout
    return RopeRecord(
        start=rows.offset,
        strides=rows.strides[:-1],
        position=places.offset,
        position_strides=places.strides,
        sizes=places.shape,
        pairs=pairs,
        features=rows.shape[-1],
    )


family: KernelFamily[RopeProblem] = KernelFamily("rope")


@computes("rope")
def run(call: Call) -> tuple[Array, ...]:
    """Compute `rope`: rotate pairs of features by their positions."""
    b, attributes = call.builder, call.attributes
    x, positions, factors = [*call.inputs, None][:3]
    assert x is not None
    assert positions is not None
    (spec,) = call.outputs
    x = layouts.cast(b, b.placed(x), spec.dtype)
    features = spec.shape[-1]
    pairs = rotated_pairs(attributes, features)
    if pairs == 0:
        return (x,)
    out = b.result(spec)
    if out.layout.size == 0:
        return (out,)
    x, positions = by_position(b, x, counted(b, positions))
    problem = RopeProblem(
        *(spec.dtype, positions.dtype, positions.layout.shape, pairs, features),
        interleaved=bool(attributes["interleaved"]),
        has_factors=factors is not None,
        shared=positions.layout.strides[1] == 0 or positions.layout.shape[1] == 1,
        aligned=is_aligned(x, pairs),
    )
    speeds = speeds_of(pairs, float(attributes["base"]), float(attributes["scale"]))
    operands = RopeOperands(x, positions, plain_factors(b, factors), speeds, out)
    family.run(b, problem, operands)
    return (out,)


def plain_factors(b: Builder, factors: Array | None) -> Array | None:
    """Factors as the kernels read them."""
    if factors is None:
        return None
    return layouts.contiguous(b, layouts.cast(b, b.placed(factors), dt.float32))


def rotated_pairs(attributes: Attributes, features: int) -> int:
    """Pairs of features that are rotated."""
    dims = attributes["dims"]
    return int(features if dims is None else dims) // 2


def counted(b: Builder, positions: Array) -> Array:
    """Positions as int32 or int64."""
    positions = b.placed(positions)
    if positions.dtype in (dt.int32, dt.int64):
        return positions
    wide = positions.dtype in (dt.uint32, dt.uint64)
    return layouts.cast(b, positions, dt.int64 if wide else dt.int32)


@lru_cache(maxsize=64)
def speeds_of(pairs: int, base: float, scale: float) -> bytes:
    """Turns per position, each as two floats whose sum is more precise."""
    exponents = -np.arange(pairs, dtype=np.float64) / pairs
    turns = scale * base**exponents / (2 * math.pi)
    high = turns.astype(np.float32)
    return np.stack([high, (turns - high).astype(np.float32)], -1).tobytes()


def by_position(b: Builder, x: Array, positions: Array) -> tuple[Array, Array]:
    """x as (outer, repeat, inner, features), and its positions as (outer, repeat, inner)."""
    *rows, features = x.layout.shape
    rows = [1] * (ROW_AXES - len(rows)) + rows
    outer = math.prod(rows[: 1 - ROW_AXES])
    shape = (outer, *rows[1 - ROW_AXES :])
    full = sh.expand(positions.layout, x.layout.shape[:-1])
    turned = _view(b, x, (*shape, features), unit=True)
    return turned, _view(b, replace(positions, layout=full), shape)


def _view(b: Builder, array: Array, shape: Sequence[int], *, unit: bool = False) -> Array:
    """The array in another shape with contiguous features; a copy if strides do not allow it."""
    layout = sh.reshape(array.layout, shape)
    if layout is None or (unit and not _is_unit(layout)):
        array = layouts.contiguous(b, array)
        layout = sh.reshape(array.layout, shape)
        assert layout is not None
    return replace(array, layout=layout)


def _is_unit(layout: Layout) -> bool:
    return layout.shape[-1] == 1 or layout.strides[-1] == 1


def is_aligned(x: Array, pairs: int, vector: int = CHUNK_BYTES) -> bool:
    """Whether rows and halves of rows start at multiples of a vector."""
    layout, width = x.layout, x.dtype.itemsize
    counts = (pairs, layout.shape[-1], layout.offset, *layout.strides[:-1])
    offset = whole_buffer(x).offset
    return offset % vector == 0 and all(n * width % vector == 0 for n in counts)


def _pipeline(b: Builder, problem: RopeProblem, variant: str) -> PipelineRequest:
    name = kernel_name("rope", variant, problem.dtype, problem.position_dtype)
    constants = RopeConstants(INTERLEAVED=problem.interleaved, HAS_FACTORS=problem.has_factors)
    return b.pipeline("rope", name, constants, safe_math=True)


@family.variant("pairs")
def pairs(b: Builder, problem: RopeProblem, operands: RopeOperands) -> None:
    """One thread per pair of features."""
    outer, repeat, inner = problem.rows
    grid = (problem.features - problem.pairs, inner, repeat * outer)
    b.launch(
        _pipeline(b, problem, "pairs"),
        operands.arguments(b, problem),
        grid,
        (min(grid[0], SMALL_GROUP), 1, 1),
    )


@family.variant(
    "chunks",
    can=lambda info, problem: problem.aligned,
    cost=lambda info, problem: 0.5,
    made_for=DeviceKind.SIMD,
)
def chunks(b: Builder, problem: RopeProblem, operands: RopeOperands) -> None:
    """Two vectors of features per thread and repeat."""
    outer, repeat, inner = problem.rows
    length = CHUNK_BYTES // problem.dtype.itemsize
    columns = (problem.features - problem.pairs) // length
    heads = SHARING if problem.shared else 1
    across = min(1 << (columns - 1).bit_length(), CHUNK_THREADS)
    down = CHUNK_THREADS // across
    grid = (-(-columns // across) * across, -(-inner // down) * down, -(-repeat // heads) * outer)
    b.launch(
        _pipeline(b, problem, f"chunks{heads}"),
        operands.arguments(b, problem),
        grid,
        (across, down, 1),
    )


@family.variant("serial", cost=lambda info, problem: 0.1, made_for=DeviceKind.WIDE)
def serial(b: Builder, problem: RopeProblem, operands: RopeOperands) -> None:
    """One thread per group of tokens, for all heads: cosines are computed once."""
    outer, _, inner = problem.rows
    b.launch(
        _pipeline(b, problem, "serial"),
        operands.arguments(b, problem),
        (-(-inner // SERIAL_ROWS), outer, 1),
        (1, 1, 1),
    )


family.samples += [
    Sample(
        "rope",
        (Spec((1, 8, 512, 64), dt.float32), Spec((512,), dt.int32)),
        {"dims": None, "base": 10000.0, "interleaved": False, "scale": 1.0},
    ),
    Sample(
        "rope",
        (Spec((1, 32, 1, 128), dt.float16), Spec((1,), dt.int32)),
        {"dims": None, "base": 500000.0, "interleaved": False, "scale": 1.0},
    ),
]
