"""Rows put into a cache of keys or values: in place, or in a copy of an ordinary tensor."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise, movement
from lbrx.kernels.arrays import empty, kernel_name, placed, size_class, whole_buffer
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.ops import Spec
from lbrx.storage import Array, MetalCache, written_in_place

GROUP = 64  # threads
CHUNK_BYTES = 16  # of rows, which a GPU's thread reads at once
CHUNK_ROWS = 4  # of a thread, as in overwrite.h
UNITS = {"q8_0": 32}  # values per block of a quantized cache


@dataclass(frozen=True)
class OverwriteProblem:
    """A problem: `rows` rows of `depth` values for each plane, which is a head of a batch item."""

    cached: str  # the cache's element type or quantization scheme
    dtype: Dtype
    index_dtype: Dtype
    planes: int
    rows: int
    depth: int
    aligned: bool = False
    """Whether rows and cache start at multiples of a vector."""

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        kinds = f"{self.cached} {self.dtype}"
        return f"{kinds} {size_class(self.planes, self.rows, self.depth)}"


@dataclass(frozen=True)
class OverwriteOperands:
    """The cache that is written, and the rows with their positions in it."""

    cache: Buffer
    rows: Array  # (batch, heads, rows, depth)
    positions: Array  # (batch, heads, rows)
    capacity: int

    def arguments(self, chunk: int = 1) -> list[Buffer | bytes]:
        """The kernels' arguments, in order; rows of values are counted in chunks."""
        rows, positions = self.rows.layout, self.positions.layout
        strides = (stride // chunk for stride in rows.strides[:3])
        record = struct.pack(
            "6q2Q3I4x",
            *(*strides, *positions.strides, rows.offset // chunk, positions.offset),
            *(rows.shape[1], self.capacity, rows.shape[3] // chunk),
        )
        return [self.cache, whole_buffer(self.rows), whole_buffer(self.positions), record]

    def is_aligned(self) -> bool:
        """Whether vectors of 16 bytes of the rows, and what is written of one, start at multiples
        of their size."""
        layout, width = self.rows.layout, self.rows.dtype.itemsize
        counts = (layout.offset, layout.shape[-1], *layout.strides[:-1])
        offsets = (self.cache.offset, whole_buffer(self.rows).offset, *(n * width for n in counts))
        return all(offset % CHUNK_BYTES == 0 for offset in offsets)


family: KernelFamily[OverwriteProblem] = KernelFamily("overwrite")


@computes("overwrite")
def run(call: Call) -> tuple[Array, ...]:
    """Write the rows; the result is the cache's own memory, or a copy of an ordinary array."""
    (spec,) = call.outputs
    return _run(call, spec.dtype.name, spec.dtype)


@computes("overwrite_blocks")
def run_blocks(call: Call) -> tuple[Array, ...]:
    """The same for a cache of quantized values."""
    return _run(call, call.attributes["scheme"], dt.float16)


def _run(call: Call, cached: str, short: Dtype) -> tuple[Array, ...]:
    """Kernels exist for rows of float32 and of the type `short`."""
    cache, rows, positions = (x for x in call.inputs if x is not None)
    gpu, (spec,) = call.gpu, call.outputs
    result = target(gpu, cache, spec)
    if rows.dtype not in (short, dt.float32):
        rows = elementwise.cast(gpu, rows, dt.float32)
    places = placed(gpu, positions)
    places = replace(places, layout=sh.expand(places.layout, rows.layout.shape[:-1]))
    *leading, count, depth = rows.layout.shape
    heads = leading[-1] if leading else 1
    batch = math.prod(leading[:-1])
    operands = OverwriteOperands(
        whole_buffer(result),
        _view(gpu, placed(gpu, rows), (batch, heads, count, depth), unit=True),
        _view(gpu, places, (batch, heads, count)),
        spec.shape[-2],
    )
    problem = OverwriteProblem(
        *(cached, rows.dtype, places.dtype, batch * heads, count, depth),
        aligned=cached not in UNITS and operands.is_aligned(),
    )
    if rows.layout.size:
        family.run(gpu, problem, operands)
    return (result,)


def target(gpu: Context, cache: Array, spec: Spec) -> Array:
    """The array to write: a cache's own memory from its first element on, else a copy."""
    if not written_in_place(cache):
        copy = empty(gpu, spec)
        movement.copy(gpu, placed(gpu, cache), copy)
        return copy
    start = cache.layout.offset * cache.dtype.itemsize
    nbytes = cache.layout.size * cache.dtype.itemsize
    storage = MetalCache(whole_buffer(cache).slice(start, nbytes), 0, nbytes)
    return Array(storage, sh.contiguous(spec.shape), spec.dtype)


def _view(gpu: Context, array: Array, shape: tuple[int, ...], *, unit: bool = False) -> Array:
    """The array in another shape; a copy if strides do not allow it or leave gaps in rows."""
    layout = sh.reshape(array.layout, shape)
    if layout is None or (unit and shape[-1] > 1 and layout.strides[-1] != 1):
        array = elementwise.contiguous(gpu, array)
        layout = sh.reshape(array.layout, shape)
        assert layout is not None
    return replace(array, layout=layout)


def _dispatch(
    gpu: Context,
    problem: OverwriteProblem,
    operands: OverwriteOperands,
    variant: str,
    grid: tuple[int, int, int],
    group: tuple[int, int, int] | None = None,
    arguments: Sequence[Buffer | bytes] = (),
) -> None:
    signed = -1 if problem.index_dtype.kind is dt.Kind.INT else 1
    constants = {0: np.int32(signed * problem.index_dtype.itemsize), 1: np.bool_(True)}
    name = kernel_name("overwrite", f"{variant}_{problem.cached}", problem.dtype)
    gpu.queue.dispatch(
        gpu.shaders.pipeline("overwrite", name, constants, safe_math=True),
        arguments or operands.arguments(),
        grid,
        group or (min(grid[0], GROUP), 1, 1),
        kernel="overwrite",
        variant=variant,
    )


def _row_cost(info: DeviceInfo, problem: OverwriteProblem) -> float:
    return 2.0 if info.simd_hardware else 0.5


@family.variant("row", cost=_row_cost)
def row(gpu: Context, problem: OverwriteProblem, operands: OverwriteOperands) -> None:
    """One thread per row."""
    _dispatch(gpu, problem, operands, "row", (problem.rows, problem.planes, 1))


@family.variant("element")
def element(gpu: Context, problem: OverwriteProblem, operands: OverwriteOperands) -> None:
    """One thread per element, or per block of quantized ones."""
    units = problem.depth // UNITS.get(problem.cached, 1)
    _dispatch(gpu, problem, operands, "element", (units, problem.rows, problem.planes))


@family.variant(
    "chunks",
    can=lambda info, problem: problem.aligned,
    cost=lambda info, problem: 0.9 if info.simd_hardware else 3.0,
)
def chunks(gpu: Context, problem: OverwriteProblem, operands: OverwriteOperands) -> None:
    """A vector of several rows per thread."""
    length = CHUNK_BYTES // problem.dtype.itemsize
    shape = (problem.planes, problem.rows, problem.depth // length)
    grid, group = elementwise.chunk_grid(shape, CHUNK_ROWS)
    arguments = [*operands.arguments(length), struct.pack("I", problem.rows)]
    _dispatch(gpu, problem, operands, "chunks", grid, group, arguments)


family.samples += [
    Sample(
        "overwrite",
        (
            Spec((1, 8, 2048, 128), dt.float16),
            Spec((1, 8, count, 128), dt.float32),
            Spec((count,), dt.int32),
        ),
    )
    for count in (1, 512)
]
