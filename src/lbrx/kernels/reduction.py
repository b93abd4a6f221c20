"""Reductions over any set of axes: sums, products, means, variances, norms, extremes, any and all.

The axis whose elements lie side by side decides. If it is reduced, a thread walks along it (rows);
if it is kept, neighbouring threads or lanes have neighbouring results (columns). Long runs are cut
into blocks of a fixed length, so that no result depends on the device or on the batch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import empty, kernel_name, placed, size_class, whole_buffer
from lbrx.kernels.registry import Call, Family, Sample, computes
from lbrx.metal import Buffer, Context
from lbrx.ops import Attributes, Spec
from lbrx.shape import Layout
from lbrx.storage import Array

ROW_BLOCK = 4096  # elements
COLUMN_BLOCK = 128  # elements of each lane
COLUMN_LANES = 512
MAX_AXES = 8
STATE_BYTES = 16  # of the largest
GRID_ROW = 1 << 24  # threads along x
GROUP = 64  # threads


@dataclass(frozen=True)
class Axis:
    """An axis with the strides that it has in the array, the result and argmax's numbering."""

    size: int
    stride: int
    out: int
    index: int

    @property
    def is_kept(self) -> bool:
        return self.out != 0

    def merged(self, inner: Axis) -> Axis | None:
        """This axis and the next one inside it as one, if their strides allow it."""
        pairs = ((self.stride, inner.stride), (self.out, inner.out), (self.index, inner.index))
        if self.is_kept is inner.is_kept and all(a == inner.size * b for a, b in pairs):
            return replace(inner, size=self.size * inner.size)
        return None


NOTHING = Axis(1, 0, 0, 0)


@dataclass(frozen=True)
class Reduction:
    """A problem: runs of elements, and the axes that lead from run to run."""

    function: str
    dtype: Dtype
    run: Axis
    inner: Axis | None  # of columns that lie side by side
    outer: tuple[Axis, ...]  # kept ones first
    count: int  # elements in a result
    outputs: int

    @property
    def shape_class(self) -> str:
        kind = "columns" if self.inner else "rows"
        return f"{self.function} {self.dtype} {kind} {size_class(self.outputs, self.count)}"

    @property
    def repeats(self) -> int:
        """Runs for one result."""
        return math.prod(axis.size for axis in self.outer if not axis.is_kept)


family: Family[Reduction] = Family("reduction")
family.samples += [
    Sample("sum", (Spec((1 << 22,), dt.float32),)),
    Sample("max", (Spec((2048, 2048), dt.float32),), {"axis": -1}),
    Sample("mean", (Spec((2048, 2048), dt.float32),), {"axis": 0}),
    Sample("argmax", (Spec((64, 32000), dt.float16),), {"axis": -1}),
]


# ---- from an operation to a problem ----

OPERATIONS = "sum", "prod", "mean", "var", "norm", "max", "min", "argmax", "argmin", "any", "all"


@computes(*OPERATIONS)
def run(call: Call) -> tuple[Array, ...]:
    """Where neither rows nor columns lie side by side, a copy has rows that do."""
    (given,) = call.inputs
    assert given is not None
    array = placed(call.gpu, given)
    attributes = call.op.bind(call.attributes)
    function = _function(call.op.name, attributes)
    axes = sh.normalize_axes(attributes["axis"], array.layout.ndim)
    if not function.startswith("arg"):
        array = replace(array, layout=_forwards(array.layout, axes))
    problem = _problem(function, array, axes)
    if problem is None:
        kept = [axis for axis in range(array.layout.ndim) if axis not in axes]
        permuted = replace(array, layout=sh.permute(array.layout, (*kept, *axes)))
        array = elementwise.contiguous(call.gpu, permuted)
        problem = _problem(function, array, range(len(kept), array.layout.ndim))
        assert problem is not None
    result = empty(call.gpu, call.outputs[0])
    if problem.outputs:
        parameter = _parameter(function, attributes, problem.count)
        family.run(call.gpu, problem, array, parameter, result)
    return (result,)


def _function(name: str, attributes: Attributes) -> str:
    """The name of the kernels: each kind of norm has its own."""
    if name != "norm":
        return name
    return {1: "norm_1", 2: "norm_2", math.inf: "norm_inf"}.get(attributes["ord"], "norm_p")


def _parameter(function: str, attributes: Attributes, count: int) -> float:
    """The number that a kernel is given: a divisor, or a norm's order."""
    if function == "var":
        return max(count - float(attributes["correction"]), 0.0)
    return float(attributes["ord"]) if function == "norm_p" else float(count)


def _forwards(layout: Layout, axes: Sequence[int]) -> Layout:
    """The same elements with no reduced axis walked backwards: a sum has no order."""
    offset, strides = layout.offset, list(layout.strides)
    for axis in axes:
        if strides[axis] < 0 and layout.size:
            offset += (layout.shape[axis] - 1) * strides[axis]
            strides[axis] = -strides[axis]
    return Layout(layout.shape, tuple(strides), offset)


