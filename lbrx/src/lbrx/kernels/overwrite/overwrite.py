"""Rows put into a cache of keys or values: in place, or in a copy of an ordinary tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array, MetalCache, written_in_place
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import LONG, UINT, Record, UInt, ULong, packed
from lbrx.device_info import DeviceKind
from lbrx.kernels import launching, layouts
from lbrx.kernels.arrays import kernel_name, size_class, whole_buffer
from lbrx.kernels.indexing.indexing import IndexConstants, index_type
from lbrx.kernels.launching import CHUNK_BYTES, SMALL_GROUP
from lbrx.kernels.movement import movement
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer
from lbrx.ops import Spec

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


class OverwriteRecord(Record, header="overwrite"):
    source: Annotated[Sequence[int], LONG[3]]  # strides of batches, heads and rows
    place: Annotated[Sequence[int], LONG[3]]  # strides of the positions
    offset: ULong  # of the first element of the source
    place_offset: ULong
    heads: UInt
    capacity: UInt
    depth: UInt


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
        record = OverwriteRecord(
            source=[stride // chunk for stride in rows.strides[:3]],
            place=positions.strides,
            offset=rows.offset // chunk,
            place_offset=positions.offset,
            heads=rows.shape[1],
            capacity=self.capacity,
            depth=rows.shape[3] // chunk,
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
    b, (spec,) = call.builder, call.outputs
    result = target(b, cache, spec)
    if rows.dtype not in (short, dt.float32):
        rows = layouts.cast(b, rows, dt.float32)
    places = b.placed(positions)
    places = replace(places, layout=sh.expand(places.layout, rows.layout.shape[:-1]))
    *leading, count, depth = rows.layout.shape
    heads = leading[-1] if leading else 1
    batch = math.prod(leading[:-1])
    operands = OverwriteOperands(
        whole_buffer(result),
        _view(b, b.placed(rows), (batch, heads, count, depth), unit=True),
        _view(b, places, (batch, heads, count)),
        spec.shape[-2],
    )
    problem = OverwriteProblem(
        *(cached, rows.dtype, places.dtype, batch * heads, count, depth),
        aligned=cached not in UNITS and operands.is_aligned(),
    )
    if rows.layout.size:
        family.run(b, problem, operands)
    return (result,)


def target(b: Builder, cache: Array, spec: Spec) -> Array:
    """The array to write: a cache's own memory from its first element on, else a copy."""
    if not written_in_place(cache):
        copy = b.result(spec)
        movement.copy(b, b.placed(cache), copy)
        return copy
    start = cache.layout.offset * cache.dtype.itemsize
    nbytes = cache.layout.size * cache.dtype.itemsize
    storage = MetalCache(whole_buffer(cache).slice(start, nbytes), 0, nbytes)
    return Array(storage, sh.contiguous(spec.shape), spec.dtype)


def _view(b: Builder, array: Array, shape: tuple[int, ...], *, unit: bool = False) -> Array:
    """The array in another shape; a copy if strides do not allow it or leave gaps in rows."""
    layout = sh.reshape(array.layout, shape)
    if layout is None or (unit and shape[-1] > 1 and layout.strides[-1] != 1):
        array = layouts.contiguous(b, array)
        layout = sh.reshape(array.layout, shape)
        assert layout is not None
    return replace(array, layout=layout)


def _dispatch(
    b: Builder,
    problem: OverwriteProblem,
    operands: OverwriteOperands,
    variant: str,
    grid: tuple[int, int, int],
    group: tuple[int, int, int] | None = None,
    arguments: Sequence[Buffer | bytes] = (),
) -> None:
    constants = IndexConstants(INDEX_TYPE=index_type(problem.index_dtype))
    name = kernel_name("overwrite", f"{variant}_{problem.cached}", problem.dtype)
    b.launch(
        b.pipeline("overwrite", name, constants, safe_math=True),
        arguments or operands.arguments(),
        grid,
        group or (min(grid[0], SMALL_GROUP), 1, 1),
    )


@family.variant("row", cost=lambda info, problem: 0.5, made_for=DeviceKind.WIDE)
def row(b: Builder, problem: OverwriteProblem, operands: OverwriteOperands) -> None:
    """One thread per row."""
    _dispatch(b, problem, operands, "row", (problem.rows, problem.planes, 1))


@family.variant("element")
def element(b: Builder, problem: OverwriteProblem, operands: OverwriteOperands) -> None:
    """One thread per element, or per block of quantized ones."""
    units = problem.depth // UNITS.get(problem.cached, 1)
    _dispatch(b, problem, operands, "element", (units, problem.rows, problem.planes))


@family.variant(
    "chunks",
    can=lambda info, problem: problem.aligned,
    cost=lambda info, problem: 0.9,
    made_for=DeviceKind.SIMD,
)
def chunks(b: Builder, problem: OverwriteProblem, operands: OverwriteOperands) -> None:
    """A vector of several rows per thread."""
    length = CHUNK_BYTES // problem.dtype.itemsize
    shape = (problem.planes, problem.rows, problem.depth // length)
    grid, group = launching.chunk_grid(shape, CHUNK_ROWS)
    arguments = [*operands.arguments(length), packed(UINT, problem.rows)]
    _dispatch(b, problem, operands, "chunks", grid, group, arguments)


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
