"""Products with a quantized matrix in integer arithmetic, for CPUs.

Rows of x are quantized to 16-bit integers with a scale for every 32 values, which is as precise as
float16. The codes of the weight are multiplied without decoding.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from lbrx.kernels.arrays import buffer_of
from lbrx.kernels.matmul import dispatching, of_processor
from lbrx.kernels.quantized import GROUP, TYPES, UNIT, Stored, pipeline
from lbrx.kernels.quantized_matmul import QuantizedProduct, family, rows_in_one_pass
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.storage import Array

# Constants of quant_codes.h, wide.h, quant_integer_tiles.h and quant_integers.h.
RUN, LINE, TILE_ROWS, STRIP, TILE_COLUMNS = 32, 16, 32, 4, 64
TOGETHER = 3  # weights per launch
COLUMNS = {1: 4, 2: 2}  # that a thread computes at once of so many rows, of blocks of one run

PANEL = 16 << 20  # bytes of a weight that are packed at a time
# Values of a weight per microsecond on two threads of a Zen 4: multiplied with one row, multiplied
# in tiles, and packed; x is packed at the same speed.
PRODUCTS, TILED, REARRANGED = 38e3, 165e3, 4e3


def _can(info: DeviceInfo, problem: QuantizedProduct) -> bool:
    # GPU compilers do not support wide vectors.
    scheme = problem.scheme
    whole = scheme.elements % RUN == 0 and scheme.integer_codes
    return whole and not info.simd_hardware


def _scales_of_run(problem: QuantizedProduct) -> int:
    return 2 if problem.scheme.group_size == UNIT else 1


def _pack_rows(gpu: Context, problem: QuantizedProduct, x: Array) -> list[Buffer]:
    """Rows of x as integer codes, their scales and their sums."""
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


def _packing(info: DeviceInfo, problem: QuantizedProduct) -> float:
    # Its launch costs little, since the next command follows immediately.
    return 0.5 * dispatching(info) + problem.m * problem.k / of_processor(info, REARRANGED)


# ---- a few rows ----


def _serial_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    products = problem.m * problem.n * problem.k / of_processor(info, PRODUCTS)
    return dispatching(info) + _packing(info, problem) + products


@family.variant("serial", can=_can, cost=_serial_cost)
def serial(
    gpu: Context,
    problem: QuantizedProduct,
    x: Array,
    weights: Sequence[Stored],
    results: Sequence[Array],
) -> None:
    """One thread per few rows of a weight; up to three weights per launch."""
    packed = _pack_rows(gpu, problem, x)
    both = zip(weights, results, strict=True)
    for _, group in groupby(both, lambda pair: pair[0].scale_type):
        alike = list(group)
        for first in range(0, len(alike), TOGETHER):
            few = alike[first : first + TOGETHER]
            _multiply_few(gpu, problem, packed, *zip(*few, strict=True))


def _multiply_few(
    gpu: Context,
    problem: QuantizedProduct,
    packed: list[Buffer],
    weights: Sequence[Stored],
    results: Sequence[Array],
) -> None:
    rows = rows_in_one_pass(problem)
    columns = [result.layout.shape[-1] for result in results]
    missing = TOGETHER - len(weights)
    stored = [weight.arguments for weight in (*weights, *[weights[0]] * missing)]
    out = [buffer_of(result) for result in (*results, *[results[0]] * missing)]
    record = struct.pack("5I", *columns, *[0] * missing, problem.m, problem.k)
    stem, kernel = "quant_integers", "quantized_matmul_serial"
    together = COLUMNS.get(rows, 1) if problem.scheme.elements == RUN else 1
    gpu.queue.dispatch(
        pipeline(gpu, stem, kernel, weights[0], problem.dtype, {3: rows, 6: together}),
        [*(b for parts in stored for b in parts[:-1]), stored[0][-1], *packed, *out, record],
        (sum(-(-n // together) for n in columns), -(-problem.m // rows), 1),
        (1, 1, 1),
        kernel="quantized_matmul",
        variant="serial",
    )


# ---- many rows ----


def _tiles_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    values = problem.n * problem.k
    rows = -(-problem.m // STRIP) * STRIP
    rearranging = dispatching(info) + values / of_processor(info, REARRANGED)
    products = rows * values / of_processor(info, TILED)
    return dispatching(info) + _packing(info, problem) + rearranging + products


# Not batch invariant: the number of rows decides between both variants.
@family.variant("serial_tiles", can=_can, cost=_tiles_cost, batch_invariant=False)
def serial_tiles(
    gpu: Context,
    problem: QuantizedProduct,
    x: Array,
    weights: Sequence[Stored],
    results: Sequence[Array],
) -> None:
    """One thread per tile of the result. The weight is packed for it, some rows at a time."""
    packed = _pack_rows(gpu, problem, x)
    step = max(TILE_COLUMNS, PANEL // (2 * problem.k) // TILE_COLUMNS * TILE_COLUMNS)
    for weight, result in zip(weights, results, strict=True):
        out, columns = buffer_of(result), result.layout.shape[-1]
        for first in range(0, columns, step):
            panel = replace(problem, n=min(step, columns - first))
            # From the second panel on, the pool reuses the same memory: the device works in order.
            matrix = _pack_matrix(gpu, panel, weight.rows(first, panel.n, panel.k))
            skipped = first * problem.dtype.itemsize
            part = out.slice(skipped, out.size - skipped)
            _multiply(gpu, panel, matrix, packed, part, columns)
            del matrix


def _pack_matrix(gpu: Context, panel: QuantizedProduct, weight: Stored) -> list[Buffer]:
    """Pack codes, scales and offsets of some rows of the weight for tiles."""
    columns = -(-panel.n // TILE_COLUMNS) * TILE_COLUMNS
    size = columns * panel.k
    beside = size // RUN * 4 * _scales_of_run(panel)
    matrix = [gpu.buffer(n) for n in (size * 2, beside, beside)]
    gpu.queue.dispatch(
        pipeline(gpu, "quant_integers", "pack_matrix", weight, panel.dtype),
        [*weight.arguments, *matrix, _packed(panel, panel.n)],
        (panel.k // panel.scheme.elements, columns // LINE, 1),
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


def _packed(problem: QuantizedProduct, stride: int) -> bytes:
    """The `Product` record of quant_integer_tiles.h."""
    return struct.pack("4I", problem.m, problem.n, problem.k, stride)


def _has_offsets(problem: QuantizedProduct) -> bool:
    return not {"m", "dmin", "biases"}.isdisjoint(problem.scheme.fields)
