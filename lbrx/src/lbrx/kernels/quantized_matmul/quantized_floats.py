"""Products with a quantized matrix in float32, for CPUs."""

from __future__ import annotations

from lbrx import dtype as dt
from lbrx.kernels.arrays import buffer_of
from lbrx.kernels.matmul import EMULATED, dispatching, of_processor
from lbrx.kernels.quantized import UNIT, Stored, pipeline
from lbrx.kernels.quantized_matmul import (
    QuantizedProduct,
    family,
    one_by_one,
    rows_in_one_pass,
)
from lbrx.metal import Context, DeviceInfo
from lbrx.storage import Array

# Values of a weight per microsecond on two threads of a Zen 4, and the extra cost of values in long
# blocks, which exceed the registers.
PRODUCTS, LONG_BLOCKS = 24e3, 3.0


def _can(info: DeviceInfo, problem: QuantizedProduct) -> bool:
    return problem.dtype is dt.float32


def _cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    work = float(problem.m * problem.n * problem.k)
    if info.simd_hardware:
        return EMULATED + 2 * problem.operations
    if problem.scheme.elements > 2 * UNIT:
        work *= LONG_BLOCKS
    return dispatching(info) + work / of_processor(info, PRODUCTS)


# Not batch invariant: the number of rows decides between this and the integer variant.
@family.variant("floats", can=_can, cost=_cost, batch_invariant=False)
@one_by_one
def floats(
    gpu: Context, problem: QuantizedProduct, x: Array, weight: Stored, result: Array
) -> None:
    """One thread per row of the weight, which is decoded in registers."""
    rows = rows_in_one_pass(problem)
    gpu.queue.dispatch(
        pipeline(gpu, "quant_floats", "quantized_matmul_floats", weight, problem.dtype, {3: rows}),
        [*weight.arguments, buffer_of(x), buffer_of(result), problem.packed()],
        (problem.n, -(-problem.m // rows), 1),
        (1, 1, 1),
        kernel="quantized_matmul",
        variant="floats",
    )
