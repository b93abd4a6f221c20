"""Sorting along the last axis: entries of key and index are sorted, or the first of them selected,
and results are made of the entries. The order of equal elements is kept, NaN comes last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Bool, Constants, Record, UInt
from lbrx.device_info import DeviceKind
from lbrx.errors import ShapeError
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, kernel_name, size_class
from lbrx.kernels.launching import GROUP
from lbrx.kernels.movement import movement
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, DeviceInfo
from lbrx.ops import Spec

KINDS = {dt.float16: 2, dt.bfloat16: 3, dt.float32: 4}
"""`KIND` of sorting.h for floating types."""
BLOCK = 32 << 10  # elements per thread, at least
TILE_BYTES = 16 << 10  # in threadgroup memory, so that two threadgroups fit on a core
SELECTED = 256  # if more are wanted, sorting is faster than insertion
SELECTED_PART = 8  # likewise if more than one in this many is wanted
GPU_RUN = 16  # entries that one thread merges


class SortConstants(Constants, header="sorting"):
    KIND: UInt  # the interpretation of an element's bits
    DESCENDING: Bool


class BlocksRecord(Record, header="sorting"):
    row: UInt  # elements in a row
    block: UInt  # elements in a block, but for the last of a row


class MergingRecord(Record, header="sorting"):
    row: UInt
    block: UInt  # entries in a block before
    run: UInt  # entries that a thread writes


class TilesRecord(Record, header="sorting"):
    row: UInt  # elements, or entries, in a row
    tile: UInt  # entries per threadgroup: a power of two
    keep: UInt  # entries that it writes
    stride: UInt  # entries between rows of the result


class SelectingRecord(Record, header="sorting"):
    row: UInt
    block: UInt
    keep: UInt
    blocks: UInt  # in a row


class ChosenRecord(Record, header="sorting"):
    row: UInt  # elements in a row of the source
    stride: UInt  # entries in a row
    keep: UInt  # of those in the result


@dataclass(frozen=True)
class SortProblem:
    """The problem: the first `keep` entries of each row in sorted order."""

    dtype: Dtype
    rows: int
    size: int
    keep: int
    descending: bool

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        return f"{self.dtype} {size_class(self.rows, self.size, self.keep)}"

    @property
    def bits(self) -> Dtype:
        """An unsigned integer type of the elements' width."""
        return movement.BITS[self.dtype.itemsize]

    @property
    def entry(self) -> str:
        """Which struct of sorting.h holds a key and its index."""
        return "large" if self.dtype.itemsize == 8 else "small"

    @property
    def entry_bytes(self) -> int:
        """Bytes of that struct."""
        return 16 if self.dtype.itemsize == 8 else 8

    @property
    def constants(self) -> SortConstants:
        """The kernels' function constants."""
        signed = 1 if self.dtype.kind is dt.Kind.INT else 0
        kind = KINDS.get(self.dtype, signed)
        return SortConstants(KIND=kind, DESCENDING=self.descending)


@dataclass(frozen=True)
class SortResults:
    """Buffers for the sorted values and their indices; None if not wanted."""

    values: Buffer | None = None
    indices: Buffer | None = None


family: KernelFamily[SortProblem] = KernelFamily("sorting")
family.samples += [
    Sample("sort", (Spec((1, 1 << 20), dt.float32),)),
    Sample("argsort", (Spec((4096, 1024), dt.float32),)),
    Sample("topk", (Spec((1, 49152), dt.float32),), {"k": 40}),
]


# ---- operations ----


@computes("sort")
def run_sort(call: Call) -> tuple[Array, ...]:
    """Compute `sort`."""
    return _ordered(call, call.attributes["descending"], values=True, indices=False)


@computes("argsort")
def run_argsort(call: Call) -> tuple[Array, ...]:
    """Compute `argsort`."""
    return _ordered(call, call.attributes["descending"], values=False, indices=True)


