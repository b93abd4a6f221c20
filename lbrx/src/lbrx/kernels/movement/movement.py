"""Copies between arrays of any strides, and operations made of copies: concat and pad."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Layout, Shape
from lbrx.arrays.storage import Array, MetalStorage
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import LONG, UINT, Constants, Int, Long, Record, UInt, packed
from lbrx.device_info import DeviceKind
from lbrx.kernels import launching, layouts
from lbrx.kernels.arrays import kernel_name, size_class, whole_buffer
from lbrx.kernels.launching import CHUNK_BYTES, GROUP
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, DeviceInfo
from lbrx.ops import Spec

BITS = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}
"""Elements are moved as integers of their width, so that NaN keeps its bits."""
AXES = 8  # axes along the grid's z
PART = 1 << 30  # elements of a row in one dispatch
TILE, TILE_ROWS = (
    32,
    8,
)  # side of a tile that a threadgroup transposes, and its threads along the other side
SERIAL_SIDE = 64  # side of the block that a CPU's thread transposes
# Blocks of chunks that a GPU's threadgroup transposes, along the source's rows and across them, by
# element width: one for each thread.
BLOCKS = {1: (8, 8), 2: (16, 8), 4: (16, 16), 8: (16, 16)}
# The same for devices on whose cores two such threadgroups have enough memory: more of a line is
# read and written at a time.
LARGE_BLOCKS = {2: (16, 16)}
LARGE_MEMORY = 64 << 10
# Transposing in blocks pays off from these sizes: smaller arrays fit into the cache anyway.
TRANSPOSE_SIDE = 16
TRANSPOSE_BYTES = 64 << 10


class StridesRecord(Record, header="movement"):
    """Strides count elements and may be negative. The last axis lies along the grid's x, the one
    before along y, all others along z. Only scalars: the compiler then keeps a copy of the record
    in registers.
    """

    start: Long  # the first element
    x: Long
    y: Long
    z: Annotated[Sequence[int], LONG[AXES]]


class WalkRecord(Record, header="movement"):
    shape: Annotated[Sequence[int], UINT[AXES]]  # of the axes along z
    source: StridesRecord
    target: StridesRecord


class CopyConstants(Constants, header="movement"):
    """How the last axis is read and written: -1 stands for the strides in the record. The number of
    axes along z is a constant, so that the compiler unrolls the loop over them.
    """

    SOURCE_STEP: Int = -1
    TARGET_STEP: Int = -1
    OTHERS: UInt


@dataclass(frozen=True)
class CopyProblem:
    """The problem: the element width, the shape, and the strides of source and target."""

    width: int
    shape: Shape
    source: Shape
    target: Shape
    aligned: int = 1
    """A power of two, at most 16, that divides the addresses of both buffers and first elements."""

    @property
    def chunk(self) -> int:
        """Neighbouring elements that can be copied as a vector; 1 if none can."""
        if (self.source[-1], self.target[-1]) != (1, 1):
            return 1
        return self._multiple(self.shape[-1], *self.source[:-1], *self.target[:-1])

    @property
    def side(self) -> int:
        """The side of the blocks that vectors can transpose: addresses are multiples of it."""
        axis = self.transposed
        if axis is None:
            return 1
        strides = [s for i, s in enumerate(self.source) if i != axis]
        return self._multiple(self.shape[axis], self.shape[-1], *strides, *self.target[:-1])

    def _multiple(self, *counts: int) -> int:
        longest = max(min(CHUNK_BYTES, self.aligned) // self.width, 1)
        return math.gcd(longest, *counts)

    def in_chunks(self, length: int) -> CopyProblem:
        """The problem with vectors of neighbouring elements as the elements."""
        source, target = (
            (*(stride // length for stride in strides[:-1]), 1)
            for strides in (self.source, self.target)
        )
        shape = (*self.shape[:-1], self.shape[-1] // length)
        return CopyProblem(self.width * length, shape, source, target)

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        kind = "strided" if self.transposed is None else "transposed"
        return f"{kind} {self.width} {size_class(*self.shape[-2:])}"

    @property
    def dtype(self) -> Dtype:
        """An unsigned integer type of the elements' width: a copy moves bits."""
        return BITS[self.width]

    @property
    def transposed(self) -> int | None:
        """The axis along which the source is contiguous, if the target is along the last axis."""
        if self.target[-1] != 1 or self.source[-1] in (0, 1):
            return None
        return self.source.index(1) if 1 in self.source else None

    def ordered(self) -> CopyProblem:
        """The problem with the transposed axis moved before the last."""
        axis = self.transposed
        assert axis is not None
        order = [i for i in range(len(self.shape) - 1) if i != axis]
        order += [axis, len(self.shape) - 1]
        shape, source, target = (
            tuple(axes[i] for i in order) for axes in (self.shape, self.source, self.target)
        )
        return replace(self, shape=shape, source=source, target=target)


