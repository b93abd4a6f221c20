"""Products of a few rows, or columns, with a matrix: kernels that read the matrix once."""

from __future__ import annotations

from lbrx.kernels.matmul import (
    EMULATED,
    MatmulProblem,
    bandwidth,
    busy,
    dispatching,
    family,
    is_aligned,
    of_processor,
    operands,
    peak,
    pipeline,
)
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.storage import Array

# Constants of matvec.h and matvec_serial.h: columns per thread or threadgroup, and threads per
# threadgroup.
MOST_ROWS = 8
DOT_COLUMNS, STRIP, NARROW_STRIP = 16, 1024, 256
DOT_SIMD_COLUMNS, DOT_SIMD_THREADS = 8, 64
STRIP_SIMD_COLUMNS, STRIP_SIMD_THREADS = 32, 256

SERIAL_SPEED = 80e3  # operations per microsecond of the reference processor (matmul.py)
SPECIAL = (
    10.0  # microseconds that must be saved to justify compiling a kernel for this number of rows
)
OF_BANDWIDTH = 0.8  # what the best mat-vec kernels reach on Apple's GPUs
OF_PEAK = 0.25  # products without simdgroup_matrix


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
    given = operands(few, left, right, bias, result)
    return few, [*given, few.packed(into_transposed=swapped)]


def _can(info: DeviceInfo, problem: MatmulProblem) -> bool:
    return problem.dtype.is_float and min(problem.m, problem.n) <= MOST_ROWS


def _rows(few: MatmulProblem) -> int:
    """The number of rows, rounded up to those for which kernels are compiled."""
    return 1 << (few.m - 1).bit_length()


def _matrix_bytes(problem: MatmulProblem) -> float:
    elements = problem.members * problem.k * max(problem.m, problem.n)
    return float(elements * problem.dtype.itemsize)


def _can_serial(info: DeviceInfo, problem: MatmulProblem) -> bool:
    # GPU compilers do not support wide vectors.
    return _can(info, problem) and not info.simd_hardware


def _serial_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    _, few = _few_rows(problem)
    reading = _matrix_bytes(problem) / bandwidth(info)
    computing = problem.operations / of_processor(info, SERIAL_SPEED)
    threads = _serial_threads(info, few) * few.members
    return dispatching(info) + SPECIAL + max(reading, computing) / busy(info, threads)


@family.variant("matvec", can=_can_serial, cost=_serial_cost, batch_invariant=False)
def matvec(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """One thread per group of columns, over all of k."""
    few, given = _arranged(problem, x, y, bias, result)
    stem, kernel = ("matvec_serial", "dots") if few.y.transposed else ("matvec", "strips_serial")
    gpu.queue.dispatch(
        pipeline(gpu, few, kernel, few.dtype, {1: _rows(few)}, stem=stem),
        given,
        (_serial_threads(gpu.info, few), few.members, 1),
        (1, 1, 1),
        kernel="matmul",
        variant="matvec",
    )


def _serial_threads(info: DeviceInfo, few: MatmulProblem) -> int:
    return -(-few.n // DOT_COLUMNS) if few.y.transposed else _strips(info, few.n)


def _strips(info: DeviceInfo, columns: int) -> int:
    """The number of strips: wide strips are read faster, but every CPU thread should have some."""
    wanted = min(2 * (info.cores or 1), -(-columns // NARROW_STRIP))
    return max(-(-columns // STRIP), wanted)


def _simd_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    if not info.simd_hardware:
        return EMULATED + problem.operations
    reading = _matrix_bytes(problem) / (OF_BANDWIDTH * bandwidth(info))
    return dispatching(info) + max(reading, problem.operations / (OF_PEAK * peak(info)))


@family.variant("matvec_simd", can=_can, cost=_simd_cost, batch_invariant=False)
def matvec_simd(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """One simdgroup per four columns along k, or one threadgroup per strip of columns."""
    few, given = _arranged(problem, x, y, bias, result)
    kind, columns, threads = (
        ("dots", DOT_SIMD_COLUMNS, DOT_SIMD_THREADS)
        if few.y.transposed
        else ("strips", STRIP_SIMD_COLUMNS, STRIP_SIMD_THREADS)
    )
    aligned = is_aligned(given[1], few.y.leading, few.y_batch, few.dtype)
    gpu.queue.dispatch(
        pipeline(gpu, few, f"{kind}_simd", few.dtype, {1: _rows(few), 2: aligned}, stem="matvec"),
        given,
        (-(-few.n // columns) * threads, few.members, 1),
        (threads, 1, 1),
        kernel="matmul",
        variant="matvec_simd",
    )


# ---- one row and columns of whole vectors ----

LINE_COLUMNS, MOST_THREADS = 4, 512  # constants of matvec_lines.h
VECTOR = 16  # bytes
VECTORS = 4  # that a thread reads of a column
LINES_OF_BANDWIDTH = 0.98  # 1.0 of a copy's, read and written, on an H200


def _lines_can(info: DeviceInfo, problem: MatmulProblem) -> bool:
    few = _few_rows(problem)[1]
    if not (few.dtype.is_float and few.m == 1 and few.y.transposed):
        return False
    return all(n * few.dtype.itemsize % VECTOR == 0 for n in (few.k, few.y.leading, *few.y_batch))


def _lines_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    if not info.simd_hardware:
        return EMULATED + problem.operations
    reading = _matrix_bytes(problem) / (LINES_OF_BANDWIDTH * bandwidth(info))
    return dispatching(info) + max(reading, problem.operations / (OF_PEAK * peak(info)))


@family.variant("matvec_lines", can=_lines_can, cost=_lines_cost, batch_invariant=False)
def matvec_lines(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """One threadgroup per four columns, in vectors of 16 bytes."""
    few, given = _arranged(problem, x, y, bias, result)
    if isinstance(given[1], Buffer) and given[1].offset % VECTOR:
        matvec_simd(gpu, problem, x, y, bias, result)
        return
    vectors = few.k * few.dtype.itemsize // VECTOR
    threads = min(-(-vectors // (32 * VECTORS)) * 32, MOST_THREADS)
    gpu.queue.dispatch(
        pipeline(gpu, few, "simd", few.dtype, {1: 1, 2: True, 3: VECTORS}, stem="matvec_lines"),
        given,
        (-(-few.n // LINE_COLUMNS) * threads, few.members, 1),
        (threads, 1, 1),
        kernel="matmul",
        variant="matvec_lines",
    )
