"""Matrix products in tiles that simdgroups multiply: for GPUs with simdgroup_matrix."""

from __future__ import annotations

import struct
from dataclasses import replace

from lbrx import dtype as dt
from lbrx.kernels.arrays import empty
from lbrx.kernels.matmul import (
    DISPATCH,
    EMULATED,
    MatmulProblem,
    bandwidth,
    family,
    finish,
    is_aligned,
    operands,
    peak,
    pipeline,
)
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.ops import Spec
from lbrx.storage import Array

# Constants of matmul_tiles.h.
SMALL_TILE, LARGE_TILE, TILE_DEPTH, TILE_THREADS = 32, 64, 16, 128

# Not measured: published fractions of the peak of Apple GPUs.
TILES_OF_PEAK = {SMALL_TILE: 0.6, LARGE_TILE: 0.8}
THREADGROUPS_A_CORE = 2  # per core, to hide latency
SPLIT_THREADGROUPS = 512
LEAST_DEPTH = 256  # of k per threadgroup, at least
SWIZZLE_FROM = 4  # rows of tiles


def _can_tile(info: DeviceInfo, problem: MatmulProblem) -> bool:
    return info.simdgroup_matrix and problem.dtype.is_float


def _tiles_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    """The time for whole tiles at the speed that this number of threadgroups reaches."""
    if not info.simd_hardware:
        return EMULATED + problem.operations
    size = tile_size(info, problem)
    return DISPATCH + _tiling_time(info, problem, size, _tiles(problem, size))


@family.variant("simd8x8", can=_can_tile, cost=_tiles_cost)
def simd8x8(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """Simdgroups multiply tiles. Sums are in order of k: the same bits for any m."""
    size = tile_size(gpu.info, problem)
    given = operands(problem, x, y, bias, result)
    _dispatch_tiles(gpu, problem, f"tiles{size}", given, problem.k)


def _can_split(info: DeviceInfo, problem: MatmulProblem) -> bool:
    return _can_tile(info, problem) and problem.k >= 2 * LEAST_DEPTH


def _split_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    """The time for all threadgroups, and for writing, reading and adding the partial sums."""
    if not info.simd_hardware:
        return EMULATED + 2 * problem.operations
    size, depth = _split(info, problem)
    parts = -(-problem.k // depth)
    sums = 8.0 * parts * problem.members * problem.m * problem.n
    time = _tiling_time(info, problem, size, _tiles(problem, size) * parts)
    return 2 * DISPATCH + time + sums / bandwidth(info)


@family.variant("splitk", can=_can_split, cost=_split_cost, batch_invariant=False)
def splitk(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """k is split over threadgroups too, for small results; the partial sums are then added."""
    size, depth = _split(gpu.info, problem)
    count = -(-problem.k // depth)
    parts = empty(gpu, Spec((count, *result.layout.shape), dt.float32))
    plain = replace(problem, bias=False, activation=None)
    _dispatch_tiles(gpu, plain, f"parts{size}", operands(plain, x, y, None, parts), depth)
    finish(gpu, problem, parts, count, bias, result)


def tile_size(info: DeviceInfo, problem: MatmulProblem) -> int:
    """Large tiles reuse more of the data they load; small ones give more threadgroups."""
    enough = THREADGROUPS_A_CORE * (info.cores or 1)
    return LARGE_TILE if _tiles(problem, LARGE_TILE) >= enough else SMALL_TILE


def _split(info: DeviceInfo, problem: MatmulProblem) -> tuple[int, int]:
    """The tile size and the depth of k per threadgroup."""
    size = tile_size(info, problem)
    parts = max(SPLIT_THREADGROUPS // _tiles(problem, size), 2)
    depth = max(-(-problem.k // parts), LEAST_DEPTH)
    return size, -(-depth // TILE_DEPTH) * TILE_DEPTH


def _tiles(problem: MatmulProblem, size: int) -> int:
    return -(-problem.m // size) * -(-problem.n // size) * problem.members


def _tiling_time(info: DeviceInfo, problem: MatmulProblem, size: int, threadgroups: int) -> float:
    """Microseconds: the larger of computing time and reading time."""
    busy = min(1.0, threadgroups / (THREADGROUPS_A_CORE * (info.cores or 1)))
    operations = 2.0 * _tiles(problem, size) * size * size * problem.k
    computing = operations / (TILES_OF_PEAK[size] * peak(info) * busy)
    read = (problem.m + problem.n) * problem.k * problem.members * problem.dtype.itemsize
    return max(computing, read / bandwidth(info))


def _dispatch_tiles(
    gpu: Context, problem: MatmulProblem, kernel: str, given: list[Buffer | bytes], depth: int
) -> None:
    size = int(kernel[-2:])
    down, across = -(-problem.m // size), -(-problem.n // size)
    swizzle = 0 if down < SWIZZLE_FROM else 1
    constants = {
        1: problem.x.transposed,
        2: problem.y.transposed,
        3: _whole(problem, size, depth, given),
        4: swizzle,
    }
    parts = -(-problem.k // depth)
    groups = (across << swizzle, -(-down >> swizzle), problem.members * parts)
    gpu.queue.dispatch(
        pipeline(gpu, problem, kernel, problem.dtype, constants),
        [*given, problem.packed(), struct.pack("I", depth)],
        (groups[0] * TILE_THREADS, groups[1], groups[2]),
        (TILE_THREADS, 1, 1),
        kernel="matmul",
        variant="simd8x8" if parts == 1 else "splitk",
    )


def _whole(problem: MatmulProblem, size: int, depth: int, given: list[Buffer | bytes]) -> bool:
    """Whether sizes are multiples of the tiles and rows are aligned for vector loads."""
    ends = not (problem.m % size or problem.n % size or problem.k % depth or depth % TILE_DEPTH)
    return ends and all(
        is_aligned(buffer, matrix.leading, strides, problem.dtype)
        for buffer, matrix, strides in [
            (given[0], problem.x, problem.x_batch),
            (given[1], problem.y, problem.y_batch),
        ]
    )
