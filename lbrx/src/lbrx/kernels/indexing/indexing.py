"""Indexing: take, gather and scatter.

The kernel checks indices and skips those out of range; the next wait raises the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.command_list import ReportCheck
from lbrx.command_lists.records import Bool, Constants, Int, Record, UInt, ULong
from lbrx.device_info import DeviceKind
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, kernel_name, size_class
from lbrx.kernels.launching import GROUP
from lbrx.kernels.movement import movement
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, DeviceInfo
from lbrx.ops import Spec

REPORT_BYTES = 12  # of an `IndexReport`
SERIAL_COLUMNS = 64  # columns per thread: whole cache lines
THREADS_A_CORE = 1024  # of a GPU
# An index falls into a random share, and branches are mispredicted: shares pay off only from this
# number of cores on.
SHARED_FROM = 8
HALVES = (dt.float16, dt.bfloat16)


class IndexConstants(Constants, header="indexing"):
    INDEX_TYPE: Int  # the width of indices in bytes, negative if they are signed
    ALONG_INNER: Bool = True  # whether the grid's x is the inner axis; otherwise the indices


class PickRecord(Record, header="indexing"):
    axis: ULong  # elements of the indexed axis
    inner: ULong  # elements after it, as one axis
    indices: ULong  # along the axis


class WalkingRecord(Record, header="indexing"):
    columns: UInt  # neighbouring columns per thread
    share: ULong  # elements of the axis that a thread writes


def index_type(dtype: Dtype) -> int:
    """The function constant for indices of a dtype."""
    return -dtype.itemsize if dtype.kind is dt.Kind.INT else dtype.itemsize


@dataclass(frozen=True)
class PickProblem:
    """The problem: an array as (outer, axis, inner), and the number of indices along the axis."""

    dtype: Dtype  # as which elements are moved
    indices: Dtype
    outer: int
    axis: int
    inner: int
    count: int

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        return f"{self.dtype} {size_class(self.outer, self.count, self.inner)}"

    def record(self) -> PickRecord:
        """The problem as the kernels read it."""
        return PickRecord(axis=self.axis, inner=self.inner, indices=self.count)

    def constants(self) -> IndexConstants:
        """The kernels' function constants."""
        return IndexConstants(INDEX_TYPE=index_type(self.indices), ALONG_INNER=self.inner > 1)

    @property
    def grid(self) -> tuple[int, int, int]:
        """The grid: x is the inner axis, or the indices if there is no inner axis."""
        if self.inner > 1:
            return self.inner, self.count, self.outer
        return self.count, 1, self.outer


@dataclass(frozen=True)
class Indices:
    """Indices, and the buffer in which a kernel reports one that is out of range."""

    array: Array
    report: Buffer
    check: ReportCheck | None


take: KernelFamily[PickProblem] = KernelFamily("take")
gather: KernelFamily[PickProblem] = KernelFamily("gather")
scatter: KernelFamily[PickProblem] = KernelFamily("scatter")
take.samples += [
    Sample(
        "take",
        (Spec((49152, 576), dt.float16), Spec((n,), dt.int64)),
        {"axis": 0, "beyond": "raise"},
    )
    for n in (1, 512)
]


# ---- indices ----


def _indices(b: Builder, op: str, given: Array, axis: int, *, checked: bool = True) -> Indices:
    array = layouts.contiguous(b, b.placed(given))
    if not checked:
        return Indices(array, b.scratch(REPORT_BYTES), None)
    kind = array.dtype.numpy.kind + "8"

    def check(words: NDArray[Any]) -> IndexError | None:
        is_beyond, *halves = words.tolist()
        words[0] = 0  # a replay uses the report again
        index = np.array(halves, np.uint32).view(kind)[0]
        return IndexError(f"kernel {op}: {_beyond(index, axis)}") if is_beyond else None

    return Indices(array, b.report(REPORT_BYTES), check)


def _beyond(index: np.generic, axis: int) -> str:
    return f"index {index} is beyond an axis of {axis} elements"


def _problem(array: Array, axis: int, dtype: Dtype, indices: Dtype, count: int) -> PickProblem:
    shape = array.layout.shape
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return PickProblem(dtype, indices, outer, shape[axis], inner, count)


