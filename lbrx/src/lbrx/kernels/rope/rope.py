"""Rotary position embedding."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, empty, kernel_name, placed, size_class, whole_buffer
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, Context, DeviceInfo, Pipeline
from lbrx.ops import Attributes, Spec
from lbrx.shape import Layout
from lbrx.storage import Array

ROW_AXES = 3  # (outer, repeat, inner), as in `rope.h`
GROUP = 64  # threads along pairs of features
SERIAL_ROWS = 8  # rows of each head per serial thread
CHUNK_BYTES = 16  # of the vectors that a GPU's thread rotates
CHUNK_THREADS = 128
SHARING = 4  # repeats whose features a thread rotates by the same angles
INLINE_BYTES = 4096  # bytes: the most that Metal takes as an inline argument


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

    def arguments(self, gpu: Context, problem: RopeProblem) -> list[Buffer | bytes | None]:
        """In the order of the kernels' parameters."""
        factors = None if self.factors is None else buffer_of(self.factors)
        arrays = whole_buffer(self.x), whole_buffer(self.positions)
        speeds = inline(gpu, self.speeds)
        made = record(self.x, self.positions, problem.pairs)
        return [*arrays, factors, speeds, whole_buffer(self.out), made]


def inline(gpu: Context, speeds: bytes) -> Buffer | bytes:
    """An argument for many bytes."""
    many = len(speeds) > INLINE_BYTES
    return gpu.upload(np.frombuffer(speeds, np.uint8)) if many else speeds


def record(x: Array, positions: Array, pairs: int) -> bytes:
    """The `Rope` record of rope.h, of rows and positions as `by_position` gives them."""
    rows, places = x.layout, positions.layout
    return struct.pack(
        "8q5I4x",
        *(rows.offset, *rows.strides[:-1], places.offset, *places.strides),
        *(*places.shape, pairs, rows.shape[-1]),
    )


family: KernelFamily[RopeProblem] = KernelFamily("rope")


@computes("rope")
def run(call: Call) -> tuple[Array, ...]:
    """Compute `rope`: rotate pairs of features by their positions."""
    gpu, given = call.gpu, call.attributes
    x, positions, factors = [*call.inputs, None][:3]
    assert x is not None
    assert positions is not None
    (spec,) = call.outputs
    x = elementwise.cast(gpu, placed(gpu, x), spec.dtype)
    features = spec.shape[-1]
    pairs = rotated_pairs(given, features)
    if pairs == 0:
        return (x,)
    out = empty(gpu, spec)
    if out.layout.size == 0:
        return (out,)
    x, positions = by_position(gpu, x, counted(gpu, positions))
    problem = RopeProblem(
        *(spec.dtype, positions.dtype, positions.layout.shape, pairs, features),
        interleaved=bool(given["interleaved"]),
        has_factors=factors is not None,
        shared=positions.layout.strides[1] == 0 or positions.layout.shape[1] == 1,
        aligned=is_aligned(x, pairs),
    )
    speeds = speeds_of(pairs, float(given["base"]), float(given["scale"]))
    operands = RopeOperands(x, positions, plain_factors(gpu, factors), speeds, out)
    family.run(gpu, problem, operands)
    return (out,)


def plain_factors(gpu: Context, factors: Array | None) -> Array | None:
    """Factors as the kernels read them."""
    if factors is None:
        return None
    return elementwise.contiguous(gpu, elementwise.cast(gpu, placed(gpu, factors), dt.float32))


def rotated_pairs(attributes: Attributes, features: int) -> int:
    """Pairs of features that are rotated."""
    dims = attributes["dims"]
    return int(features if dims is None else dims) // 2


def counted(gpu: Context, positions: Array) -> Array:
    """Positions as int32 or int64."""
    positions = placed(gpu, positions)
    if positions.dtype in (dt.int32, dt.int64):
        return positions
    wide = positions.dtype in (dt.uint32, dt.uint64)
    return elementwise.cast(gpu, positions, dt.int64 if wide else dt.int32)


