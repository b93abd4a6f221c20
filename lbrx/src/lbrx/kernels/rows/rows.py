"""Operations on rows, each processed by a team of threads: the host side of `rows.h`.

A team is one thread, a simdgroup or a threadgroup. Rows that are too long for one team are split
into parts: one kernel computes a summary of each part, a second kernel merges the summaries of a
row and finishes its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Layout
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Constants, Record, UInt, ULong
from lbrx.device_info import DeviceKind
from lbrx.kernels.arrays import buffer_of, kernel_name, size_class
from lbrx.kernels.launching import SIMD_WIDTH
from lbrx.kernels.layouts import collapsed, contiguous
from lbrx.kernels.registry import KernelFamily, policy
from lbrx.metal import Buffer, DeviceInfo
from lbrx.metal.commands import Size

LONGEST = 2**31 - 1  # elements of a row: they are counted in 32 bits
KEPT = 32  # elements that a thread keeps in registers, as in rows.h
VECTOR = 16  # bytes that a thread loads at once
RAGGED_FROM = 64  # elements of a row that is worth loading as vectors if it begins within one
GROUP_ROWS = 8  # simdgroups in a threadgroup, each with its own row
FEW_ROWS = 32
THREADS = 512  # in the largest team, as its kernels declare: registers for KEPT elements limit it
SERIAL_PART = 1 << 15
SERIAL_SPLIT = 1 << 16  # from this length a row is split over several cores
SERIAL_PARTS = 1 << 10  # at most, since every part reads all summaries
SUMMARY_BYTES = 8
OWN_BYTES = 32 << 10  # of a row that a CPU's thread writes past the caches, as in streamed.h


@dataclass(frozen=True)
class RowProblem:
    """The problem: the number, length and dtype of rows."""

    dtype: Dtype
    count: int
    length: int
    inner: int = 1
    """The stride of a row's elements: 1, or the number of interleaved rows."""

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        return f"{self.dtype} {size_class(self.count, self.length, self.inner)}"


class RowLoads(StrEnum):
    """What a thread of a team loads at once."""

    SINGLE = ""
    VECTORS = "vectors"
    """Vectors: rows begin and end at multiples of them."""
    RAGGED = "ragged"
    """Vectors: rows begin anywhere within one, but input and output alike."""


class RowsRecord(Record, header="rows"):
    """Rows of one length; rows that are too long for a team are split into parts."""

    length: UInt
    part: UInt  # elements of all parts but the last
    parts: UInt  # of a row
    stride: ULong  # from row to row of the input, in elements


@dataclass(frozen=True)
class RowTask:
    """A computation on rows: the shader stem, and the arguments before the `RowsRecord`."""

    stem: str
    op: str
    constants: Constants
    arguments: Sequence[Buffer | bytes | None]
    stride: int
    """The distance between rows of the input, in elements."""
    loads: RowLoads


def by_rows(b: Builder, *arrays: Array) -> tuple[list[Array], int]:
    """The arrays with a contiguous last axis and a common row stride, copied if necessary, and that
    stride in elements.

    What is loaded at once decides the order in which a row is added up. If a row must have the same
    bits in every batch, rows of vectors are copied to where they can be loaded as such.
    """
    strides = {_row_stride(array.layout) for array in arrays}
    stride = strides.pop()
    length = arrays[0].layout.shape[-1]
    if stride is not None and not strides:
        whole = length * arrays[0].dtype.itemsize % VECTOR == 0
        vectors = loads(stride, *arrays) is RowLoads.VECTORS
        if vectors or not (whole and policy().deterministic):
            return list(arrays), stride
    return [contiguous(b, array) for array in arrays], length


def loads(stride: int, *arrays: Array) -> RowLoads:
    """How rows of all the arrays can be loaded, if the first ones have this stride and the others
    are contiguous."""
    length, per_vector = arrays[0].layout.shape[-1], VECTOR // arrays[0].dtype.itemsize
    if any(buffer_of(array).offset % VECTOR for array in arrays):
        return RowLoads.SINGLE
    if length % per_vector == 0 and stride % per_vector == 0:
        return RowLoads.VECTORS
    alike = (stride - length) % per_vector == 0 and length >= RAGGED_FROM
    return RowLoads.RAGGED if alike and not policy().deterministic else RowLoads.SINGLE


def _row_stride(layout: Layout) -> int | None:
    """The stride between rows; None if they are not evenly spaced."""
    outer = Layout(layout.shape[:-1], layout.strides[:-1])
    axes, (strides,) = collapsed(outer.shape, [outer])
    close = layout.shape[-1] == 1 or layout.strides[-1] == 1
    return strides[0] if close and len(axes) == 1 and strides[0] >= 0 else None


# ---- variants ----

Threads = tuple[Size, Size]  # of the grid and of a threadgroup
RowLaunch = Callable[[Builder, RowProblem, RowTask], None]
RowCost = Callable[[DeviceInfo, RowProblem], float]


