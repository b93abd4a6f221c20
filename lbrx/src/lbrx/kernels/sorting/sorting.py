"""Sorting along the last axis: entries of key and index are sorted, or the first of them selected,
and results are made of the entries. The order of equal elements is kept, NaN comes last."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.errors import ShapeError
from lbrx.kernels import elementwise, movement
from lbrx.kernels.arrays import buffer_of, empty, kernel_name, placed, size_class
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.metal.library import ConstantValue
from lbrx.ops import Spec
from lbrx.storage import Array

KINDS = {dt.float16: 2, dt.bfloat16: 3, dt.float32: 4}
"""`KIND` of sorting.h for floating types."""
GROUP = 256  # threads
BLOCK = 32 << 10  # elements per thread, at least
TILE_BYTES = 16 << 10  # in threadgroup memory, so that two threadgroups fit on a core
SELECTED = 256  # if more are wanted, sorting is faster than insertion
SELECTED_PART = 8  # likewise if more than one in this many is wanted
GPU_RUN = 16  # entries that one thread merges


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
    def constants(self) -> dict[int, ConstantValue]:
        """The kernels' function constants: the kind of keys, and the direction."""
        signed = 1 if self.dtype.kind is dt.Kind.INT else 0
        return {0: KINDS.get(self.dtype, signed), 1: self.descending}


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
    (given,) = call.inputs
    assert given is not None
    gpu, source = call.gpu, placed(call.gpu, given)
    last = len(source.layout.shape) - 1
    axis = sh.normalize_axis(call.attributes["axis"], last + 1)
    turned = elementwise.contiguous(gpu, _swapped(source, axis, last))
    *outer, size = turned.layout.shape
    keep = call.outputs[0].shape[axis]
    if size >= 2**31:
        raise ShapeError(f"{call.op.name} of {size} elements: Metal sorts rows of up to 2^31 - 1")
    results = [empty(gpu, Spec((*outer, keep), spec.dtype)) for spec in call.outputs]
    problem = SortProblem(source.dtype, math.prod(outer), size, keep, descending)
    if problem.rows and keep:
        buffers = [buffer_of(result) for result in results]
        wanted = SortResults(buffers[0] if values else None, buffers[-1] if indices else None)
        family.run(gpu, problem, buffer_of(turned), wanted)
    return tuple(elementwise.contiguous(gpu, _swapped(r, axis, last)) for r in results)


def _swapped(array: Array, first: int, second: int) -> Array:
    return replace(array, layout=sh.transpose(array.layout, first, second))


# ---- kernels ----


def _dispatch(
    gpu: Context,
    kernel: str,
    arguments: Sequence[Buffer | bytes],
    grid: tuple[int, int],
    variant: str,
    constants: Mapping[int, ConstantValue] | None = None,
    lanes: int = 0,
    threadgroup_memory: tuple[int, ...] = (),
) -> None:
    """Dispatch over threads, or over threadgroups of `lanes` threads."""
    pipeline = gpu.shaders.pipeline("sorting", kernel, constants, safe_math=True)
    x, y = grid
    gpu.queue.dispatch(
        pipeline,
        arguments,
        (x * lanes if lanes else x, y, 1),
        (lanes or min(x, GROUP), 1, 1),
        threadgroup_memory=threadgroup_memory,
        kernel="sort",
        variant=variant,
    )


def _entries(gpu: Context, problem: SortProblem, stride: int) -> Buffer:
    return gpu.buffer(problem.rows * stride * problem.entry_bytes)


def _finish(
    gpu: Context,
    problem: SortProblem,
    source: Buffer,
    entries: Buffer,
    stride: int,
    results: SortResults,
) -> None:
    chosen = struct.pack("3I", problem.size, stride, problem.keep)
    grid = (problem.keep, problem.rows)
    if results.values is not None:
        name = kernel_name("sort", "values", problem.bits)
        values = (source, entries, results.values, chosen)
        _dispatch(gpu, name, values, grid, "values")
    if results.indices is not None:
        indices = (entries, results.indices, chosen)
        _dispatch(gpu, f"sort_indices_{problem.entry}", indices, grid, "indices")


