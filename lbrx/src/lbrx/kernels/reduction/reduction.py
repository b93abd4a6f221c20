"""Reductions over any set of axes: sums, products, means, variances, norms, extremes, any and all.

The contiguous axis decides how. If it is reduced, a thread reads along it (rows); if it is kept,
neighbouring lanes compute neighbouring results (columns). Other layouts, and rows too short to read
along, are columns with gaps (strided). No layout is copied. Long runs are split into blocks of a
fixed length, so that no result depends on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Layout
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Float, Long, Record, UInt, ULong
from lbrx.device_info import DeviceKind
from lbrx.kernels import layouts
from lbrx.kernels.arrays import kernel_name, size_class, whole_buffer
from lbrx.kernels.launching import GROUP, SIMD_WIDTH
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes, policy
from lbrx.kernels.rows.rows import RAGGED_FROM, VECTOR
from lbrx.metal import Buffer, DeviceInfo
from lbrx.ops import Attributes, Spec

OPERATIONS = "sum", "prod", "mean", "var", "norm", "max", "min", "argmax", "argmin", "any", "all"
ROW_BLOCK = 4096  # elements
COLUMN_BLOCK = 128  # elements of each lane
COLUMN_ROWS = 8  # simdgroups that share the rows of a block of columns, as in the shader
WHOLE_ROW = 16384  # elements that one simdgroup reduces at most without splitting a row
LEAST_ROWS, MOST_ROWS = 128, 1024  # of a block of columns for a threadgroup
LEAST_BLOCKS = 16  # of columns, unless that makes them too short
MOST_BLOCKS = 8192  # of a row for simdgroups
COLUMN_LANES = 512  # of the shader
SHORT_ROW = 64  # up to this length a lane processes a whole row
STATE_BYTES = 16  # of the largest
UNSIGNED = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}
GRID_ROW = 1 << 24  # threads along x


class ReductionKind(StrEnum):
    """Which axes are reduced: the contiguous one, one before it, or a mixture."""

    ROWS = "rows"
    COLUMNS = "columns"
    STRIDED = "strided"


class AxisRecord(Record, header="reduction"):
    size: ULong
    stride: Long  # of the array
    out: ULong  # stride of the result
    numbering: ULong  # stride of the numbering that argmax uses


class ReductionRecord(Record, header="reduction"):
    """Runs of `length` elements are split into blocks. The axes enumerate the runs, kept axes
    first.
    """

    first: Long  # element of the array
    tasks: ULong
    outputs: ULong  # elements of the result
    length: ULong  # of a run
    stride: Long
    numbering: ULong  # stride of a run in the numbering
    inner: ULong  # columns: 1 for rows
    inner_stride: Long
    inner_out: ULong
    block: ULong  # elements of a run
    blocks: ULong  # in a run
    repeats: ULong  # runs for one result
    axes: UInt
    fold: UInt  # elements of a run that are processed in neighbouring lanes
    parameter: Float  # a divisor, or the order of a norm


@dataclass(frozen=True)
class ReductionAxis:
    """An axis with the strides that it has in the array, the result and argmax's numbering."""

    size: int
    stride: int
    out: int
    index: int

    @property
    def is_kept(self) -> bool:
        """Whether the result has this axis."""
        return self.out != 0

    def merged(self, inner: ReductionAxis) -> ReductionAxis | None:
        """This axis merged with the next inner one, if their strides allow it."""
        pairs = ((self.stride, inner.stride), (self.out, inner.out), (self.index, inner.index))
        if self.is_kept is inner.is_kept and all(a == inner.size * b for a, b in pairs):
            return replace(inner, size=self.size * inner.size)
        return None


@dataclass(frozen=True)
class ReductionProblem:
    """The problem: the run (reduced axis), the columns beside it, and the remaining axes."""

    function: str
    dtype: Dtype
    kind: ReductionKind
    run: ReductionAxis
    inner: ReductionAxis
    outer: tuple[ReductionAxis, ...]  # kept ones first
    outputs: int

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        sizes = size_class(self.outputs, self.run.size * self.repeats)
        return f"{self.function} {self.dtype} {self.kind} {sizes}"

    @property
    def repeats(self) -> int:
        """Runs for one result."""
        return math.prod(axis.size for axis in self.outer if not axis.is_kept)

    @property
    def columns_and_run_are_one(self) -> bool:
        """Whether the columns of successive run elements are adjacent in memory."""
        return (
            self.kind is not ReductionKind.ROWS
            and self.run.stride == self.inner.size * self.inner.stride
        )