def add_variants(family: KernelFamily[RowProblem]) -> None:
    """Register the variants: single threads for CPUs, simdgroups and threadgroups for GPUs."""
    largest = THREADS * KEPT  # length of a row of one team

    def add(
        made_for: DeviceKind, name: str, longest: int, launch: RowLaunch, cost: RowCost
    ) -> None:
        def can(info: DeviceInfo, problem: RowProblem) -> bool:
            return problem.inner == 1 and problem.length <= longest

        family.variant(name, can=can, cost=cost, made_for=made_for)(launch)

    def in_parts(info: DeviceInfo, problem: RowProblem) -> float:
        return 1.0 if problem.length >= SERIAL_SPLIT else 5.0

    wide, simd = DeviceKind.WIDE, DeviceKind.SIMD
    add(wide, "serial", LONGEST, _at_once("serial", _thread), _always(2))
    add(wide, "serial_parts", LONGEST, _in_parts("serial", _serial_parts), in_parts)
    add(simd, "simdgroup", SIMD_WIDTH * KEPT, _at_once("simdgroup", _simdgroup), _always(1))
    add(simd, "threadgroup", largest, _at_once("threadgroup", _threadgroup), _always(2))
    parts = _in_parts("threadgroup", _threadgroup_parts)
    add(simd, "threadgroup_parts", LONGEST, parts, _always(3))


def add_streamed(family: KernelFamily[RowProblem]) -> None:
    """Register a variant for large results on CPUs: one thread per row, which writes them past the
    caches. It does not pay off where arithmetic is the limit."""
    launch = _at_once("streamed", _thread)
    family.variant(
        "streamed", can=_can_stream, cost=_stream_cost, made_for=DeviceKind.WIDE, only=True
    )(launch)


def _can_stream(info: DeviceInfo, problem: RowProblem) -> bool:
    fits = problem.length * problem.dtype.itemsize <= OWN_BYTES
    return fits and problem.inner == 1


def _stream_cost(info: DeviceInfo, problem: RowProblem) -> float:
    size = problem.count * problem.length * problem.dtype.itemsize
    return 0.5 if info.streams(size) else 4.0


def _always(cost: float) -> RowCost:
    return lambda info, problem: cost


def _at_once(team: str, threads: Callable[[RowProblem, RowTask], Threads]) -> RowLaunch:
    """A launch of one kernel; `threads` gives the grid."""

    def launch(b: Builder, problem: RowProblem, task: RowTask) -> None:
        """One kernel, with a team of threads for each row."""
        record = _record(problem, task, problem.length)
        _dispatch(b, problem, task, team, [record], threads(problem, task), team)

    return launch


def _in_parts(team: str, divide: Callable[[RowProblem], tuple[int, int]]) -> RowLaunch:
    """A launch of two kernels; `divide` gives the part's length and threads."""

    def launch(b: Builder, problem: RowProblem, task: RowTask) -> None:
        """Two kernels for long rows, with a team of threads for each part of a row."""
        part, threads = divide(problem)
        count = -(-problem.length // part)
        summaries = b.scratch(problem.count * count * SUMMARY_BYTES)
        extra: list[Buffer | bytes] = [_record(problem, task, part), summaries]
        size = (count * threads, problem.count, 1), (threads, 1, 1)
        for step in ("summary", "finish"):
            _dispatch(b, problem, task, f"{team}_{step}", extra, size, f"{team}_parts")

    return launch


def _dispatch(
    b: Builder,
    problem: RowProblem,
    task: RowTask,
    kernel: str,
    extra: Sequence[Buffer | bytes],
    threads: Threads,
    variant: str,
) -> None:
    alone = kernel.startswith(("serial", "streamed"))
    loaded = "" if alone else task.loads
    stem = f"{task.stem}_streamed" if kernel == "streamed" else task.stem
    name = kernel_name(task.stem, "_".join(filter(None, (kernel, loaded))), problem.dtype)
    pipeline = b.pipeline(stem, name, task.constants, safe_math=True)
    arguments = [*task.arguments, *extra]
    b.launch(pipeline, arguments, *threads)


def _record(problem: RowProblem, task: RowTask, part: int) -> RowsRecord:
    parts = -(-problem.length // part)
    return RowsRecord(length=problem.length, part=part, parts=parts, stride=task.stride)


def _thread(problem: RowProblem, task: RowTask) -> Threads:
    return (problem.count, 1, 1), (1, 1, 1)


def _simdgroup(problem: RowProblem, task: RowTask) -> Threads:
    return (SIMD_WIDTH, problem.count, 1), (SIMD_WIDTH, min(GROUP_ROWS, problem.count), 1)


def _threadgroup(problem: RowProblem, task: RowTask) -> Threads:
    """Enough threads for the elements in registers: those at the edges of ragged rows are extra."""
    edges = problem.length % (VECTOR // problem.dtype.itemsize)
    kept = problem.length - (edges if task.loads is RowLoads.RAGGED else 0)
    # Few rows leave most of a GPU idle, and more threads finish a row sooner.
    few = problem.count <= FEW_ROWS and not policy().deterministic
    least = VECTOR // problem.dtype.itemsize if few else KEPT
    threads = min(-(-kept // (least * SIMD_WIDTH)) * SIMD_WIDTH, THREADS)
    return (threads, problem.count, 1), (threads, 1, 1)


def _serial_parts(problem: RowProblem) -> tuple[int, int]:
    return max(SERIAL_PART, -(-problem.length // SERIAL_PARTS)), 1


def _threadgroup_parts(problem: RowProblem) -> tuple[int, int]:
    """Parts of whole vectors, of which the last is not so short that it might have none."""
    part = THREADS * KEPT
    while 0 < problem.length % part < 2 * VECTOR:
        part -= VECTOR
    return part, THREADS
