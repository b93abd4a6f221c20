"""Indexing: take, gather and scatter.

Indices that are already in memory are checked immediately. Those that are still being computed are
checked by the kernel, which skips indices out of range; the next wait raises the error.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise, movement
from lbrx.kernels.arrays import (
    buffer_of,
    empty,
    kernel_name,
    placed,
    size_class,
    whole_buffer,
)
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.metal.commands import recorder
from lbrx.ops import Spec
from lbrx.storage import Array

GROUP = 256  # threads
CHECKED_ON_HOST = 1 << 18  # indices; more are checked by the kernel, which is faster
REPORT_BYTES = 12  # of a `Report`
SERIAL_COLUMNS = 64  # columns per thread: whole cache lines
THREADS_A_CORE = 1024  # of a GPU
# An index falls into a random share, and branches are mispredicted: shares pay off only from this
# number of cores on.
SHARED_FROM = 8
HALVES = (dt.float16, dt.bfloat16)


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

    def packed(self) -> bytes:
        """The problem as the record that the kernels read."""
        return struct.pack("3Q", self.axis, self.inner, self.count)

    def constants(self) -> dict[int, np.generic]:
        """The kernels' function constants: the type of indices, and whether runs are copied."""
        signed = -1 if self.indices.kind is dt.Kind.INT else 1
        return {0: np.int32(signed * self.indices.itemsize), 1: np.bool_(self.inner > 1)}

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
    check: Callable[[], IndexError | None] | None


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


def _indices(gpu: Context, op: str, given: Array, axis: int, *, checked: bool = True) -> Indices:
    array = elementwise.contiguous(gpu, placed(gpu, given))
    if not checked:
        return Indices(array, gpu.buffer(REPORT_BYTES), None)
    seen = _seen(gpu, given, array)
    if seen is not None and seen.layout.size <= CHECKED_ON_HOST:
        _check(seen, axis)
        return Indices(array, gpu.buffer(REPORT_BYTES), None)
    report = gpu.host_buffer(REPORT_BYTES)
    words = report.unsynchronised().view(np.uint32)
    words[:] = 0

    def check() -> IndexError | None:
        found, *halves = words.tolist()
        words[0] = 0
        kind = array.dtype.numpy.kind + "8"
        index = np.array(halves, np.uint32).view(kind)[0]
        return IndexError(f"kernel {op}: {_beyond(index, axis)}") if found else None

    return Indices(array, report, check)


def _seen(gpu: Context, given: Array, placed: Array) -> Array | None:
    """The indices where the host sees them without a wait; None if it does not."""
    if given.storage.device != "metal":
        return given
    block = whole_buffer(placed).block
    # Recorded commands will run with indices that are not known yet.
    ready = recorder() is None and block.ticket <= gpu.queue.completed()
    return placed if ready and not block.private else None


def _check(array: Array, axis: int) -> None:
    values = array.numpy()
    if values.size and (values.min() < -axis or values.max() >= axis):
        wrong = values[(values < -axis) | (values >= axis)]
        raise IndexError(_beyond(wrong[0], axis))


def _beyond(index: np.generic, axis: int) -> str:
    return f"index {index} is beyond an axis of {axis} elements"


def _problem(array: Array, axis: int, dtype: Dtype, indices: Dtype, count: int) -> PickProblem:
    shape = array.layout.shape
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return PickProblem(dtype, indices, outer, shape[axis], inner, count)