family: KernelFamily[CopyProblem] = KernelFamily("copy")
family.samples += [
    Sample("concat", (Spec((2048, 1024), dt.float32),) * 2, {"axis": 1}),
    Sample("concat", (Spec((64, 1000), dt.float16),) * 2, {"axis": 0}),
]


def copy(b: Builder, source: Array, target: Array) -> None:
    """Copy all elements of an array into another of the same shape and element width."""
    shape = target.layout.shape
    if not math.prod(shape):
        return
    axes, strides = layouts.collapsed(shape, [source.layout, target.layout])
    buffers = (whole_buffer(source), whole_buffer(target))
    width = source.dtype.itemsize
    starts = [*(b.offset for b in buffers), *(a.layout.offset * width for a in (source, target))]
    read, written = strides
    problem = CopyProblem(width, axes, read, written, math.gcd(CHUNK_BYTES, *starts))
    for piece, start in _pieces(problem, (source.layout.offset, target.layout.offset)):
        family.run(b, piece, *buffers, start)


Start = tuple[int, int]  # element offsets of source and target


def _pieces(problem: CopyProblem, start: Start) -> Iterator[tuple[CopyProblem, Start]]:
    """Split the problem so that the grid and the `Walk` record can express it."""
    shape = problem.shape
    axis, step = len(shape) - 1, PART
    if len(shape) > AXES + 2 or math.prod(shape[:-2]) > PART:
        axis, step = 0, 1
    elif max(shape[-2:]) <= PART:
        yield problem, start
        return
    elif len(shape) > 1 and shape[-2] > PART:
        axis -= 1
    for first in range(0, shape[axis], step):
        size = min(step, shape[axis] - first)
        at = start[0] + first * problem.source[axis], start[1] + first * problem.target[axis]
        kept = slice(1, None) if step == 1 else slice(None)
        sizes = (*shape[:axis], size, *shape[axis + 1 :])[kept]
        piece = CopyProblem(
            *(problem.width, sizes, problem.source[kept], problem.target[kept]),
            aligned=math.gcd(problem.aligned, *(n * problem.width for n in at)),
        )
        yield from _pieces(piece, at)


def _walk(problem: CopyProblem, start: Start) -> WalkRecord:
    source, target = (
        _strides_record(first, strides)
        for first, strides in zip(start, (problem.source, problem.target), strict=True)
    )
    return WalkRecord(shape=_along_z(problem.shape), source=source, target=target)


def _strides_record(start: int, strides: Shape) -> StridesRecord:
    y, x = (0, *strides)[-2:]
    return StridesRecord(start=start, x=x, y=y, z=_along_z(strides))


def _along_z(axes: Shape) -> Shape:
    others = axes[:-2]
    return (*others, *(0,) * (AXES - len(others)))