family: KernelFamily[ReductionProblem] = KernelFamily("reduction")
family.samples += [
    Sample("sum", (Spec((1 << 22,), dt.float32),)),
    Sample("max", (Spec((2048, 2048), dt.float32),), {"axis": -1}),
    Sample("mean", (Spec((2048, 2048), dt.float32),), {"axis": 0}),
    Sample("argmax", (Spec((64, 32000), dt.float16),), {"axis": -1}),
]


# ---- from an operation to a problem ----


@computes(*OPERATIONS)
def run(call: Call) -> tuple[Array, ...]:
    """One operation of the table."""
    (reduced,) = call.inputs
    assert reduced is not None
    attributes = call.op.bind(call.attributes)
    function = _function(call.op.name, attributes)
    array = _readable(call.builder, function, call.builder.placed(reduced))
    axes = sh.normalize_axes(attributes["axis"], array.layout.ndim)
    if not function.startswith("arg"):
        array = replace(array, layout=_forwards(array.layout, axes))
    result = call.builder.result(call.outputs[0])
    if result.layout.size:
        problem = _problem(function, array, axes)
        count = math.prod(array.layout.shape[axis] for axis in axes)
        parameter = _parameter(function, attributes, count)
        family.run(
            call.builder, problem, ReductionOperands(array, parameter, result), op=problem.function
        )
    return (result,)


def _readable(b: Builder, function: str, array: Array) -> Array:
    """The array as a dtype that the function has kernels for, reinterpreted if possible."""
    dtype = array.dtype
    if (function == "var" or function.startswith("norm")) and not dtype.is_float:
        return layouts.cast(b, array, dt.float32)
    if dtype is dt.bool_ or (function in ("any", "all") and dtype.is_integer):
        return replace(array, dtype=UNSIGNED[dtype.itemsize])
    return array


def _function(name: str, attributes: Attributes) -> str:
    """The kernels' name; each order of a norm has its own kernels."""
    if name != "norm":
        return name
    return {1: "norm_1", 2: "norm_2", math.inf: "norm_inf"}.get(attributes["ord"], "norm_p")


def _parameter(function: str, attributes: Attributes, count: int) -> float:
    """The number passed to a kernel: the divisor, or the order of a norm."""
    if function == "var":
        return max(count - float(attributes["correction"]), 0.0)
    return float(attributes["ord"]) if function == "norm_p" else float(count)


def _forwards(layout: Layout, axes: Sequence[int]) -> Layout:
    """The same elements with non-negative strides of the reduced axes."""
    offset, strides = layout.offset, list(layout.strides)
    for axis in axes:
        if strides[axis] < 0 and layout.size:
            offset += (layout.shape[axis] - 1) * strides[axis]
            strides[axis] = -strides[axis]
    return Layout(layout.shape, tuple(strides), offset)


def _problem(function: str, array: Array, axes: Sequence[int]) -> ReductionProblem:
    layout = array.layout
    every = _axes(layout, axes, numbered=function.startswith("arg"))
    kept = [axis for axis in every if axis.is_kept]
    reduced = [axis for axis in every if not axis.is_kept]
    longest = max(reduced, key=lambda axis: axis.size, default=ReductionAxis(1, 0, 0, 0))
    widest = max(kept, key=lambda axis: axis.size, default=ReductionAxis(1, longest.stride, 0, 0))
    beside = next((axis for axis in every if axis.stride == 1), None)
    if layout.size == 0:  # an empty run for each result
        longest, reduced, beside = ReductionAxis(0, 0, 0, 0), [], None
    if beside is not None and beside.is_kept:
        kind, run, inner = ReductionKind.COLUMNS, longest, beside
    elif beside is not None and beside.size > SHORT_ROW:
        kind, run, inner = ReductionKind.ROWS, beside, ReductionAxis(1, 1, 0, 0)
    else:
        kind, run, inner = ReductionKind.STRIDED, longest, widest
    outer = tuple(axis for axis in (*kept, *reduced) if axis is not run and axis is not inner)
    outputs = math.prod(n for i, n in enumerate(layout.shape) if i not in axes)
    return ReductionProblem(function, array.dtype, kind, run, inner, outer, outputs)


