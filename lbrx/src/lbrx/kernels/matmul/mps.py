"""Matrix products by MPSMatrixMultiplication, encoded among our own kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import mul
from typing import Any, NamedTuple

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.device_info import DeviceKind
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of
from lbrx.kernels.costs import (
    GPU,
    bandwidth,
    dispatching,
    encoding,
    of_processor,
    product_peak,
    product_rate,
)
from lbrx.kernels.matmul.matmul import (
    MatmulProblem,
    Matrix,
    family,
    finish,
    matrices,
    problem_of,
)
from lbrx.metal import Buffer, DeviceInfo
from lbrx.metal.binding import MPS
from lbrx.ops import Spec

TYPES = {dt.float32: MPS.MPSDataTypeFloat32, dt.float16: MPS.MPSDataTypeFloat16}
# Of a row: MPS gives wrong products of so many terms on GPUs of the M1 and M2 families.
MOST_TERMS, FAULTY_FAMILIES = 32766, (7, 8)
KEPT = 512  # cached descriptors and multiplications
MATRICES = 16  # kept for a block


class MatrixStack(NamedTuple):
    """The matrices of one operand, as a descriptor specifies them."""

    rows: int
    columns: int
    leading: int
    matrices: int
    stride: int
    dtype: Dtype


def computes(info: DeviceInfo, terms: int) -> bool:
    """Whether MPS gives right products with sums of so many terms."""
    faulty = DeviceKind.SIMD.suits(info) and info.cuda is None and info.family in FAULTY_FAMILIES
    return terms <= MOST_TERMS or not faulty


def _cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    count, _, _ = _even_members(problem)
    start = encoding(info) * problem.members / count
    results = problem.members * problem.m * problem.n
    operands = problem.members * (problem.m + problem.n) * problem.k
    finishing = problem.finishes * (dispatching(info) + 8.0 * results / bandwidth(info))
    on_gpus = GPU["mps"].peak * product_peak(info, problem.dtype)
    unknown = info.by_kind(wide=of_processor(info, "mps"), simd=on_gpus)
    computing = problem.operations / product_rate(info, "mps", problem.dtype, unknown)
    # A processor packs the operands first.
    packing = finishing + computing + 8.0 * operands / bandwidth(info)
    read = operands * problem.dtype.itemsize / (GPU["mps"].bandwidth * bandwidth(info))
    # Apple does not document the accumulator of products of halves; cuBLAS adds in float32.
    doubtful = problem.dtype is not dt.float32 and info.cuda is None
    reading = (max(computing, read) + finishing) * (2 if doubtful else 1)
    return start + info.by_kind(wide=packing, simd=reading)


@family.variant(
    "mps",
    can=lambda info, problem: problem.dtype in TYPES and computes(info, problem.k),
    cost=_cost,
    batch_invariant=False,
)
def mps(
    b: Builder, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """The product by MPS, then our kernel for bias and activation."""
    # Bias and activation are applied before the only rounding to half.
    wide = problem.finishes and problem.dtype is not dt.float32
    product = b.result(Spec(result.layout.shape, dt.float32)) if wide else result
    _multiply(b, problem, x, y, product)
    if problem.finishes:
        finish(b, problem, product, 1, bias, result)


def _wide_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    cast = problem.members * (problem.m + problem.n) * problem.k
    wide = replace(problem, dtype=dt.float32, activation=problem.activation or "relu")
    return _cost(info, wide) + 2 * dispatching(info) + 6.0 * cast / bandwidth(info)


@family.variant(
    "mps_wide",
    can=lambda info, problem: (
        problem.dtype in (dt.float16, dt.bfloat16) and computes(info, problem.k)
    ),
    cost=_wide_cost,
    batch_invariant=False,
)
def mps_wide(
    b: Builder, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """float16 and bfloat16 cast to float32, since MPS does not support bfloat16."""
    x, y = _widened(b, x, problem.x), _widened(b, y, problem.y)
    product = b.result(Spec(result.layout.shape, dt.float32))
    seen, wide = problem_of(x, y, problem.bias, problem.activation)
    x, y = matrices(b, seen, (x, y))
    _multiply(b, wide, x, y, product)
    finish(b, problem, product, 1, bias, result)


def _widened(b: Builder, array: Array, matrix: Matrix) -> Array:
    """The matrix as float32 in the same memory order."""
    if not matrix.transposed:
        return layouts.cast(b, array, dt.float32)
    rows = replace(array, layout=sh.transpose(array.layout, -2, -1))
    wide = layouts.cast(b, rows, dt.float32)
    return replace(wide, layout=sh.transpose(wide.layout, -2, -1))


def _multiply(b: Builder, problem: MatmulProblem, x: Array, y: Array, product: Array) -> None:
    """Encode the products of all batch members, in groups that are evenly spaced in memory."""
    m, n, k = problem.m, problem.n, problem.k
    count, x_stride, y_stride = _even_members(problem)
    stacks = (
        _stack(problem.x, m, k, count, x_stride, x.dtype),
        _stack(problem.y, k, n, count, y_stride, y.dtype),
        MatrixStack(m, n, n, count, m * n, product.dtype),
    )
    transposed = problem.x.transposed, problem.y.transposed
    starts = [*_starts(problem, count)]
    _encode(b, (*transposed, m, n, k), stacks, starts, (x, y, product))


def times_rows(b: Builder, x: Array, y: Array, result: Array, column: int) -> None:
    """x times the transposed of y, of one dtype and contiguous, into columns of the result."""
    (m, k), (n, _), (_, columns) = x.layout.shape, y.layout.shape, result.layout.shape
    stacks = (
        MatrixStack(m, k, k, 1, m * k, x.dtype),
        MatrixStack(n, k, k, 1, n * k, y.dtype),
        MatrixStack(m, n, columns, 1, m * columns, result.dtype),
    )
    _encode(b, (False, True, m, n, k), stacks, [(0, 0, column)], (x, y, result))


def _encode(
    b: Builder,
    product: tuple[bool, bool, int, int, int],
    stacks: Sequence[MatrixStack],
    starts: Sequence[tuple[int, int, int]],
    arrays: Sequence[Array],
) -> None:
    """Multiply matrices that start at these elements of their arrays."""
    descriptors = [*map(_descriptor, stacks)]
    sizes = [stack.dtype.itemsize for stack in stacks]
    places = [[*map(mul, elements, sizes)] for elements in starts]

    def encode(commands: Any, buffers: Sequence[Buffer]) -> None:
        multiplication = _multiplication(commands.device(), *product)
        for offsets in places:
            matrices = map(_matrix, buffers, offsets, descriptors)
            multiplication.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(
                commands, *matrices
            )

    b.product([*map(buffer_of, arrays)], encode)


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


def _matrix(buffer: Buffer, offset: int, descriptor: Any) -> Any:
    block, start = buffer.block, buffer.offset + offset
    known = block.matrices  # a repeated product often gets the same blocks
    matrix = known.get((start, descriptor))
    if matrix is None:
        if len(known) >= MATRICES:
            known.clear()
        matrix = MPS.MPSMatrix.alloc().initWithBuffer_offset_descriptor_(
            block.handle, start, descriptor
        )
        known[start, descriptor] = matrix
    return matrix


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