@lru_cache(maxsize=64)
def speeds_of(pairs: int, base: float, scale: float) -> bytes:
    """Turns per position, each as two floats whose sum is more precise."""
    exponents = -np.arange(pairs, dtype=np.float64) / pairs
    turns = scale * base**exponents / (2 * math.pi)
    high = turns.astype(np.float32)
    return np.stack([high, (turns - high).astype(np.float32)], -1).tobytes()


def by_position(gpu: Context, x: Array, positions: Array) -> tuple[Array, Array]:
    """x as (outer, repeat, inner, features), and its positions as (outer, repeat, inner)."""
    *rows, features = x.layout.shape
    rows = [1] * (ROW_AXES - len(rows)) + rows
    outer = math.prod(rows[: 1 - ROW_AXES])
    shape = (outer, *rows[1 - ROW_AXES :])
    full = sh.expand(positions.layout, x.layout.shape[:-1])
    turned = _view(gpu, x, (*shape, features), unit=True)
    return turned, _view(gpu, replace(positions, layout=full), shape)


def _view(gpu: Context, array: Array, shape: Sequence[int], *, unit: bool = False) -> Array:
    """The array in another shape with contiguous features; a copy if strides do not allow it."""
    layout = sh.reshape(array.layout, shape)
    if layout is None or (unit and not _is_unit(layout)):
        array = elementwise.contiguous(gpu, array)
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


def _pipeline(gpu: Context, problem: RopeProblem, variant: str) -> Pipeline:
    name = kernel_name("rope", variant, problem.dtype, problem.position_dtype)
    constants = {0: problem.interleaved, 1: problem.has_factors}
    return gpu.shaders.pipeline("rope", name, constants, safe_math=True)


@family.variant("pairs")
def pairs(gpu: Context, problem: RopeProblem, operands: RopeOperands) -> None:
    """One thread per pair of features."""
    outer, repeat, inner = problem.rows
    grid = (problem.features - problem.pairs, inner, repeat * outer)
    gpu.queue.dispatch(
        _pipeline(gpu, problem, "pairs"),
        operands.arguments(gpu, problem),
        grid,
        (min(grid[0], GROUP), 1, 1),
        kernel="rope",
        variant="pairs",
    )


@family.variant(
    "chunks",
    can=lambda info, problem: problem.aligned,
    cost=lambda info, problem: 0.5 if info.simd_hardware else 5.0,
)
def chunks(gpu: Context, problem: RopeProblem, operands: RopeOperands) -> None:
    """Two vectors of features per thread and repeat."""
    outer, repeat, inner = problem.rows
    length = CHUNK_BYTES // problem.dtype.itemsize
    columns = (problem.features - problem.pairs) // length
    heads = SHARING if problem.shared else 1
    across = min(1 << (columns - 1).bit_length(), CHUNK_THREADS)
    down = CHUNK_THREADS // across
    grid = (-(-columns // across) * across, -(-inner // down) * down, -(-repeat // heads) * outer)
    gpu.queue.dispatch(
        _pipeline(gpu, problem, f"chunks{heads}"),
        operands.arguments(gpu, problem),
        grid,
        (across, down, 1),
        kernel="rope",
        variant="chunks",
    )


def _serial_cost(info: DeviceInfo, problem: RopeProblem) -> float:
    return 10.0 if info.simd_hardware else 0.1


@family.variant("serial", cost=_serial_cost)
def serial(gpu: Context, problem: RopeProblem, operands: RopeOperands) -> None:
    """One thread per group of tokens, for all heads: cosines are computed once."""
    outer, _, inner = problem.rows
    gpu.queue.dispatch(
        _pipeline(gpu, problem, "serial"),
        operands.arguments(gpu, problem),
        (-(-inner // SERIAL_ROWS), outer, 1),
        (1, 1, 1),
        kernel="rope",
        variant="serial",
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
