"""Matrix products in tiles that simdgroups multiply: for GPUs with simdgroup_matrix."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from hashlib import blake2b

from lbrx import dtype as dt
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, empty
from lbrx.kernels.finishing import Finish, finishes
from lbrx.kernels.matmul import (
    EMULATED,
    MatmulProblem,
    Matrix,
    bandwidth,
    dispatching,
    family,
    finish,
    is_aligned,
    matmul,
    operands,
    pipeline,
    pipeline_of,
    problem_of,
    product_peak,
    product_rate,
)
from lbrx.kernels.product_steps import ProductSteps, steps_of
from lbrx.kernels.registry import Call, policy
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.ops import Spec
from lbrx.storage import Array

# Not measured: published fractions of the peak of Apple GPUs.
SMALL_OF_PEAK, LARGE_OF_PEAK = 0.6, 0.8
SPLIT_THREADGROUPS = 512
LEAST_DEPTH = 256  # of k per threadgroup, at least
SWIZZLE_FROM = 4  # rows of tiles
COPIED = 16  # bytes that kernels copy at once into threadgroup memory
OF_BANDWIDTH = 0.85  # of products with few rows, as measured on an H200
TILES_MEMORY = 32 << 10  # of threadgroup memory on GPUs without tensor cores


@dataclass(frozen=True)
class Tiling:
    """The tiles of a kernel, as the instances in matmul_tiles.metal have them."""

    name: str
    down: int  # simdgroups of a threadgroup
    across: int
    rows: int  # of each simdgroup
    columns: int
    depth: int  # of k in threadgroup memory at a time
    stages: int  # that many depths
    of_peak: float  # of a GPU's, if all cores are busy

    @property
    def sizes(self) -> tuple[int, ...]:
        """The arguments of the shader's `Tiling`."""
        return (self.down, self.across, self.rows, self.columns, self.depth, self.stages)

    @property
    def m(self) -> int:
        """Rows of a threadgroup's results."""
        return self.down * self.rows

    @property
    def n(self) -> int:
        """Columns of a threadgroup's results."""
        return self.across * self.columns

    @property
    def threads(self) -> int:
        """Threads of a threadgroup."""
        return self.down * self.across * 32

    @property
    def a_core(self) -> int:
        """Threadgroups that a core needs to hide latency, which stages hide by themselves."""
        return 2 if self.stages == 1 else 1

    @property
    def swizzle(self) -> int:
        """The rows of tiles that follow each other, as a power of two, at most."""
        return 1 if self.stages == 1 else 3

    def memory(self, dtype: Dtype) -> int:
        """Bytes of threadgroup memory. Rows or columns are lines with padding."""
        padding = COPIED // dtype.itemsize
        sides = (
            max(side * (self.depth + padding), self.depth * (side + padding))
            for side in (self.m, self.n)
        )
        return sum(sides) * dtype.itemsize * self.stages

    def memory_with(self, dtype: Dtype, steps: ProductSteps | None) -> int:
        """The same for a kernel that computes steps, whose sums go through it."""
        sums = 0 if steps is None else 4 * self.m * (self.n + 4)
        return max(self.memory(dtype), sums)

    @property
    def share(self) -> float:
        """The time of a threadgroup, relative to others with the same k."""
        return self.m * self.n / self.of_peak

    def count(self, problem: MatmulProblem) -> int:
        """Threadgroups for the results of a problem."""
        return -(-problem.m // self.m) * -(-problem.n // self.n) * problem.members


# From large to small. The second list is for tensor cores; its shares of their peak are an H200's.
TILINGS = (
    Tiling("64", 2, 2, 32, 32, 16, 1, LARGE_OF_PEAK),
    Tiling("32", 2, 2, 16, 16, 16, 1, SMALL_OF_PEAK),
)
TENSOR_TILINGS = (
    Tiling("tensor256", 2, 4, 64, 64, 64, 4, 0.6),
    Tiling("tensor128", 2, 4, 64, 32, 64, 4, 0.45),
    Tiling("tensor64", 2, 2, 32, 32, 64, 3, 0.2),
)


def has_tensor_cores(info: DeviceInfo) -> bool:
    """Whether tile.h multiplies halves on tensor cores. Such GPUs have more threadgroup memory
    than those without."""
    return info.threadgroup_memory > TILES_MEMORY


def _can_tile(info: DeviceInfo, problem: MatmulProblem) -> bool:
    return info.simdgroup_matrix and problem.dtype.is_float


def _tiles_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    """The time for whole tiles at the speed that this number of threadgroups reaches."""
    if not info.simd_hardware:
        return EMULATED + problem.operations
    tiling = tiling_for(info, problem)
    return dispatching(info) + _tiling_time(info, problem, tiling, tiling.count(problem))


@family.variant("tiles", can=_can_tile, cost=_tiles_cost)
def tiles(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """Simdgroups multiply tiles. Sums are in order of k: the same bits for any m."""
    tiling = tiling_for(gpu.info, problem)
    given = operands(problem, x, y, bias, result)
    _dispatch_tiles(gpu, problem, "whole", tiling, given, problem.k)


def _can_split(info: DeviceInfo, problem: MatmulProblem) -> bool:
    return _can_tile(info, problem) and problem.k >= 2 * LEAST_DEPTH


def _split_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    """The time for all threadgroups, and for writing, reading and adding the partial sums."""
    if not info.simd_hardware:
        return EMULATED + 2 * problem.operations
    tiling, depth = _split(info, problem)
    parts = -(-problem.k // depth)
    sums = 8.0 * parts * problem.members * problem.m * problem.n
    time = _tiling_time(info, problem, tiling, tiling.count(problem) * parts)
    return 2 * dispatching(info) + time + sums / bandwidth(info)


@family.variant("splitk", can=_can_split, cost=_split_cost, batch_invariant=False)
def splitk(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """k is split over threadgroups too, for small results; the partial sums are then added."""
    tiling, depth = _split(gpu.info, problem)
    count = -(-problem.k // depth)
    parts = empty(gpu, Spec((count, *result.layout.shape), dt.float32))
    plain = replace(problem, bias=False, activation=None)
    given = operands(plain, x, y, None, parts)
    _dispatch_tiles(gpu, plain, "parts", tiling, given, depth, ("matmul", "splitk"))
    finish(gpu, problem, parts, count, bias, result)


def times_rows(
    gpu: Context,
    x: Array,
    y: Array,
    result: Array,
    column: int,
    label: tuple[str, str],
    steps: ProductSteps | None = None,
) -> None:
    """x times the transposed of y, of one dtype and contiguous, into columns of the result."""
    (m, k), (n, _), (_, columns) = x.layout.shape, y.layout.shape, result.layout.shape
    problem = MatmulProblem(m, n, k, x.dtype, Matrix(False, k), Matrix(True, k), row=columns)
    size, out = result.dtype.itemsize, buffer_of(result)
    out = out.slice(column * size, out.size - column * size)
    given: list[Buffer | bytes] = [buffer_of(x), buffer_of(y), bytes(x.dtype.itemsize), out]
    tiling = tiling_for(gpu.info, problem)
    after = None if steps is None else steps.from_column(column)
    _dispatch_tiles(gpu, problem, "whole", tiling, given, k, label, after)


def takes_steps(info: DeviceInfo) -> bool:
    """Whether steps after a product are computed in the kernel of its tiles. Large tiles of tensor
    cores leave a core few threads for them: on an H200, kernels of their own are faster."""
    return info.simd_hardware and info.simdgroup_matrix and not has_tensor_cores(info)


@finishes("matmul", accepts=takes_steps)
def finished_matmul(call: Call, finish: Finish) -> tuple[Array, ...]:
    """A product and the elementwise steps after it: in one kernel where tiles compute it."""
    gpu, (spec,) = call.gpu, call.outputs
    x, y, *rest = (array for array in call.inputs if array is not None)
    matrices = min(x.layout.ndim, y.layout.ndim) > 1 and x.layout.shape[-1] > 0
    if matrices and all(array.dtype is spec.dtype for array in (x, y, *rest)):
        bias = elementwise.contiguous(gpu, rest[0]) if rest else None
        x, y, problem = problem_of(gpu, x, y, bias is not None, call.attributes["activation"])
        steps = steps_of(finish)
        if steps is not None and family.choose(gpu.info, problem).name == "tiles":
            result = empty(gpu, finish.computation.outputs[0][1])
            given = operands(problem, x, y, bias, result)
            tiling = tiling_for(gpu.info, problem)
            label = (steps.name, "tiles")
            _dispatch_tiles(gpu, problem, "whole", tiling, given, problem.k, label, steps)
            return (result,)
    (product,) = matmul(call)
    return elementwise.compute(gpu, finish.after(product))


def tiling_for(info: DeviceInfo, problem: MatmulProblem) -> Tiling:
    """Large tiles reuse more of the data they load; small ones give more threadgroups."""
    cores = info.cores or 1
    if has_tensor_cores(info) and problem.dtype.itemsize == 2:
        # Hopper multiplies the large ones by other instructions than the smallest.
        able = TENSOR_TILINGS[:-1] if policy().deterministic else TENSOR_TILINGS
        return min(able, key=lambda t: -(-t.count(problem) // cores) * t.share)
    large, small = TILINGS
    return large if large.count(problem) >= large.a_core * cores else small


def _split(info: DeviceInfo, problem: MatmulProblem) -> tuple[Tiling, int]:
    """The tiles and the depth of k per threadgroup."""
    tiling = tiling_for(info, problem)
    parts = max(SPLIT_THREADGROUPS // tiling.count(problem), 2)
    depth = max(-(-problem.k // parts), LEAST_DEPTH)
    return tiling, -(-depth // tiling.depth) * tiling.depth


def _tiling_time(
    info: DeviceInfo, problem: MatmulProblem, tiling: Tiling, threadgroups: int
) -> float:
    """Microseconds: the larger of computing time and reading time."""
    busy = min(1.0, threadgroups / (tiling.a_core * (info.cores or 1)))
    operations = 2.0 * tiling.count(problem) * tiling.m * tiling.n * problem.k
    computing = operations / (_speed(info, problem.dtype, tiling) * busy)
    read = (problem.m + problem.n) * problem.k * problem.members * problem.dtype.itemsize
    return max(computing, read / (OF_BANDWIDTH * bandwidth(info)))


def _speed(info: DeviceInfo, dtype: Dtype, tiling: Tiling) -> float:
    """Operations per microsecond if all cores are busy. Large products were measured with the
    largest tiles."""
    largest = (TILINGS if tiling in TILINGS else TENSOR_TILINGS)[0]
    large = product_rate(info, "tiles", dtype, largest.of_peak * product_peak(info, dtype))
    return large * tiling.of_peak / largest.of_peak


def _dispatch_tiles(
    gpu: Context,
    problem: MatmulProblem,
    kernel: str,
    tiling: Tiling,
    given: list[Buffer | bytes],
    depth: int,
    label: tuple[str, str] = ("matmul", "tiles"),
    steps: ProductSteps | None = None,
) -> None:
    down, across = -(-problem.m // tiling.m), -(-problem.n // tiling.n)
    swizzle = min((down // SWIZZLE_FROM).bit_length(), tiling.swizzle)
    constants = {
        1: problem.x.transposed,
        2: problem.y.transposed,
        3: _aligned(problem, given),
        4: swizzle,
        5: _stored_at_once(problem, given[3], steps),
    }
    parts = -(-problem.k // depth)
    groups = (across << swizzle, -(-down >> swizzle), problem.members * parts)
    arguments = [*given, problem.packed(), struct.pack("I", depth)]
    if steps is None:
        name = f"{kernel}{tiling.name}"
        made = pipeline(gpu, problem, name, problem.dtype, constants, stem="matmul_tiles")
    else:
        text = _stepped_text(steps, len(arguments), problem.dtype, tiling)
        name = f"{steps.name}_{blake2b(text.encode(), digest_size=6).hexdigest()}"
        arguments += steps.operands
        made = pipeline_of(gpu, problem, name, constants, text.replace("NAME", f'"{name}"'))
    gpu.queue.dispatch(
        made,
        arguments,
        (groups[0] * tiling.threads, groups[1], groups[2]),
        (tiling.threads, 1, 1),
        threadgroup_memory=(tiling.memory_with(problem.dtype, steps),),
        kernel=label[0],
        variant=label[1],
    )


def _stepped_text(steps: ProductSteps, first: int, dtype: Dtype, tiling: Tiling) -> str:
    """A kernel with steps after the product, called NAME."""
    types = f"{dtype.msl}, {dtype.msl}, {steps.stores.msl}"
    sizes = ", ".join(map(str, tiling.sizes))
    instance = f"TILES_INSTANCE(NAME, {types}, {sizes})"
    return f'{steps.text(first)}#include "matmul_tiles.h"\n{instance}\n'


def _aligned(problem: MatmulProblem, given: list[Buffer | bytes]) -> bool:
    """Whether the rows of both operands, or their columns, begin at multiples of what is copied."""
    return all(
        is_aligned(buffer, matrix.leading, strides, problem.dtype, COPIED)
        for buffer, matrix, strides in [
            (given[0], problem.x, problem.x_batch),
            (given[1], problem.y, problem.y_batch),
        ]
    )


def _stored_at_once(problem: MatmulProblem, out: Buffer | bytes, steps: ProductSteps | None) -> int:
    """Neighbours in a row of the result, of at most 32 bits, that a lane may store together."""
    assert isinstance(out, Buffer)
    stored = problem.dtype if steps is None else steps.stores
    row = problem.row or problem.n
    if stored.itemsize == 2 and is_aligned(out, row, (), stored, COPIED):
        return 8
    narrow = stored.is_float and stored.itemsize <= 4
    return 2 if narrow and out.offset % 8 == 0 and row % 2 == 0 else 1
