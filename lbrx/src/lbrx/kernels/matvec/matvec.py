"""Products of a few rows, or columns, with a matrix: kernels that read the matrix once."""

from __future__ import annotations

from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Bool, UInt
from lbrx.device_info import DeviceKind
from lbrx.kernels.costs import bandwidth, busy, dispatching, of_gpu, of_processor
from lbrx.kernels.matmul.matmul import (
    MatmulProblem,
    ProductConstants,
    family,
    is_aligned,
    operands,
    pipeline,
)
from lbrx.metal import Buffer, DeviceInfo

# Constants of matvec.h and matvec_serial.h: columns per thread or threadgroup, and threads per
# threadgroup.
MOST_ROWS = 8
DOT_COLUMNS, STRIP, NARROW_STRIP = 16, 1024, 256
DOT_SIMD_COLUMNS, DOT_SIMD_THREADS = 8, 64
STRIP_SIMD_COLUMNS, STRIP_SIMD_THREADS = 32, 256

SPECIAL = (
    10.0  # microseconds that must be saved to justify compiling a kernel for this number of rows
)


class MatvecConstants(ProductConstants, header="matvec"):
    ROWS: UInt  # of x, rounded up to a power of two: rows beyond the last repeat it
    ALIGNED: Bool = False  # whether four elements of y can be loaded at once


class LinesConstants(MatvecConstants, header="matvec_lines"):
    VECTORS: UInt  # that a thread reads of a column


def _few_rows(problem: MatmulProblem) -> tuple[bool, MatmulProblem]:
    """Whether the problem was transposed to have few rows, and the resulting problem."""
    swapped = problem.m > problem.n
    return swapped, problem.transposed if swapped else problem


def _arranged(
    problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> tuple[MatmulProblem, list[Buffer | bytes]]:
    """The problem with few rows, and the arguments of its kernels."""
    swapped, few = _few_rows(problem)
    left, right = (y, x) if swapped else (x, y)
    buffers = operands(few, left, right, bias, result)
    return few, [*buffers, few.record(into_transposed=swapped)]


def _can(info: DeviceInfo, problem: MatmulProblem) -> bool:
    return problem.dtype.is_float and min(problem.m, problem.n) <= MOST_ROWS


def _constants(few: MatmulProblem, aligned: bool = False) -> MatvecConstants:
    rows = 1 << (few.m - 1).bit_length()
    return MatvecConstants(ACTIVATION=few.activation_number, ROWS=rows, ALIGNED=aligned)


def _matrix_bytes(problem: MatmulProblem) -> float:
    elements = problem.members * problem.k * max(problem.m, problem.n)
    return float(elements * problem.dtype.itemsize)


def _serial_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    _, few = _few_rows(problem)
    reading = _matrix_bytes(problem) / bandwidth(info)
    computing = problem.operations / of_processor(info, "matvec")
    threads = _serial_threads(info, few) * few.members
    return dispatching(info) + SPECIAL + max(reading, computing) / busy(info, threads)


# GPU compilers do not support wide vectors.
@family.variant(
    "matvec",
    can=_can,
    cost=_serial_cost,
    batch_invariant=False,
    made_for=DeviceKind.WIDE,
    only=True,
)
def matvec(
    b: Builder, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """One thread per group of columns, over all of k."""
    few, buffers = _arranged(problem, x, y, bias, result)
    stem, kernel = ("matvec_serial", "dots") if few.y.transposed else ("matvec", "strips_serial")
    b.launch(
        pipeline(b, few, kernel, few.dtype, _constants(few), stem=stem),
        buffers,
        (_serial_threads(b.info, few), few.members, 1),
        (1, 1, 1),
    )


def _serial_threads(info: DeviceInfo, few: MatmulProblem) -> int:
    return -(-few.n // DOT_COLUMNS) if few.y.transposed else _strips(info, few.n)


def _strips(info: DeviceInfo, columns: int) -> int:
    """The number of strips: wide strips are read faster, but every CPU thread should have some."""
    wanted = min(2 * (info.cores or 1), -(-columns // NARROW_STRIP))
    return max(-(-columns // STRIP), wanted)


def _simd_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    time = of_gpu(info, "matvec", _matrix_bytes(problem), problem.operations)
    return dispatching(info) + time


@family.variant(
    "matvec_simd",
    can=_can,
    cost=_simd_cost,
    batch_invariant=False,
    made_for=DeviceKind.SIMD,
)
def matvec_simd(
    b: Builder, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """One simdgroup per four columns along k, or one threadgroup per strip of columns."""
    few, buffers = _arranged(problem, x, y, bias, result)
    kind, columns, threads = (
        ("dots", DOT_SIMD_COLUMNS, DOT_SIMD_THREADS)
        if few.y.transposed
        else ("strips", STRIP_SIMD_COLUMNS, STRIP_SIMD_THREADS)
    )
    aligned = is_aligned(buffers[1], few.y.leading, few.y_batch, few.dtype)
    constants = _constants(few, aligned)
    b.launch(
        pipeline(b, few, f"{kind}_simd", few.dtype, constants, stem="matvec"),
        buffers,
        (-(-few.n // columns) * threads, few.members, 1),
        (threads, 1, 1),
    )


# ---- one row and columns of whole vectors ----

LINE_COLUMNS, MOST_THREADS = 4, 512  # constants of matvec_lines.h
VECTOR = 16  # bytes
VECTORS = 4  # that a thread reads of a column


def _lines_can(info: DeviceInfo, problem: MatmulProblem) -> bool:
    few = _few_rows(problem)[1]
    if not (few.dtype.is_float and few.m == 1 and few.y.transposed):
        return False
    return all(n * few.dtype.itemsize % VECTOR == 0 for n in (few.k, few.y.leading, *few.y_batch))


def _lines_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    time = of_gpu(info, "matvec lines", _matrix_bytes(problem), problem.operations)
    return dispatching(info) + time


@family.variant(
    "matvec_lines",
    can=_lines_can,
    cost=_lines_cost,
    batch_invariant=False,
    made_for=DeviceKind.SIMD,
)
def matvec_lines(
    b: Builder, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """One threadgroup per four columns, in vectors of 16 bytes."""
    few, buffers = _arranged(problem, x, y, bias, result)
    if isinstance(buffers[1], Buffer) and buffers[1].offset % VECTOR:
        named = b.named(
            family.name, "matvec_simd", lambda: "matvec_lines for memory not in vectors"
        )
        matvec_simd(named, problem, x, y, bias, result)
        return
    vectors = few.k * few.dtype.itemsize // VECTOR
    threads = min(-(-vectors // (32 * VECTORS)) * 32, MOST_THREADS)
    constants = LinesConstants(ACTIVATION=few.activation_number, ROWS=1, VECTORS=VECTORS)
    b.launch(
        pipeline(b, few, "simd", few.dtype, constants, stem="matvec_lines"),
        buffers,
        (-(-few.n // LINE_COLUMNS) * threads, few.members, 1),
        (threads, 1, 1),
    )
