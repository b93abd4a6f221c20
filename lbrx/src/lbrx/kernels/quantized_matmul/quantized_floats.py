"""Products with a quantized matrix in float32, for CPUs."""

from __future__ import annotations

from lbrx.arrays import dtype as dt
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.device_info import DeviceKind
from lbrx.kernels.arrays import buffer_of
from lbrx.kernels.costs import dispatching, of_processor
from lbrx.kernels.quantized.quantized import UNIT, Stored, pipeline
from lbrx.kernels.quantized_matmul.quantized_matmul import (
    QuantizedProduct,
    QuantizedRowsConstants,
    family,
    one_by_one,
    rows_in_one_pass,
)
from lbrx.metal import DeviceInfo

LONG_BLOCKS = 3.0  # times slower: values in long blocks, which exceed the registers


def _can(info: DeviceInfo, problem: QuantizedProduct) -> bool:
    return problem.dtype is dt.float32


def _cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    work = float(problem.m * problem.n * problem.k)
    if problem.scheme.elements > 2 * UNIT:
        work *= LONG_BLOCKS
    return dispatching(info) + work / of_processor(info, "quantized floats")


# Not batch invariant: the number of rows decides between this and the integer variant.
@family.variant("floats", can=_can, cost=_cost, batch_invariant=False, made_for=DeviceKind.WIDE)
@one_by_one
def floats(b: Builder, problem: QuantizedProduct, x: Array, weight: Stored, result: Array) -> None:
    """One thread per row of the weight, which is decoded in registers."""
    rows = rows_in_one_pass(problem)
    constants = QuantizedRowsConstants(**weight.constants(problem.dtype), ROWS=rows)
    b.launch(
        pipeline(b, "quant_floats", "quantized_matmul_floats", weight, constants),
        [*weight.arguments, buffer_of(x), buffer_of(result), problem.record()],
        (problem.n, -(-problem.m // rows), 1),
        (1, 1, 1),
    )