@computes("topk")
def run_topk(call: Call) -> tuple[Array, ...]:
    """Compute `topk`: the first values and their indices."""
    return _ordered(call, call.attributes["largest"], values=True, indices=True)


def _ordered(call: Call, descending: bool, *, values: bool, indices: bool) -> tuple[Array, ...]:
    """Sort along another axis: of a copy with that axis last, transposed back."""
    (keys,) = call.inputs
    assert keys is not None
    b, source = call.builder, call.builder.placed(keys)
    last = len(source.layout.shape) - 1
    axis = sh.normalize_axis(call.attributes["axis"], last + 1)
    turned = layouts.contiguous(b, _swapped(source, axis, last))
    *outer, size = turned.layout.shape
    keep = call.outputs[0].shape[axis]
    if size >= 2**31:
        raise ShapeError(f"{call.op.name} of {size} elements: Metal sorts rows of up to 2^31 - 1")
    results = [b.result(Spec((*outer, keep), spec.dtype)) for spec in call.outputs]
    problem = SortProblem(source.dtype, math.prod(outer), size, keep, descending)
    if problem.rows and keep:
        buffers = [buffer_of(result) for result in results]
        wanted = SortResults(buffers[0] if values else None, buffers[-1] if indices else None)
        family.run(b, problem, buffer_of(turned), wanted, op="sort")
    return tuple(layouts.contiguous(b, _swapped(r, axis, last)) for r in results)


def _swapped(array: Array, first: int, second: int) -> Array:
    return replace(array, layout=sh.transpose(array.layout, first, second))


# ---- kernels ----


def _dispatch(
    b: Builder,
    kernel: str,
    arguments: Sequence[Buffer | bytes],
    grid: tuple[int, int],
    part: str,
    constants: SortConstants | None = None,
    lanes: int = 0,
    threadgroup_memory: tuple[int, ...] = (),
) -> None:
    """Dispatch over threads, or over threadgroups of `lanes` threads."""
    pipeline = b.pipeline("sorting", kernel, constants, safe_math=True)
    x, y = grid
    b.launch(
        pipeline,
        arguments,
        (x * lanes if lanes else x, y, 1),
        (lanes or min(x, GROUP), 1, 1),
        threadgroup_memory=threadgroup_memory,
        part=part,
    )


def _entries(b: Builder, problem: SortProblem, stride: int) -> Buffer:
    return b.scratch(problem.rows * stride * problem.entry_bytes)


def _finish(
    b: Builder,
    problem: SortProblem,
    source: Buffer,
    entries: Buffer,
    stride: int,
    results: SortResults,
) -> None:
    chosen = ChosenRecord(row=problem.size, stride=stride, keep=problem.keep)
    grid = (problem.keep, problem.rows)
    if results.values is not None:
        name = kernel_name("sort", "values", problem.bits)
        values = (source, entries, results.values, chosen)
        _dispatch(b, name, values, grid, "values")
    if results.indices is not None:
        indices = (entries, results.indices, chosen)
        _dispatch(b, f"sort_indices_{problem.entry}", indices, grid, "indices")