def _axes(layout: Layout, reduced: Sequence[int], numbered: bool) -> list[ReductionAxis]:
    """The axes, merged where strides allow it, in order of decreasing stride."""
    shape = layout.shape
    kept = [axis for axis in range(layout.ndim) if axis not in reduced]
    out = dict(zip(kept, sh.contiguous_strides(tuple(shape[i] for i in kept)), strict=True))
    numbers = sh.contiguous_strides(tuple(shape[i] for i in reduced))
    index = dict(zip(reduced, numbers if numbered else [0] * len(numbers), strict=True))
    axes = [
        ReductionAxis(n, stride, out.get(i, 0), index.get(i, 0))
        for i, (n, stride) in enumerate(zip(shape, layout.strides, strict=True))
        if n != 1
    ]
    result: list[ReductionAxis] = []
    for axis in sorted(axes, key=lambda axis: -abs(axis.stride)):
        merged = result[-1].merged(axis) if result else None
        if merged is None:
            result.append(axis)
        else:
            result[-1] = merged
    return result


# ---- launching ----


@dataclass(frozen=True)
class ReductionOperands:
    """What a reduction reads and writes."""

    array: Array
    parameter: float  # a divisor, or the order of a norm
    result: Array


@dataclass(frozen=True)
class ReductionBlocks:
    """How a problem is split: runs into blocks, columns into tiles of one thread."""

    problem: ReductionProblem
    block: int
    fold: int = 1
    tile: int = 1
    run: int = 1  # elements that are loaded at once: strides of the record count them

    @property
    def blocks(self) -> int:
        """Blocks in a run; an empty run has one empty block."""
        return max(-(-self.problem.run.size // self.block), 1)

    @property
    def parts(self) -> int:
        """Blocks for one result."""
        return self.problem.repeats * self.blocks

    @property
    def tasks(self) -> int:
        """The number of blocks over all results."""
        tiles = -(-self.problem.inner.size // self.tile)
        return math.prod(axis.size for axis in self.problem.outer) * self.blocks * tiles

    def record(self, first: int, parameter: float) -> ReductionRecord:
        """The problem as the kernels read it."""
        problem, run, inner = self.problem, self.problem.run, self.problem.inner
        return ReductionRecord(
            first=first // self.run,
            tasks=self.tasks,
            outputs=problem.outputs,
            length=run.size,
            stride=run.stride // self.run,
            numbering=run.index,
            inner=inner.size,
            inner_stride=inner.stride,
            inner_out=inner.out,
            block=self.block,
            blocks=self.blocks,
            repeats=problem.repeats,
            axes=len(problem.outer),
            fold=self.fold,
            parameter=parameter,
        )

    def axis_records(self) -> bytes:
        """At least one, since Metal refuses an empty argument."""
        axes = self.problem.outer or (ReductionAxis(1, 0, 0, 0),)
        return b"".join(
            AxisRecord(size=a.size, stride=a.stride // self.run, out=a.out, numbering=a.index)
            for a in axes
        )


@family.variant("serial", made_for=DeviceKind.WIDE)
def serial(b: Builder, problem: ReductionProblem, operands: ReductionOperands) -> None:
    """One thread per block, with lanes for the vector registers of a CPU."""
    if problem.kind is ReductionKind.ROWS:
        work = ReductionBlocks(problem, ROW_BLOCK)
    else:
        work = ReductionBlocks(problem, COLUMN_BLOCK, tile=COLUMN_LANES)
    _launch(b, work, operands, "serial", problem.kind, work.tasks)


def _can_fold(info: DeviceInfo, problem: ReductionProblem) -> bool:
    few = 2 * problem.inner.size <= COLUMN_LANES
    return problem.columns_and_run_are_one and few and problem.run.size > SHORT_ROW


@family.variant(
    "folded",
    can=_can_fold,
    cost=lambda info, problem: 0.9,
    batch_invariant=False,
    made_for=DeviceKind.WIDE,
)
def folded(b: Builder, problem: ReductionProblem, operands: ReductionOperands) -> None:
    """As serial, for few columns: each column is spread over several lanes."""
    fold = COLUMN_LANES // problem.inner.size
    work = ReductionBlocks(problem, COLUMN_BLOCK * fold, fold, COLUMN_LANES)
    _launch(b, work, operands, "folded", problem.kind, work.tasks)


@family.variant("simd", made_for=DeviceKind.SIMD)
def simd(b: Builder, problem: ReductionProblem, operands: ReductionOperands) -> None:
    """One simdgroup per block of a row, or one threadgroup per block of columns."""
    size, vectors = problem.run.size, _in_vectors(problem, operands.array)
    loads, run = ("vectors", VECTOR // problem.dtype.itemsize) if vectors else ("simd", 1)
    if problem.kind is ReductionKind.ROWS:
        block = size if size <= WHOLE_ROW else max(ROW_BLOCK, _even(size, MOST_BLOCKS))
        work = ReductionBlocks(problem, block)
        _launch(b, work, operands, "simd", f"rows_{loads}", work.tasks * SIMD_WIDTH)
    elif problem.kind is ReductionKind.COLUMNS:
        block = min(max(_even(size, LEAST_BLOCKS), LEAST_ROWS), MOST_ROWS)
        tile = run * SIMD_WIDTH
        if not vectors and _in_ragged_vectors(problem, operands.array):
            loads, tile = "ragged", (SIMD_WIDTH - 1) * VECTOR // problem.dtype.itemsize
        work = ReductionBlocks(problem, block, tile=tile, run=run)
        group = COLUMN_ROWS * SIMD_WIDTH
        _launch(b, work, operands, "simd", f"columns_{loads}", work.tasks * group)
    else:
        work = ReductionBlocks(problem, COLUMN_BLOCK)
        _launch(b, work, operands, "simd", "strided_simd", work.tasks)


def _even(size: int, parts: int) -> int:
    """The smallest power of two of which a size has at most so many."""
    return 1 << (-(-size // parts) - 1).bit_length()


def _in_vectors(problem: ReductionProblem, array: Array) -> bool:
    """Whether the shader can load vectors: of columns all must be aligned, of rows only the buffer.

    The order of sums depends on it, and so it is false if bits must not depend on the batch.
    """
    if policy().deterministic or whole_buffer(array).offset % VECTOR:
        return False
    if problem.kind is ReductionKind.ROWS:
        return True
    strides = (axis.stride for axis in (problem.run, *problem.outer))
    places = (array.layout.offset, problem.inner.size, *strides)
    return all(n * array.dtype.itemsize % VECTOR == 0 for n in places)


def _in_ragged_vectors(problem: ReductionProblem, array: Array) -> bool:
    """Whether vectors cover the columns, which may begin within one in each row."""
    if policy().deterministic or whole_buffer(array).offset % VECTOR:
        return False
    wide = problem.inner.size >= RAGGED_FROM and problem.run.stride > 0
    return wide and problem.dtype.itemsize in (2, 4)


def _launch(
    b: Builder,
    work: ReductionBlocks,
    operands: ReductionOperands,
    variant: str,
    kernel: str,
    threads: int,
) -> None:
    """Compute the states of blocks and merge them; with one block per result, the result itself."""
    problem = work.problem
    record = work.record(operands.array.layout.offset, operands.parameter)
    values, results = whole_buffer(operands.array), whole_buffer(operands.result)

    def dispatch(kernel: str, threads: int, *arguments: Buffer | bytes) -> None:
        name = kernel_name(problem.function, kernel, problem.dtype)
        pipeline = b.pipeline("reduction", name, safe_math=True)
        grid = min(threads, GRID_ROW), -(-threads // GRID_ROW), 1
        group = min(threads, GROUP), 1, 1
        b.launch(pipeline, arguments, grid, group)

    if work.parts == 1:  # the unused argument for states must be bound
        dispatch(kernel, threads, values, results, results, record, work.axis_records())
        return
    states = b.scratch(work.parts * problem.outputs * STATE_BYTES, "reduction")
    dispatch(kernel, threads, values, states, results, record, work.axis_records())
    if variant == "simd":
        width = SIMD_WIDTH if problem.outputs >= SIMD_WIDTH else 1
        dispatch("merge_simd", -(-problem.outputs // width) * GROUP, states, results, record)
    else:
        dispatch("merge", problem.outputs, states, results, record)
