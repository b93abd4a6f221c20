"""Matrix products by MPSMatrixMultiplication, encoded among our own kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import mul
from typing import Any, NamedTuple

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, empty
from lbrx.kernels.matmul import (
    REFERENCE_PRODUCTS,
    MatmulProblem,
    Matrix,
    bandwidth,
    dispatching,
    encoding,
    family,
    finish,
    of_processor,
    problem_of,
    product_peak,
    product_rate,
)
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.metal.binding import MPS
from lbrx.ops import Spec
from lbrx.storage import Array

TYPES = {dt.float32: MPS.MPSDataTypeFloat32, dt.float16: MPS.MPSDataTypeFloat16}
OF_PEAK = 0.85  # the approximate fraction of the peak on Apple's GPUs
OF_BANDWIDTH = 0.85  # of products with one row, by cuBLAS on an H200
KEPT = 512  # cached descriptors and multiplications


class MatrixStack(NamedTuple):
    """The matrices of one operand, as a descriptor specifies them."""

    rows: int
    columns: int
    leading: int
    matrices: int
    stride: int
    dtype: Dtype


def _cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    count, _, _ = _even_members(problem)
    start = encoding(info) * problem.members / count
    results = problem.members * problem.m * problem.n
    operands = problem.members * (problem.m + problem.n) * problem.k
    finishing = problem.finishes * (dispatching(info) + 8.0 * results / bandwidth(info))
    if not info.simd_hardware:  # which packs the operands first
        unknown = of_processor(info, REFERENCE_PRODUCTS)
        speed = product_rate(info, "mps", problem.dtype, unknown)
        return start + finishing + problem.operations / speed + 8.0 * operands / bandwidth(info)
    speed = product_rate(info, "mps", problem.dtype, OF_PEAK * product_peak(info, problem.dtype))
    read = operands * problem.dtype.itemsize / (OF_BANDWIDTH * bandwidth(info))
    time = max(problem.operations / speed, read) + finishing
    # Apple does not document the accumulator of products of halves; cuBLAS adds in float32.
    doubtful = problem.dtype is not dt.float32 and info.cuda is None
    return start + time * (2 if doubtful else 1)


@family.variant(
    "mps", can=lambda info, problem: problem.dtype in TYPES, cost=_cost, batch_invariant=False
)
def mps(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """The product by MPS, then our kernel for bias and activation."""
    # Bias and activation are applied before the only rounding to half.
    wide = problem.finishes and problem.dtype is not dt.float32
    product = empty(gpu, Spec(result.layout.shape, dt.float32)) if wide else result
    _multiply(gpu, problem, x, y, product, "mps")
    if problem.finishes:
        finish(gpu, problem, product, 1, bias, result)


def _wide_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    cast = problem.members * (problem.m + problem.n) * problem.k
    wide = replace(problem, dtype=dt.float32, activation=problem.activation or "relu")
    return _cost(info, wide) + 2 * dispatching(info) + 6.0 * cast / bandwidth(info)


@family.variant(
    "mps_wide",
    can=lambda info, problem: problem.dtype in (dt.float16, dt.bfloat16),
    cost=_wide_cost,
    batch_invariant=False,
)
def mps_wide(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """float16 and bfloat16 cast to float32, since MPS does not support bfloat16."""
    x, y = _widened(gpu, x, problem.x), _widened(gpu, y, problem.y)
    product = empty(gpu, Spec(result.layout.shape, dt.float32))
    x, y, wide = problem_of(gpu, x, y, problem.bias, problem.activation)
    _multiply(gpu, wide, x, y, product, "mps_wide")
    finish(gpu, problem, product, 1, bias, result)


def _widened(gpu: Context, array: Array, matrix: Matrix) -> Array:
    """The matrix as float32 in the same memory order."""
    if not matrix.transposed:
        return elementwise.cast(gpu, array, dt.float32)
    rows = replace(array, layout=sh.transpose(array.layout, -2, -1))
    wide = elementwise.cast(gpu, rows, dt.float32)
    return replace(wide, layout=sh.transpose(wide.layout, -2, -1))


def _multiply(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, product: Array, variant: str
) -> None:
    """Encode the products of all batch members, in groups that are evenly spaced in memory."""
    m, n, k = problem.m, problem.n, problem.k
    count, x_stride, y_stride = _even_members(problem)
    stacks = (
        _stack(problem.x, m, k, count, x_stride, x.dtype),
        _stack(problem.y, k, n, count, y_stride, y.dtype),
        MatrixStack(m, n, n, count, m * n, product.dtype),
    )
    multiplication = _multiplication(
        gpu.device, problem.x.transposed, problem.y.transposed, m, n, k
    )
    buffers = [buffer_of(x), buffer_of(y), buffer_of(product)]

    def encode(commands: Any, buffers: Sequence[Buffer]) -> None:
        for starts in _starts(problem, count):
            matrices = map(_matrix, buffers, starts, stacks)
            multiplication.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(
                commands, *matrices
            )

    gpu.queue.encode("matmul", buffers, encode, variant, written_at=frozenset({2}))


def times_rows(
    gpu: Context, x: Array, y: Array, result: Array, column: int, label: tuple[str, str]
) -> None:
    """x times the transposed of y, of one dtype and contiguous, into columns of the result."""
    (m, k), (n, _), (_, columns) = x.layout.shape, y.layout.shape, result.layout.shape
    stacks = (
        MatrixStack(m, k, k, 1, m * k, x.dtype),
        MatrixStack(n, k, k, 1, n * k, y.dtype),
        MatrixStack(m, n, columns, 1, m * columns, result.dtype),
    )
    product = _multiplication(gpu.device, False, True, m, n, k)

    def encode(commands: Any, buffers: Sequence[Buffer]) -> None:
        matrices = map(_matrix, buffers, (0, 0, column), stacks)
        product.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(commands, *matrices)

    buffers = [buffer_of(x), buffer_of(y), buffer_of(result)]
    gpu.queue.encode(label[0], buffers, encode, label[1], written_at=frozenset({2}))


def _even_members(problem: MatmulProblem) -> tuple[int, int, int]:
    """The number of matrices per multiplication, and their strides.

    They must not share an operand or overlap.
    """
    if not problem.batch:
        return 1, 0, 0
    x_stride, y_stride = problem.x_batch[-1], problem.y_batch[-1]
    x_length = problem.x.leading * (problem.k if problem.x.transposed else problem.m)
    y_length = problem.y.leading * (problem.n if problem.y.transposed else problem.k)
    even = x_stride >= x_length and y_stride >= y_length
    return (problem.batch[-1], x_stride, y_stride) if even else (1, 0, 0)


def _starts(problem: MatmulProblem, count: int) -> Iterator[tuple[int, int, int]]:
    """Offsets of x, y and the result for each multiplication."""
    axes = len(problem.batch) - (count > 1)
    places = itertools.product(*map(range, problem.batch[:axes]))
    for i, place in enumerate(places):
        x = sum(map(mul, place, problem.x_batch))
        y = sum(map(mul, place, problem.y_batch))
        yield x, y, i * count * problem.m * problem.n


def _stack(
    matrix: Matrix, rows: int, columns: int, count: int, stride: int, dtype: Dtype
) -> MatrixStack:
    if matrix.transposed:
        rows, columns = columns, rows
    return MatrixStack(rows, columns, matrix.leading, count, stride, dtype)


def _matrix(buffer: Buffer, start: int, stack: MatrixStack) -> Any:
    offset = buffer.offset + start * stack.dtype.itemsize
    return MPS.MPSMatrix.alloc().initWithBuffer_offset_descriptor_(
        buffer.handle, offset, _descriptor(stack)
    )


@lru_cache(KEPT)
def _descriptor(stack: MatrixStack) -> Any:
    size = stack.dtype.itemsize
    make = MPS.MPSMatrixDescriptor.matrixDescriptorWithRows_columns_matrices_rowBytes_matrixBytes_dataType_  # noqa: E501
    row_bytes = stack.leading * size
    matrix_bytes = max(stack.stride * size, stack.rows * row_bytes)
    return make(
        stack.rows, stack.columns, stack.matrices, row_bytes, matrix_bytes, TYPES[stack.dtype]
    )


@lru_cache(KEPT)
def _multiplication(
    device: Any, transpose_x: bool, transpose_y: bool, m: int, n: int, k: int
) -> Any:
    kernel = MPS.MPSMatrixMultiplication.alloc()
    return kernel.initWithDevice_transposeLeft_transposeRight_resultRows_resultColumns_interiorColumns_alpha_beta_(  # noqa: E501
        device, transpose_x, transpose_y, m, n, k, 1.0, 0.0
    )