@family.variant("strided")
def strided(b: Builder, problem: CopyProblem, source: Buffer, target: Buffer, start: Start) -> None:
    """One thread per element."""
    read, written = problem.source[-1], problem.target[-1]
    constants = CopyConstants(
        SOURCE_STEP=read if read in (0, 1) else -1,
        TARGET_STEP=written if written == 1 else -1,
        OTHERS=_others(problem),
    )
    name = kernel_name("copy", "strided", problem.dtype)
    pipeline = b.pipeline("movement", name, constants, safe_math=True)
    x, y, z = launching.grid_over(problem.shape)
    group = (min(x, GROUP), min(y, max(GROUP // x, 1)), 1)
    arguments = (source, target, _walk(problem, start))
    b.launch(pipeline, arguments, (x, y, z), group)


def _others(problem: CopyProblem) -> int:
    return max(len(problem.shape) - 2, 0)


@family.variant(
    "chunks",
    can=lambda info, problem: problem.chunk > 1,
    cost=lambda info, problem: 0.9,
    made_for=DeviceKind.SIMD,
)
def chunks(b: Builder, problem: CopyProblem, source: Buffer, target: Buffer, start: Start) -> None:
    """One vector of neighbouring elements per thread."""
    length = problem.chunk
    chunked = problem.in_chunks(length)
    name = f"copy_chunks_{chunked.width}"
    constants = CopyConstants(OTHERS=_others(chunked))
    pipeline = b.pipeline("movement", name, constants, safe_math=True)
    grid, group = launching.chunk_grid(chunked.shape)
    size = packed(UINT, chunked.shape[-1], (1, *chunked.shape)[-2])
    arguments = (source, target, _walk(chunked, (start[0] // length, start[1] // length)), size)
    b.launch(pipeline, arguments, grid, group)


def _transposes(info: DeviceInfo, problem: CopyProblem) -> bool:
    return problem.transposed is not None


def _transpose_cost(info: DeviceInfo, problem: CopyProblem) -> float:
    axis = problem.transposed
    assert axis is not None
    sides = min(problem.shape[axis], problem.shape[-1])
    large = math.prod(problem.shape) * problem.width >= TRANSPOSE_BYTES
    return 0.5 if large and sides >= TRANSPOSE_SIDE else 2.0


@family.variant(
    "transpose_serial",
    can=_transposes,
    cost=_transpose_cost,
    made_for=DeviceKind.WIDE,
    only=True,
)
def transpose_serial(
    b: Builder, problem: CopyProblem, source: Buffer, target: Buffer, start: Start
) -> None:
    """One thread per block."""
    ordered = problem.ordered()
    x, y, z = launching.grid_over(ordered.shape)
    grid = (-(-x // SERIAL_SIDE), -(-y // SERIAL_SIDE), z)
    buffers = (source, target)
    _transpose(b, "movement_serial", "transpose_serial", ordered, buffers, start, grid, (1, 1, 1))


@family.variant("transpose_tile", can=_transposes, cost=_transpose_cost, made_for=DeviceKind.SIMD)
def transpose_tile(
    b: Builder, problem: CopyProblem, source: Buffer, target: Buffer, start: Start
) -> None:
    """One threadgroup per tile, through threadgroup memory."""
    ordered = problem.ordered()
    x, y, z = launching.grid_over(ordered.shape)
    grid = (-(-x // TILE) * TILE, -(-y // TILE) * TILE_ROWS, z)
    group = (TILE, TILE_ROWS, 1)
    _transpose(b, "movement", "transpose_tile", ordered, (source, target), start, grid, group)


def _by_chunks(info: DeviceInfo, problem: CopyProblem) -> bool:
    return problem.side * problem.width == CHUNK_BYTES


def _chunked_cost(info: DeviceInfo, problem: CopyProblem) -> float:
    return _transpose_cost(info, problem) * 0.9


@family.variant("transpose_chunks", can=_by_chunks, cost=_chunked_cost, made_for=DeviceKind.SIMD)
def transpose_chunks(
    b: Builder, problem: CopyProblem, source: Buffer, target: Buffer, start: Start
) -> None:
    """Blocks in the registers of threads, whose rows are read and written as vectors."""
    side = CHUNK_BYTES // problem.width
    large = problem.width in LARGE_BLOCKS and b.info.threadgroup_memory >= LARGE_MEMORY
    across, down = (LARGE_BLOCKS if large else BLOCKS)[problem.width]
    ordered = problem.ordered()
    chunked = CopyProblem(
        problem.width,
        (*ordered.shape[:-2], ordered.shape[-2] // side, ordered.shape[-1] // side),
        (*(s // side for s in ordered.source[:-2]), 1, ordered.source[-1] // side),
        (*(s // side for s in ordered.target[:-1]), 1),
    )
    x, y, z = launching.grid_over(chunked.shape)
    group = (across * down, 1, 1)
    grid = (-(-x // down) * group[0], -(-y // across), z)
    at = start[0] // side, start[1] // side
    variant = "transpose_chunks_large" if large else "transpose_chunks"
    _transpose(b, "movement", variant, chunked, (source, target), at, grid, group)


def _transpose(
    b: Builder,
    stem: str,
    variant: str,
    problem: CopyProblem,
    buffers: tuple[Buffer, Buffer],
    start: Start,
    grid: tuple[int, int, int],
    group: tuple[int, int, int],
) -> None:
    name = kernel_name("copy", variant, problem.dtype)
    constants = CopyConstants(OTHERS=_others(problem))
    pipeline = b.pipeline(stem, name, constants, safe_math=True)
    size = packed(UINT, problem.shape[-1], problem.shape[-2])
    arguments = (*buffers, _walk(problem, start), size)
    b.launch(pipeline, arguments, grid, group)


# ---- operations ----


@computes("copy")
def run_copy(call: Call) -> tuple[Array, ...]:
    """Compute `copy`: a contiguous copy of an array of any strides."""
    (array,) = call.inputs
    assert array is not None
    result = call.builder.result(call.outputs[0])
    copy(call.builder, call.builder.placed(array), result)
    return (result,)


@computes("concat")
def run_concat(call: Call) -> tuple[Array, ...]:
    """Copy each operand into its slice of the result."""
    (spec,) = call.outputs
    axis = sh.normalize_axis(call.attributes["axis"], len(spec.shape))
    result = call.builder.result(spec)
    start = 0
    for given in call.inputs:
        assert given is not None
        part = layouts.cast(call.builder, call.builder.placed(given), spec.dtype)
        end = start + part.layout.shape[axis]
        copy(call.builder, part, _slice(result, axis, start, end))
        start = end
    return (result,)


@computes("pad")
def run_pad(call: Call) -> tuple[Array, ...]:
    """Copy the inner part, then fill the slabs before and after it along each axis."""
    (padded,), (spec,) = call.inputs, call.outputs
    assert padded is not None
    b, result = call.builder, call.builder.result(spec)
    with np.errstate(all="ignore"):
        value = np.asarray(call.attributes["value"]).astype(spec.dtype.numpy)
    filling = Array(
        MetalStorage(b.constant(value, "tensors"), 0, value.nbytes), Layout((), ()), spec.dtype
    )
    inner = result
    for axis, (before, after) in enumerate(call.attributes["widths"]):
        n = inner.layout.shape[axis]
        for slab in (_slice(inner, axis, 0, before), _slice(inner, axis, n - after, n)):
            layout = sh.expand(filling.layout, slab.layout.shape)
            copy(b, replace(filling, layout=layout), slab)
        inner = _slice(inner, axis, before, n - after)
    copy(b, b.placed(padded), inner)
    return (result,)


def _slice(array: Array, axis: int, start: int, end: int) -> Array:
    key = (*[slice(None)] * axis, slice(start, end))
    return replace(array, layout=sh.index(array.layout, key))