def _dispatch(
    gpu: Context,
    op: str,
    variant: str,
    problem: PickProblem,
    arguments: Sequence[Buffer | bytes],
    grid: tuple[int, int, int],
    indices: Indices,
) -> None:
    name = kernel_name(op, variant, problem.dtype)
    pipeline = gpu.shaders.pipeline("indexing", name, problem.constants(), safe_math=True)
    group = (min(grid[0], GROUP), min(grid[1], max(GROUP // max(grid[0], 1), 1)), 1)
    gpu.queue.dispatch(
        pipeline, arguments, grid, group, kernel=op, variant=variant, check=indices.check
    )


# ---- take ----


@computes("take")
def run_take(call: Call) -> tuple[Array, ...]:
    """Compute `take`."""
    given, wanted = call.inputs
    assert given is not None
    assert wanted is not None
    axis = sh.normalize_axis(call.attributes["axis"], len(given.layout.shape))
    source = elementwise.contiguous(call.gpu, placed(call.gpu, given))
    checked = call.attributes["beyond"] == "raise"
    indices = _indices(call.gpu, "take", wanted, source.layout.shape[axis], checked=checked)
    result = empty(call.gpu, call.outputs[0])
    count = indices.array.layout.size
    problem = _problem(source, axis, source.dtype, indices.array.dtype, count)
    # A replay may bind memory with another alignment.
    if recorder() is None:
        problem = _in_words(problem, buffer_of(source).address)
    else:
        problem = replace(problem, dtype=movement.BITS[source.dtype.itemsize])
    if result.layout.size:
        take.run(call.gpu, problem, buffer_of(source), indices, buffer_of(result))
    return (result,)


def _in_words(problem: PickProblem, address: int) -> PickProblem:
    """The problem with rows as the widest integers that their length and alignment allow."""
    row = problem.inner * problem.dtype.itemsize
    width = next(w for w in (8, 4, 2, 1) if row % w == 0 and address % w == 0)
    return replace(problem, dtype=movement.BITS[width], inner=row // width)


@take.variant("element", cost=lambda info, problem: 1.0 if info.simd_hardware else 2.0)
def take_element(
    gpu: Context, problem: PickProblem, source: Buffer, indices: Indices, result: Buffer
) -> None:
    """One thread per element."""
    arguments = (source, buffer_of(indices.array), result, problem.packed(), indices.report)
    _dispatch(gpu, "take", "element", problem, arguments, problem.grid, indices)


def _row_cost(info: DeviceInfo, problem: PickProblem) -> float:
    return 1.5 if not info.simd_hardware and problem.inner > 1 else 3.0


@take.variant("row", cost=_row_cost)
def take_row(
    gpu: Context, problem: PickProblem, source: Buffer, indices: Indices, result: Buffer
) -> None:
    """One thread per row."""
    arguments = (source, buffer_of(indices.array), result, problem.packed(), indices.report)
    grid = (problem.count, problem.outer, 1)
    _dispatch(gpu, "take", "row", problem, arguments, grid, indices)


# ---- gather ----


@computes("gather")
def run_gather(call: Call) -> tuple[Array, ...]:
    """Compute `gather`."""
    given, wanted = call.inputs
    assert given is not None
    assert wanted is not None
    axis = sh.normalize_axis(call.attributes["axis"], len(given.layout.shape))
    source = elementwise.contiguous(call.gpu, placed(call.gpu, given))
    indices = _indices(call.gpu, "gather", wanted, source.layout.shape[axis])
    result = empty(call.gpu, call.outputs[0])
    bits, count = movement.BITS[source.dtype.itemsize], indices.array.layout.shape[axis]
    problem = _problem(source, axis, bits, indices.array.dtype, count)
    if result.layout.size:
        gather.run(call.gpu, problem, buffer_of(source), indices, buffer_of(result))
    return (result,)


@gather.variant("element")
def gather_element(
    gpu: Context, problem: PickProblem, source: Buffer, indices: Indices, result: Buffer
) -> None:
    """One thread per element."""
    arguments = (source, buffer_of(indices.array), result, problem.packed(), indices.report)
    _dispatch(gpu, "gather", "element", problem, arguments, problem.grid, indices)


# ---- scatter ----


@computes("scatter")
def run_scatter(call: Call) -> tuple[Array, ...]:
    """Scatter into a copy. Halves are combined in float and rounded once."""
    given, wanted, changes = call.inputs
    assert given is not None
    assert wanted is not None
    assert changes is not None
    gpu, (spec,), reduce = call.gpu, call.outputs, call.attributes["reduce"]
    axis = sh.normalize_axis(call.attributes["axis"], len(spec.shape))
    indices = _indices(gpu, "scatter", wanted, spec.shape[axis])
    working = dt.float32 if reduce != "set" and spec.dtype in HALVES else spec.dtype
    result = empty(gpu, Spec(spec.shape, working))
    movement.copy(gpu, elementwise.cast(gpu, placed(gpu, given), working), result)
    updates = elementwise.contiguous(gpu, elementwise.cast(gpu, placed(gpu, changes), working))
    count = indices.array.layout.shape[axis]
    handled = _handled(working, reduce)
    problem = _problem(result, axis, handled, indices.array.dtype, count)
    if indices.array.layout.size:
        scatter.run(gpu, problem, reduce, indices, buffer_of(updates), buffer_of(result))
    return (elementwise.cast(gpu, result, spec.dtype),)


def _handled(dtype: Dtype, reduce: str) -> Dtype:
    """The type of the kernel: only its width matters where elements are moved, and no sign where
    integers wrap."""
    wraps = reduce in ("add", "multiply") and dtype.is_integer
    return movement.BITS[dtype.itemsize] if wraps or reduce == "set" else dtype


@scatter.variant("walk")
def scatter_walk(
    gpu: Context,
    problem: PickProblem,
    reduce: str,
    indices: Indices,
    updates: Buffer,
    result: Buffer,
) -> None:
    """One thread per column processes its indices in order, so sums are reproducible."""
    columns = 1 if gpu.info.simd_hardware else SERIAL_COLUMNS
    threads = -(-problem.inner // columns)
    shares = _shares(gpu.info, problem, problem.outer * threads)
    share = -(-problem.axis // shares)
    walking = struct.pack("I4xQ", columns, share)
    buffers = (buffer_of(indices.array), updates, result)
    arguments = (*buffers, problem.packed(), indices.report, walking)
    grid = (threads, shares, problem.outer)
    _dispatch(gpu, "scatter", reduce, problem, arguments, grid, indices)


def _shares(info: DeviceInfo, problem: PickProblem, threads: int) -> int:
    """The number of shares: only enough for all cores, since each reads all indices."""
    wanted = info.cores or 1
    if info.simd_hardware:
        wanted *= THREADS_A_CORE
    elif wanted < SHARED_FROM:
        return 1
    return max(1, min(problem.axis, wanted // threads))