def _dispatch(
    b: Builder,
    op: str,
    variant: str,
    problem: PickProblem,
    arguments: Sequence[Buffer | bytes],
    grid: tuple[int, int, int],
    indices: Indices,
) -> None:
    name = kernel_name(op, variant, problem.dtype)
    pipeline = b.pipeline("indexing", name, problem.constants(), safe_math=True)
    group = (min(grid[0], GROUP), min(grid[1], max(GROUP // max(grid[0], 1), 1)), 1)
    b.launch(*(pipeline, arguments, grid, group), check=indices.check, report=indices.report)


# ---- take ----


@computes("take")
def run_take(call: Call) -> tuple[Array, ...]:
    """Compute `take`."""
    picked_from, wanted = call.inputs
    assert picked_from is not None
    assert wanted is not None
    axis = sh.normalize_axis(call.attributes["axis"], len(picked_from.layout.shape))
    source = layouts.contiguous(call.builder, call.builder.placed(picked_from))
    checked = call.attributes["beyond"] == "raise"
    indices = _indices(call.builder, "take", wanted, source.layout.shape[axis], checked=checked)
    result = call.builder.result(call.outputs[0])
    count = indices.array.layout.size
    problem = _problem(source, axis, source.dtype, indices.array.dtype, count)
    problem = _in_words(problem, buffer_of(source).address)
    if result.layout.size:
        take.run(call.builder, problem, buffer_of(source), indices, buffer_of(result))
    return (result,)


def _in_words(problem: PickProblem, address: int) -> PickProblem:
    """The problem with rows as the widest integers that their length and alignment allow."""
    row = problem.inner * problem.dtype.itemsize
    width = next(w for w in (8, 4, 2, 1) if row % w == 0 and address % w == 0)
    return replace(problem, dtype=movement.BITS[width], inner=row // width)


@take.variant("element", cost=lambda info, problem: 2.0)
def take_element(
    b: Builder, problem: PickProblem, source: Buffer, indices: Indices, result: Buffer
) -> None:
    """One thread per element."""
    arguments = (source, buffer_of(indices.array), result, problem.record(), indices.report)
    _dispatch(b, "take", "element", problem, arguments, problem.grid, indices)


@take.variant(
    "row",
    cost=lambda info, problem: 1.5 if problem.inner > 1 else 3.0,
    made_for=DeviceKind.WIDE,
)
def take_row(
    b: Builder, problem: PickProblem, source: Buffer, indices: Indices, result: Buffer
) -> None:
    """One thread per row."""
    arguments = (source, buffer_of(indices.array), result, problem.record(), indices.report)
    grid = (problem.count, problem.outer, 1)
    _dispatch(b, "take", "row", problem, arguments, grid, indices)


# ---- gather ----


@computes("gather")
def run_gather(call: Call) -> tuple[Array, ...]:
    """Compute `gather`."""
    picked_from, wanted = call.inputs
    assert picked_from is not None
    assert wanted is not None
    axis = sh.normalize_axis(call.attributes["axis"], len(picked_from.layout.shape))
    source = layouts.contiguous(call.builder, call.builder.placed(picked_from))
    indices = _indices(call.builder, "gather", wanted, source.layout.shape[axis])
    result = call.builder.result(call.outputs[0])
    bits, count = movement.BITS[source.dtype.itemsize], indices.array.layout.shape[axis]
    problem = _problem(source, axis, bits, indices.array.dtype, count)
    if result.layout.size:
        gather.run(call.builder, problem, buffer_of(source), indices, buffer_of(result))
    return (result,)


@gather.variant("element")
def gather_element(
    b: Builder, problem: PickProblem, source: Buffer, indices: Indices, result: Buffer
) -> None:
    """One thread per element."""
    arguments = (source, buffer_of(indices.array), result, problem.record(), indices.report)
    _dispatch(b, "gather", "element", problem, arguments, problem.grid, indices)


# ---- scatter ----


@computes("scatter")
def run_scatter(call: Call) -> tuple[Array, ...]:
    """Scatter into a copy. Halves are combined in float and rounded once."""
    target, wanted, changes = call.inputs
    assert target is not None
    assert wanted is not None
    assert changes is not None
    b, (spec,), reduce = call.builder, call.outputs, call.attributes["reduce"]
    axis = sh.normalize_axis(call.attributes["axis"], len(spec.shape))
    indices = _indices(b, "scatter", wanted, spec.shape[axis])
    working = dt.float32 if reduce != "set" and spec.dtype in HALVES else spec.dtype
    result = b.result(Spec(spec.shape, working))
    movement.copy(b, layouts.cast(b, b.placed(target), working), result)
    updates = layouts.contiguous(b, layouts.cast(b, b.placed(changes), working))
    count = indices.array.layout.shape[axis]
    handled = _handled(working, reduce)
    problem = _problem(result, axis, handled, indices.array.dtype, count)
    if indices.array.layout.size:
        scatter.run(b, problem, reduce, indices, buffer_of(updates), buffer_of(result))
    return (layouts.cast(b, result, spec.dtype),)


def _handled(dtype: Dtype, reduce: str) -> Dtype:
    """The type of the kernel: only its width matters where elements are moved, and no sign where
    integers wrap."""
    wraps = reduce in ("add", "multiply") and dtype.is_integer
    return movement.BITS[dtype.itemsize] if wraps or reduce == "set" else dtype


@scatter.variant("walk")
def scatter_walk(
    b: Builder,
    problem: PickProblem,
    reduce: str,
    indices: Indices,
    updates: Buffer,
    result: Buffer,
) -> None:
    """One thread per column processes its indices in order, so sums are reproducible."""
    columns = b.info.by_kind(wide=SERIAL_COLUMNS, simd=1)
    threads = -(-problem.inner // columns)
    shares = _shares(b.info, problem, problem.outer * threads)
    share = -(-problem.axis // shares)
    walking = WalkingRecord(columns=columns, share=share)
    buffers = (buffer_of(indices.array), updates, result)
    arguments = (*buffers, problem.record(), indices.report, walking)
    grid = (threads, shares, problem.outer)
    _dispatch(b, "scatter", reduce, problem, arguments, grid, indices)


def _shares(info: DeviceInfo, problem: PickProblem, threads: int) -> int:
    """The number of shares: only enough for all cores, since each reads all indices."""
    wanted = (info.cores or 1) * info.by_kind(wide=1, simd=THREADS_A_CORE)
    if wanted < SHARED_FROM:
        return 1
    return max(1, min(problem.axis, wanted // threads))
