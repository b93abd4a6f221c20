"""Matrix products by the vendor: MPSMatrixMultiplication, encoded among our own kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from lbrx import dtype as dt
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, empty
from lbrx.kernels.matmul import Matrix, Product, family, finish
from lbrx.metal import Buffer, Context
from lbrx.metal.binding import MPS
from lbrx.ops import Spec
from lbrx.storage import Array

TYPES = {dt.float32: MPS.MPSDataTypeFloat32, dt.float16: MPS.MPSDataTypeFloat16}
KEPT = 512  # descriptors and multiplications, which are cheap but not free to make


class Stack(NamedTuple):
    """Matrices of one operand, one after the other, as a descriptor has them."""

    rows: int
    columns: int
    leading: int
    count: int
    stride: int
    dtype: Dtype


@family.variant(
    "mps", can=lambda info, problem: problem.dtype in TYPES, batch_invariant=False
)
def mps(
    gpu: Context, problem: Product, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """The vendor's product, then our kernel for what follows."""
    # Halves are rounded once: what follows needs the sums as they are.
    wide = problem.finishes and problem.dtype is not dt.float32
    product = empty(gpu, Spec(result.layout.shape, dt.float32)) if wide else result
    _multiply(gpu, problem, x, y, product, "mps")
    if problem.finishes:
        finish(gpu, problem, product, 1, bias, result)


@family.variant(
    "mps_wide",
    can=lambda info, problem: problem.dtype in (dt.float16, dt.bfloat16),
    batch_invariant=False,
)
def mps_wide(
    gpu: Context, problem: Product, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """Halves as float32 for the vendor, which has no bfloat16."""
    x, y = elementwise.cast(gpu, x, dt.float32), elementwise.cast(gpu, y, dt.float32)
    product = empty(gpu, Spec(result.layout.shape, dt.float32))
    _multiply(gpu, problem, x, y, product, "mps_wide")
    finish(gpu, problem, product, 1, bias, result)


def _multiply(
    gpu: Context, problem: Product, x: Array, y: Array, product: Array, variant: str
) -> None:
    """Encode the product of every member of the batch, as many at once as lie evenly."""
    m, n, k = problem.m, problem.n, problem.k
    count, x_stride, y_stride = _even_members(problem)
    stacks = (
        _stack(problem.x, m, k, count, x_stride, x.dtype),
        _stack(problem.y, k, n, count, y_stride, y.dtype),
        Stack(m, n, n, count, m * n, product.dtype),
    )
    multiplication = _multiplication(
        gpu.device, problem.x.transposed, problem.y.transposed, m, n, k
    )
    buffers = [buffer_of(x), buffer_of(y), buffer_of(product)]
    
    def encode(commands: Any) -> None:
        for starts in _starts(problem, count):
            matrices = [
                _matrix(buffer, start, stack)
                for buffer, start, stack in zip(buffers, starts, stacks, strict=True)
            ]
            multiplication.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(
                commands, *matrices
            )

    gpu.queue.encode("matmul", buffers, encode, variant)
