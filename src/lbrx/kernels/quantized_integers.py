"""Products with a quantized matrix in whole numbers, for devices where a thread does a long run.

Rows of x become codes of sixteen bits with a scale for 32 of them, which is as exact as half
precision; those of the weight are multiplied as they are.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from lbrx.kernels.arrays import buffer_of
from lbrx.kernels.matmul import DISPATCH, EMULATED
from lbrx.kernels.quantized import GROUP, TYPES, UNIT, Stored, pipeline
from lbrx.kernels.quantized_matmul import QuantizedProduct, family, rows_in_one_pass
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.storage import Array

# Of the kernels, as in quant_integers.h.
RUN, LANES, TILE_ROWS, STRIP, TILE_COLUMNS = 32, 16, 32, 4, 64

PANEL = 16 << 20  # bytes of a weight that are rearranged at a time
# Values of a weight that two threads of a Zen 4 multiply with a row in a microsecond, that they
# multiply in tiles, and that they rearrange.
PRODUCTS, TILED, REARRANGED = 35e3, 130e3, 3e3


def _can(info: DeviceInfo, problem: QuantizedProduct) -> bool:
    scheme = problem.scheme
    whole = scheme.elements % RUN == 0 and scheme.name != "mlx:mxfp8"
    return whole and problem.k % RUN == 0


def _scales_of_run(problem: QuantizedProduct) -> int:
    return 2 if problem.scheme.group_size == UNIT else 1


def _pack_rows(gpu: Context, problem: QuantizedProduct, x: Array) -> list[Buffer]:
    """Rows of x as codes, their scales and their sums."""
    size = problem.m * problem.k
    packed = [gpu.buffer(n) for n in (size * 2, size // RUN * 4, size // UNIT * 4)]
    constants = {0: TYPES[problem.dtype]}
    gpu.queue.dispatch(
        gpu.shaders.pipeline("quant_integers", "pack_rows", constants, safe_math=True),
        [buffer_of(x), *packed],
        (size // RUN, 1, 1),
        (min(size // RUN, GROUP), 1, 1),
        kernel="quantized_matmul",
        variant="pack_rows",
    )
    return packed


# ---- a few rows ----


def _serial_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    if info.simd_hardware:
        return EMULATED + problem.operations
    work = problem.m * problem.n * problem.k
    return 2 * DISPATCH + work / PRODUCTS


@family.variant("serial", can=_can, cost=_serial_cost)
def serial(
    gpu: Context, problem: QuantizedProduct, x: Array, weight: Stored, result: Array
) -> None:
    """A thread a row of the weight."""
    packed = _pack_rows(gpu, problem, x)
    rows = rows_in_one_pass(problem)
    stem, kernel = "quant_integers", "quantized_matmul_serial"
    gpu.queue.dispatch(
        pipeline(gpu, stem, kernel, weight, problem.dtype, {3: rows}),
        [*weight.arguments, *packed, buffer_of(result), _packed(problem)],
        (problem.n, -(-problem.m // rows), 1),
        (1, 1, 1),
        kernel="quantized_matmul",
        variant="serial",
    )


# ---- many rows ----


def _tiles_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    if info.simd_hardware:
        return EMULATED + 2 * problem.operations
    values = problem.n * problem.k
    rows = -(-problem.m // STRIP) * STRIP
    return 3 * DISPATCH + values / REARRANGED + rows * values / TILED


# Which of both is taken depends on the number of rows.
@family.variant("serial_tiles", can=_can, cost=_tiles_cost, batch_invariant=False)
def serial_tiles(
    gpu: Context, problem: QuantizedProduct, x: Array, weight: Stored, result: Array
) -> None:
    """A thread a tile of the result. Some rows of the weight at a time are rearranged for it."""
    packed = _pack_rows(gpu, problem, x)
    step = max(TILE_COLUMNS, PANEL // (2 * problem.k) // TILE_COLUMNS * TILE_COLUMNS)
    for first in range(0, problem.n, step):
        panel = replace(problem, n=min(step, problem.n - first))
        # From the second on this is the memory of the one before: the device works in order.
        matrix = _pack_matrix(gpu, panel, weight.rows(first, panel.n, panel.k))
        skipped = first * problem.dtype.itemsize
        out = buffer_of(result)
        _multiply(gpu, panel, matrix, packed, out.slice(skipped, out.size - skipped), problem.n)
        del matrix


def _pack_matrix(gpu: Context, panel: QuantizedProduct, weight: Stored) -> list[Buffer]:
    """Codes, scales and offsets of some rows of the weight, side by side for tiles."""
    columns = -(-panel.n // TILE_COLUMNS) * TILE_COLUMNS
    size = columns * panel.k
    beside = size // RUN * 4 * _scales_of_run(panel)
    matrix = [gpu.buffer(n) for n in (size * 2, beside, beside)]
    gpu.queue.dispatch(
        pipeline(gpu, "quant_integers", "pack_matrix", weight, panel.dtype),
        [*weight.arguments, *matrix, _packed(panel)],
        (panel.k // panel.scheme.elements, columns // LANES, 1),
        (1, 1, 1),
        kernel="quantized_matmul",
        variant="pack_matrix",
    )
    return matrix


def _multiply(
    gpu: Context,
    panel: QuantizedProduct,
    matrix: list[Buffer],
    packed: list[Buffer],
    out: Buffer,
    stride: int,
) -> None:
    constants = {0: TYPES[panel.dtype], 4: _scales_of_run(panel), 5: _has_offsets(panel)}
    gpu.queue.dispatch(
        gpu.shaders.pipeline("quant_integers", "multiply_tiles", constants, safe_math=True),
        [*matrix, *packed, out, _packed(panel, stride)],
        (-(-panel.m // TILE_ROWS), -(-panel.n // TILE_COLUMNS), 1),
        (1, 1, 1),
        kernel="quantized_matmul",
        variant="serial_tiles",
    )


def _packed(problem: QuantizedProduct, stride: int | None = None) -> bytes:
    """The `Product` record of quant_integers.h."""
    shape = (problem.m, problem.n, problem.k)
    return struct.pack("4I", *shape, problem.n if stride is None else stride)


def _has_offsets(problem: QuantizedProduct) -> bool:
    return not {"m", "dmin", "biases"}.isdisjoint(problem.scheme.fields)
