"""Products of a few rows, or columns, with a matrix: kernels that read the matrix once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lbrx import shape as sh
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, kernel_name
from lbrx.kernels.matmul import ACTIVATIONS, Matrix, Product, bias_of, family
from lbrx.metal import Context, DeviceInfo
from lbrx.storage import Array

MOST_ROWS = 8
DOT_COLUMNS = 8
STRIP = 1024


def _few(info: DeviceInfo, problem: Product) -> bool:
    return problem.dtype.is_float and min(problem.m, problem.n) <= MOST_ROWS


@family.variant("matvec", can=_few, batch_invariant=False)
def matvec(
    gpu: Context, problem: Product, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """A thread some columns, over all of k."""
    swapped = problem.m > problem.n
    if swapped:
        x, y, problem = y, x, problem.transposed
    dots = problem.y.transposed
    if dots and problem.x.transposed and problem.k > 1:
        raise NotImplementedError
    kind, columns = ("dots", DOT_COLUMNS) if dots else ("strips", STRIP)
    name = kernel_name("matvec", f"{kind}_serial", problem.dtype)
    constants = {0: ACTIVATIONS[problem.activation], 1: problem.m}
    gpu.queue.dispatch(
        gpu.shaders.pipeline("matvec", name, constants, safe_math=True),
        [
            buffer_of(x),
            buffer_of(y),
            bias_of(bias, problem.dtype),
            buffer_of(result),
            problem.packed(into_transposed=swapped),
        ],
        (-(-problem.n // columns), problem.members, 1),
        (1, 1, 1),
        kernel="matmul",
        variant="matvec",
    )
