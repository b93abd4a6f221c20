"""Matrix products in tiles that simdgroups multiply: for GPUs with simdgroup_matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import UINT, Bool, UInt, packed
from lbrx.device_info import DeviceKind
from lbrx.kernels.arrays import buffer_of
from lbrx.kernels.costs import GPU, bandwidth, dispatching, product_peak, product_rate
from lbrx.kernels.finishing import Finish, Operation, finishes
from lbrx.kernels.matmul.matmul import (
    MatmulProblem,
    Matrix,
    ProductConstants,
    family,
    finish,
    is_aligned,
    matrices,
    operands,
    pipeline,
    pipeline_of,
    problem_of,
)
from lbrx.kernels.matmul.product_steps import ProductSteps, can_follow, steps_of
from lbrx.kernels.registry import Call, policy
from lbrx.metal import Buffer, DeviceInfo
from lbrx.metal.library import generated
from lbrx.ops import Spec

SPLIT_THREADGROUPS = 512
LEAST_DEPTH = 256  # of k per threadgroup, at least
SWIZZLE_FROM = 4  # rows of tiles
COPIED = 16  # bytes that kernels copy at once into threadgroup memory
TILES_MEMORY = 32 << 10  # of threadgroup memory on GPUs without tensor cores


class TilesConstants(ProductConstants, header="matmul_tiles"):
    X_TRANSPOSED: Bool
    Y_TRANSPOSED: Bool
    ALIGNED: Bool  # rows begin at multiples of 16 bytes
    SWIZZLE: UInt
    STORED: UInt  # neighbours that are stored at once: 1, 2 or 8


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
    Tiling("64", 2, 2, 32, 32, 16, 1, GPU["matmul tiles"].peak),
    Tiling("32", 2, 2, 16, 16, 16, 1, GPU["matmul small tiles"].peak),
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
    tiling = tiling_for(info, problem)
    return dispatching(info) + _tiling_time(info, problem, tiling, tiling.count(problem))


@family.variant("tiles", can=_can_tile, cost=_tiles_cost, made_for=DeviceKind.TENSOR)
def tiles(
    b: Builder,
    problem: MatmulProblem,
    x: Array,
    y: Array,
    bias: Array | None,
    result: Array,
    steps: ProductSteps | None = None,
) -> None:
    """Simdgroups multiply tiles. Sums are in order of k: the same bits for any m."""
    tiling = tiling_for(b.info, problem)
    buffers = operands(problem, x, y, bias, result)
    _dispatch_tiles(b, problem, "whole", tiling, buffers, problem.k, steps)


def _can_split(info: DeviceInfo, problem: MatmulProblem) -> bool:
    return _can_tile(info, problem) and problem.k >= 2 * LEAST_DEPTH


def _split_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    """The time for all threadgroups, and for writing, reading and adding the partial sums."""
    tiling, depth = _split(info, problem)
    parts = -(-problem.k // depth)
    sums = 8.0 * parts * problem.members * problem.m * problem.n
    time = _tiling_time(info, problem, tiling, tiling.count(problem) * parts)
    return 2 * dispatching(info) + time + sums / bandwidth(info)


@family.variant(
    "splitk",
    can=_can_split,
    cost=_split_cost,
    batch_invariant=False,
    made_for=DeviceKind.TENSOR,
)
def splitk(
    b: Builder, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """k is split over threadgroups too, for small results; the partial sums are then added."""
    tiling, depth = _split(b.info, problem)
    count = -(-problem.k // depth)
    parts = b.result(Spec((count, *result.layout.shape), dt.float32))
    plain = replace(problem, bias=False, activation=None)
    buffers = operands(plain, x, y, None, parts)
    _dispatch_tiles(b, plain, "parts", tiling, buffers, depth)
    finish(b, problem, parts, count, bias, result)


def times_rows(
    b: Builder,
    x: Array,
    y: Array,
    result: Array,
    column: int,
    steps: ProductSteps | None = None,
) -> None:
    """x times the transposed of y, of one dtype and contiguous, into columns of the result."""
    (m, k), (n, _), (_, columns) = x.layout.shape, y.layout.shape, result.layout.shape
    problem = MatmulProblem(m, n, k, x.dtype, Matrix(False, k), Matrix(True, k), row=columns)
    size, out = result.dtype.itemsize, buffer_of(result)
    out = out.slice(column * size, out.size - column * size)
    buffers: list[Buffer | bytes] = [buffer_of(x), buffer_of(y), bytes(x.dtype.itemsize), out]
    tiling = tiling_for(b.info, problem)
    after = None if steps is None else steps.from_column(column)
    _dispatch_tiles(b, problem, "whole", tiling, buffers, k, after)


def takes_steps(info: DeviceInfo) -> bool:
    """Whether steps after a product are computed in the kernel of its tiles. Large tiles of tensor
    cores leave a core few threads for them: on an H200, kernels of their own are faster."""
    return DeviceKind.TENSOR.suits(info) and not has_tensor_cores(info)


def _can_finish(info: DeviceInfo, operation: Operation, finish: Finish) -> bool:
    """Whether tiles compute a product of matrices, which then apply steps."""
    (spec,), (x, y, *rest) = operation.outputs, (x for x in operation.inputs if x is not None)
    if min(x.layout.ndim, y.layout.ndim) < 2 or x.layout.shape[-1] == 0:
        return False
    if not takes_steps(info) or any(each.dtype is not spec.dtype for each in (x, y, *rest)):
        return False
    _, problem = problem_of(x, y, bool(rest), operation.attributes["activation"])
    return can_follow(finish) and family.choose(info, problem).name == "tiles"


@finishes("matmul", _can_finish)
def finished_matmul(call: Call, finish: Finish) -> tuple[Array, ...]:
    """A product and the elementwise steps after it, in the kernel of its tiles."""
    b, steps, result = call.builder, steps_of(finish), call.builder.result(finish.spec)
    x, y, *rest = (array for array in call.inputs if array is not None)
    seen, problem = problem_of(x, y, bool(rest), call.attributes["activation"])
    x, y, *rest = matrices(b, seen, (x, y, *rest))
    bias = rest[0] if rest else None
    family.run(b, problem, x, y, bias, result, steps, op=steps.name)
    return (result,)


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
    return max(computing, read / (GPU["matmul tiles"].bandwidth * bandwidth(info)))


def _speed(info: DeviceInfo, dtype: Dtype, tiling: Tiling) -> float:
    """Operations per microsecond if all cores are busy. Large products were measured with the
    largest tiles."""
    largest = (TILINGS if tiling in TILINGS else TENSOR_TILINGS)[0]
    large = product_rate(info, "tiles", dtype, largest.of_peak * product_peak(info, dtype))
    return large * tiling.of_peak / largest.of_peak


def _dispatch_tiles(
    b: Builder,
    problem: MatmulProblem,
    kernel: str,
    tiling: Tiling,
    given: list[Buffer | bytes],
    depth: int,
    steps: ProductSteps | None = None,
) -> None:
    down, across = -(-problem.m // tiling.m), -(-problem.n // tiling.n)
    swizzle = min((down // SWIZZLE_FROM).bit_length(), tiling.swizzle)
    constants = TilesConstants(
        ACTIVATION=problem.activation_number,
        X_TRANSPOSED=problem.x.transposed,
        Y_TRANSPOSED=problem.y.transposed,
        ALIGNED=_aligned(problem, given),
        SWIZZLE=swizzle,
        STORED=_stored_at_once(problem, given[3], steps),
    )
    parts = -(-problem.k // depth)
    groups = (across << swizzle, -(-down >> swizzle), problem.members * parts)
    arguments = [*given, problem.record(), packed(UINT, depth)]
    if steps is None:
        name = f"{kernel}{tiling.name}"
        kernel_pipeline = pipeline(b, problem, name, problem.dtype, constants, stem="matmul_tiles")
    else:
        text = _stepped_text(steps, len(arguments), problem.dtype, tiling)
        name = f"{steps.name}_{blake2b(text.encode(), digest_size=6).hexdigest()}"
        arguments += steps.operands
        text = generated(text.replace("NAME", f'"{name}"'))
        kernel_pipeline = pipeline_of(b, problem, name, constants, text)
    b.launch(
        kernel_pipeline,
        arguments,
        (groups[0] * tiling.threads, groups[1], groups[2]),
        (tiling.threads, 1, 1),
        threadgroup_memory=(tiling.memory_with(problem.dtype, steps),),
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