def _merged(
    gpu: Context, problem: SortProblem, entries: Buffer, other: Buffer, block: int
) -> Buffer:
    """Merge sorted blocks into sorted rows; returns the buffer that holds them."""
    run = GPU_RUN
    if not gpu.info.simd_hardware:
        run = max(1024, -(-problem.rows * problem.size // (8 * (gpu.info.cores or 1))))
    while block < problem.size:
        merging = struct.pack("3I", problem.size, block, run)
        grid = (-(-problem.size // run), problem.rows)
        arguments = (entries, other, merging)
        _dispatch(gpu, f"sort_merge_{problem.entry}", arguments, grid, "merge")
        entries, other, block = other, entries, 2 * block
    return entries


def _blocks(info: DeviceInfo, problem: SortProblem) -> int:
    """The number of blocks per row, a power of two: enough for all cores, but not too small."""
    wanted, most = -(-(info.cores or 1) // problem.rows), problem.size // BLOCK
    return 1 << max(0, min((wanted - 1).bit_length(), most.bit_length() - 1))


@family.variant("radix", cost=lambda info, problem: 4.0 if info.simd_hardware else 2.0)
def radix(gpu: Context, problem: SortProblem, source: Buffer, results: SortResults) -> None:
    """Each thread sorts a row, or a block of a long row, by a radix sort."""
    entries, other = (_entries(gpu, problem, problem.size) for _ in range(2))
    blocks = _blocks(gpu.info, problem)
    block = -(-problem.size // blocks)
    name = kernel_name("sort", "radix", problem.bits)
    arguments = (source, entries, other, struct.pack("2I", problem.size, block))
    grid = (-(-problem.size // block), problem.rows)
    _dispatch(gpu, name, arguments, grid, "radix", problem.constants)
    entries = _merged(gpu, problem, entries, other, block)
    _finish(gpu, problem, source, entries, problem.size, results)


def _can_select(info: DeviceInfo, problem: SortProblem) -> bool:
    return problem.keep <= min(SELECTED, problem.size // SELECTED_PART)


@family.variant(
    "select", can=_can_select, cost=lambda info, problem: 3.0 if info.simd_hardware else 1.0
)
def select(gpu: Context, problem: SortProblem, source: Buffer, results: SortResults) -> None:
    """Each thread reads a row, or a block of a long row, and keeps a sorted list of the first."""
    blocks = _blocks(gpu.info, problem)
    block = -(-problem.size // blocks)
    lists = _entries(gpu, problem, blocks * problem.keep)
    selecting = struct.pack("4I", problem.size, block, problem.keep, blocks)
    name = kernel_name("sort", "select", problem.bits)
    arguments = (source, lists, selecting)
    _dispatch(gpu, name, arguments, (blocks, problem.rows), "select", problem.constants)
    if blocks > 1:
        one = _entries(gpu, problem, problem.keep)
        again = (lists, one, selecting)
        _dispatch(gpu, f"sort_select_again_{problem.entry}", again, (problem.rows, 1), "select")
        lists = one
    _finish(gpu, problem, source, lists, problem.keep, results)


@family.variant("tile", cost=lambda info, problem: 1.0 if info.simd_hardware else 8.0)
def tile(gpu: Context, problem: SortProblem, source: Buffer, results: SortResults) -> None:
    """Threadgroups sort tiles, and the tiles of a longer row are merged. If few entries are wanted,
    the first ones of all tiles are sorted again until they fit into one tile."""
    largest = TILE_BYTES // problem.entry_bytes
    size = min(largest, 1 << max(problem.size - 1, 1).bit_length())
    few = problem.keep <= size // 2
    keep = min(problem.keep, size) if few else size
    name = kernel_name("sort", "tile", problem.bits)
    entries, stride = _tiled(gpu, name, problem, source, problem.size, size, keep)
    while few and stride > keep:
        name = f"sort_tile_again_{problem.entry}"
        entries, stride = _tiled(gpu, name, problem, entries, stride, size, keep)
    if not few:
        other = _entries(gpu, problem, stride)
        entries = _merged(gpu, problem, entries, other, size)
    _finish(gpu, problem, source, entries, stride, results)


def _tiled(
    gpu: Context, kernel: str, problem: SortProblem, source: Buffer, row: int, size: int, keep: int
) -> tuple[Buffer, int]:
    """Select the first `keep` of every tile of a row; returns them and their number per row."""
    tiles = -(-row // size)
    stride = (tiles - 1) * keep + min(keep, row - (tiles - 1) * size)
    entries = _entries(gpu, problem, stride)
    arguments = (source, entries, struct.pack("4I", row, size, keep, stride))
    constants = None if kernel.endswith(problem.entry) else problem.constants
    lanes = min(GROUP, size // 2)
    memory = (size * problem.entry_bytes,)
    grid = (tiles, problem.rows)
    _dispatch(gpu, kernel, arguments, grid, "tile", constants, lanes, memory)
    return entries, stride