def _merged(b: Builder, problem: SortProblem, entries: Buffer, other: Buffer, block: int) -> Buffer:
    """Merge sorted blocks into sorted rows; returns the buffer that holds them."""
    tasks = 8 * (b.info.cores or 1)
    run = b.info.by_kind(wide=max(1024, -(-problem.rows * problem.size // tasks)), simd=GPU_RUN)
    while block < problem.size:
        merging = MergingRecord(row=problem.size, block=block, run=run)
        grid = (-(-problem.size // run), problem.rows)
        arguments = (entries, other, merging)
        _dispatch(b, f"sort_merge_{problem.entry}", arguments, grid, "merge")
        entries, other, block = other, entries, 2 * block
    return entries


def _blocks(info: DeviceInfo, problem: SortProblem) -> int:
    """The number of blocks per row, a power of two: enough for all cores, but not too small."""
    wanted, most = -(-(info.cores or 1) // problem.rows), problem.size // BLOCK
    return 1 << max(0, min((wanted - 1).bit_length(), most.bit_length() - 1))


@family.variant("radix", cost=lambda info, problem: 2.0, made_for=DeviceKind.WIDE)
def radix(b: Builder, problem: SortProblem, source: Buffer, results: SortResults) -> None:
    """Each thread sorts a row, or a block of a long row, by a radix sort."""
    entries, other = (_entries(b, problem, problem.size) for _ in range(2))
    blocks = _blocks(b.info, problem)
    block = -(-problem.size // blocks)
    name = kernel_name("sort", "radix", problem.bits)
    arguments = (source, entries, other, BlocksRecord(row=problem.size, block=block))
    grid = (-(-problem.size // block), problem.rows)
    _dispatch(b, name, arguments, grid, "radix", problem.constants)
    entries = _merged(b, problem, entries, other, block)
    _finish(b, problem, source, entries, problem.size, results)


def _can_select(info: DeviceInfo, problem: SortProblem) -> bool:
    return problem.keep <= min(SELECTED, problem.size // SELECTED_PART)


@family.variant("select", can=_can_select, made_for=DeviceKind.WIDE)
def select(b: Builder, problem: SortProblem, source: Buffer, results: SortResults) -> None:
    """Each thread reads a row, or a block of a long row, and keeps a sorted list of the first."""
    blocks = _blocks(b.info, problem)
    block = -(-problem.size // blocks)
    lists = _entries(b, problem, blocks * problem.keep)
    selecting = SelectingRecord(row=problem.size, block=block, keep=problem.keep, blocks=blocks)
    name = kernel_name("sort", "select", problem.bits)
    arguments = (source, lists, selecting)
    _dispatch(b, name, arguments, (blocks, problem.rows), "select", problem.constants)
    if blocks > 1:
        one = _entries(b, problem, problem.keep)
        again = (lists, one, selecting)
        _dispatch(b, f"sort_select_again_{problem.entry}", again, (problem.rows, 1), "select")
        lists = one
    _finish(b, problem, source, lists, problem.keep, results)


@family.variant("tile", made_for=DeviceKind.SIMD)
def tile(b: Builder, problem: SortProblem, source: Buffer, results: SortResults) -> None:
    """Threadgroups sort tiles, and the tiles of a longer row are merged. If few entries are wanted,
    the first ones of all tiles are sorted again until they fit into one tile."""
    largest = TILE_BYTES // problem.entry_bytes
    size = min(largest, 1 << max(problem.size - 1, 1).bit_length())
    few = problem.keep <= size // 2
    keep = min(problem.keep, size) if few else size
    name = kernel_name("sort", "tile", problem.bits)
    entries, stride = _tiled(b, name, problem, source, problem.size, size, keep)
    while few and stride > keep:
        name = f"sort_tile_again_{problem.entry}"
        entries, stride = _tiled(b, name, problem, entries, stride, size, keep)
    if not few:
        other = _entries(b, problem, stride)
        entries = _merged(b, problem, entries, other, size)
    _finish(b, problem, source, entries, stride, results)


def _tiled(
    b: Builder, kernel: str, problem: SortProblem, source: Buffer, row: int, size: int, keep: int
) -> tuple[Buffer, int]:
    """Select the first `keep` of every tile of a row; returns them and their number per row."""
    tiles = -(-row // size)
    stride = (tiles - 1) * keep + min(keep, row - (tiles - 1) * size)
    entries = _entries(b, problem, stride)
    arguments = (source, entries, TilesRecord(row=row, tile=size, keep=keep, stride=stride))
    constants = None if kernel.endswith(problem.entry) else problem.constants
    lanes = min(GROUP, size // 2)
    memory = (size * problem.entry_bytes,)
    grid = (tiles, problem.rows)
    _dispatch(b, kernel, arguments, grid, "tile", constants, lanes, memory)
    return entries, stride