def _problem(function: str, array: Array, axes: Sequence[int]) -> Reduction | None:
    """How to reduce an array, None if no elements lie side by side."""
    layout = array.layout
    every = _axes(layout, axes, numbered=function.startswith("arg"))
    kept = [axis for axis in every if axis.is_kept]
    reduced = [axis for axis in every if not axis.is_kept]
    outputs = math.prod(n for i, n in enumerate(layout.shape) if i not in axes)
    count = math.prod(layout.shape[i] for i in axes)
    inner = None
    if count == 0 or not every:
        run, reduced = replace(NOTHING, size=count), []
    else:
        beside = next((axis for axis in every if axis.stride == 1), None)
        if beside is None:
            return None
        inner = beside if beside.is_kept else None
        run = max(reduced, key=lambda axis: axis.size, default=NOTHING) if inner else beside
    outer = tuple(axis for axis in (*kept, *reduced) if axis is not run and axis is not inner)
    if len(outer) > MAX_AXES:
        return None
    return Reduction(function, array.dtype, run, inner, outer, count, outputs)


def _axes(layout: Layout, reduced: Sequence[int], numbered: bool) -> list[Axis]:
    """The fewest axes, those with the longest strides first."""
    shape = layout.shape
    kept = [axis for axis in range(layout.ndim) if axis not in reduced]
    out = dict(zip(kept, sh.contiguous_strides(tuple(shape[i] for i in kept)), strict=True))
    numbers = sh.contiguous_strides(tuple(shape[i] for i in reduced))
    index = dict(zip(reduced, numbers if numbered else [0] * len(numbers), strict=True))
    axes = [
        Axis(n, stride, out.get(i, 0), index.get(i, 0))
        for i, (n, stride) in enumerate(zip(shape, layout.strides, strict=True))
        if n != 1
    ]
    result: list[Axis] = []
    for axis in sorted(axes, key=lambda axis: -abs(axis.stride)):
        merged = result[-1].merged(axis) if result else None
        if merged is None:
            result.append(axis)
        else:
            result[-1] = merged
    return result


# ---- launching ----


@dataclass(frozen=True)
class Work:
    """How a problem is cut up: blocks of runs, and columns that a thread takes together."""

    problem: Reduction
    block: int
    fold: int
    tiles: int

    @property
    def blocks(self) -> int:
        """In a run; one of nothing if the run is empty."""
        return max(-(-self.problem.run.size // self.block), 1)

    @property
    def parts(self) -> int:
        """Blocks for one result."""
        return self.problem.repeats * self.blocks

    @property
    def tasks(self) -> int:
        return math.prod(axis.size for axis in self.problem.outer) * self.blocks * self.tiles

    def packed(self, first: int, parameter: float) -> bytes:
        """The `Reduction` record of the shader."""
        problem, inner = self.problem, self.problem.inner or Axis(1, 1, 0, 0)
        run = problem.run
        sizes = (self.tasks, problem.outputs, run.size, run.index, run.stride)
        blocks = (inner.size, inner.out, self.block, self.blocks, problem.repeats)
        axes = [(a.size, a.stride, a.out, a.index) for a in problem.outer]
        axes += [(1, 0, 0, 0)] * (MAX_AXES - len(axes))
        numbers = [first, *sizes, *blocks, *(value for axis in axes for value in axis)]
        tail = struct.pack("IIf4x", len(problem.outer), self.fold, parameter)
        return struct.pack(f"{len(numbers)}q", *numbers) + tail


def _grid(threads: int) -> tuple[int, int, int]:
    """Threads in rows that 32 bits can count."""
    return min(threads, GRID_ROW), -(-threads // GRID_ROW), 1


def _serial_work(problem: Reduction) -> Work:
    inner = problem.inner
    if inner is None:
        return Work(problem, ROW_BLOCK, 1, 1)
    fold = max(COLUMN_LANES // inner.size, 1) if problem.run.stride == inner.size else 1
    return Work(problem, COLUMN_BLOCK * fold, fold, -(-inner.size // COLUMN_LANES))


@family.variant("serial")
def serial(gpu: Context, problem: Reduction, array: Array, parameter: float, result: Array) -> None:
    """One thread a block, with lanes for the processor's vectors."""
    work = _serial_work(problem)
    kind = "columns" if problem.inner else "rows"
    record = work.packed(array.layout.offset, parameter)
    values, results = whole_buffer(array), whole_buffer(result)
    # Where the blocks are results, the states' argument is there for Metal's sake.
    states = results
    if work.parts > 1:
        states = gpu.buffer(work.parts * problem.outputs * STATE_BYTES, "reduction")
    _dispatch(gpu, problem, kind, [values, states, results], work.tasks, record)
    if work.parts > 1:
        _dispatch(gpu, problem, "merge", [states, results], problem.outputs, record)


def _dispatch(
    gpu: Context,
    problem: Reduction,
    kind: str,
    buffers: list[Buffer],
    threads: int,
    record: bytes,
) -> None:
    name = kernel_name(problem.function, kind, problem.dtype)
    pipeline = gpu.shaders.pipeline("reduction", name, safe_math=True)
    grid = _grid(threads)
    gpu.queue.dispatch(
        pipeline,
        [*buffers, record],
        grid,
        (min(grid[0], GROUP), 1, 1),
        kernel=problem.function,
        variant="serial",
    )
