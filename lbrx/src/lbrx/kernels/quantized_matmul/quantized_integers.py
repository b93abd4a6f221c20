"""Products with a quantized matrix in integer arithmetic, for CPUs.

Rows of x are quantized to 16-bit integers with a scale for every 32 values, which is as precise as
float16. The codes of the weight are multiplied without decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Bool, Record, UInt
from lbrx.device_info import DeviceKind
from lbrx.kernels.arrays import buffer_of
from lbrx.kernels.costs import dispatching, of_processor
from lbrx.kernels.launching import GROUP
from lbrx.kernels.quantized.quantized import TYPES, UNIT, Stored, StoredConstants, pipeline
from lbrx.kernels.quantized_matmul.quantized_matmul import (
    QuantizedProduct,
    family,
    rows_in_one_pass,
)
from lbrx.metal import Buffer, DeviceInfo

# Constants of quant_codes.h, wide.h, quant_integer_tiles.h and quant_integers.h.
RUN, LINE, TILE_ROWS, STRIP, TILE_COLUMNS = 32, 16, 32, 4, 64
TOGETHER = 3  # weights per launch
COLUMNS = {1: 4, 2: 2}  # that a thread computes at once of so many rows, of blocks of one run

PANEL = 16 << 20  # bytes of a weight that are packed at a time


class IntegerConstants(StoredConstants, header="quant_integers"):
    ROWS: UInt = 1  # of x in one pass
    COLUMNS: UInt = 1  # of the result in one pass: rows of a weight
    SCALES_OF_RUN: UInt = 1  # or two, one for each 16 values
    HAS_OFFSETS: Bool = False


class WeightsRecord(Record, header="quant_integers"):
    """Up to three matrices in one launch. Missing ones are replaced by any other, which is not
    read.
    """

    first: UInt  # rows of each matrix
    second: UInt
    third: UInt
    m: UInt
    k: UInt


class PanelRecord(Record, header="quant_integers"):
    m: UInt
    n: UInt
    k: UInt
    stride: UInt  # of the result's rows: n may be some of its columns


def _can(info: DeviceInfo, problem: QuantizedProduct) -> bool:
    return problem.scheme.elements % RUN == 0 and problem.scheme.integer_codes


# GPU compilers do not support wide vectors.
on_processors = partial(family.variant, can=_can, made_for=DeviceKind.WIDE, only=True)


def _scales_of_run(problem: QuantizedProduct) -> int:
    return 2 if problem.scheme.group_size == UNIT else 1


def pack_rows(b: Builder, problem: QuantizedProduct, x: Array) -> list[Buffer]:
    """Rows of x as integer codes, their scales and their sums."""
    size = problem.m * problem.k
    packed = [b.scratch(n) for n in (size * 2, size // RUN * 4, size // UNIT * 4)]
    constants = IntegerConstants(VALUES=TYPES[problem.dtype])
    b.launch(
        b.pipeline("quant_integers", "pack_rows", constants, safe_math=True),
        [buffer_of(x), *packed],
        (size // RUN, 1, 1),
        (min(size // RUN, GROUP), 1, 1),
        part="pack_rows",
    )
    return packed


def _packing(info: DeviceInfo, problem: QuantizedProduct) -> float:
    # Its launch costs little, since the next command follows immediately.
    return 0.5 * dispatching(info) + problem.m * problem.k / of_processor(info, "quantized packing")


# ---- a few rows ----


def _serial_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    products = problem.m * problem.n * problem.k / of_processor(info, "quantized integers")
    return dispatching(info) + _packing(info, problem) + products


@on_processors("serial", cost=_serial_cost)
def serial(
    b: Builder,
    problem: QuantizedProduct,
    x: Array,
    weights: Sequence[Stored],
    results: Sequence[Array],
) -> None:
    """One thread per few rows of a weight; up to three weights per launch."""
    packed = pack_rows(b, problem, x)
    both = zip(weights, results, strict=True)
    for _, group in groupby(both, lambda pair: pair[0].scale_type):
        alike = list(group)
        for first in range(0, len(alike), TOGETHER):
            few = alike[first : first + TOGETHER]
            _multiply_few(b, problem, packed, *zip(*few, strict=True))


def _multiply_few(
    b: Builder,
    problem: QuantizedProduct,
    packed: list[Buffer],
    weights: Sequence[Stored],
    results: Sequence[Array],
) -> None:
    rows = rows_in_one_pass(problem)
    columns = [result.layout.shape[-1] for result in results]
    missing = TOGETHER - len(weights)
    first, second, third = (*columns, *[0] * missing)
    stored = [weight.arguments for weight in (*weights, *[weights[0]] * missing)]
    out = [buffer_of(result) for result in (*results, *[results[0]] * missing)]
    record = WeightsRecord(first=first, second=second, third=third, m=problem.m, k=problem.k)
    together = COLUMNS.get(rows, 1) if problem.scheme.elements == RUN else 1
    known = weights[0].constants(problem.dtype)
    constants = IntegerConstants(**known, ROWS=rows, COLUMNS=together)
    b.launch(
        pipeline(b, "quant_integers", "quantized_matmul_serial", weights[0], constants),
        [*(b for parts in stored for b in parts[:-1]), stored[0][-1], *packed, *out, record],
        (sum(-(-n // together) for n in columns), -(-problem.m // rows), 1),
        (1, 1, 1),
    )


# ---- many rows ----


def _tiles_cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    values = problem.n * problem.k
    rows = -(-problem.m // STRIP) * STRIP
    rearranging = dispatching(info) + values / of_processor(info, "quantized packing")
    products = rows * values / of_processor(info, "quantized tiles")
    return dispatching(info) + _packing(info, problem) + rearranging + products


# Not batch invariant: the number of rows decides between both variants.
@on_processors("serial_tiles", cost=_tiles_cost, batch_invariant=False)
def serial_tiles(
    b: Builder,
    problem: QuantizedProduct,
    x: Array,
    weights: Sequence[Stored],
    results: Sequence[Array],
) -> None:
    """One thread per tile of the result. The weight is packed for it, some rows at a time."""
    packed = pack_rows(b, problem, x)
    step = max(TILE_COLUMNS, PANEL // (2 * problem.k) // TILE_COLUMNS * TILE_COLUMNS)
    for weight, result in zip(weights, results, strict=True):
        out, columns = buffer_of(result), result.layout.shape[-1]
        for first in range(0, columns, step):
            panel = replace(problem, n=min(step, columns - first))
            # From the second panel on, the pool reuses the same memory: the device works in order.
            matrix = _pack_matrix(b, panel, weight.rows(first, panel.n, panel.k))
            skipped = first * problem.dtype.itemsize
            part = out.slice(skipped, out.size - skipped)
            _multiply(b, panel, matrix, packed, part, columns)
            del matrix


def _pack_matrix(b: Builder, panel: QuantizedProduct, weight: Stored) -> list[Buffer]:
    """Pack codes, scales and offsets of some rows of the weight for tiles."""
    columns = -(-panel.n // TILE_COLUMNS) * TILE_COLUMNS
    size = columns * panel.k
    beside = size // RUN * 4 * _scales_of_run(panel)
    matrix = [b.scratch(n) for n in (size * 2, beside, beside)]
    constants = IntegerConstants(**weight.constants(panel.dtype))
    b.launch(
        pipeline(b, "quant_integers", "pack_matrix", weight, constants),
        [*weight.arguments, *matrix, _panel_record(panel, panel.n)],
        (panel.k // panel.scheme.elements, columns // LINE, 1),
        (1, 1, 1),
        part="pack_matrix",
    )
    return matrix


def _multiply(
    b: Builder,
    panel: QuantizedProduct,
    matrix: list[Buffer],
    packed: list[Buffer],
    out: Buffer,
    stride: int,
) -> None:
    constants = IntegerConstants(
        VALUES=TYPES[panel.dtype],
        SCALES_OF_RUN=_scales_of_run(panel),
        HAS_OFFSETS=_has_offsets(panel),
    )
    b.launch(
        b.pipeline("quant_integers", "multiply_tiles", constants, safe_math=True),
        [*matrix, *packed, out, _panel_record(panel, stride)],
        (-(-panel.m // TILE_ROWS), -(-panel.n // TILE_COLUMNS), 1),
        (1, 1, 1),
    )


def _panel_record(panel: QuantizedProduct, stride: int) -> PanelRecord:
    return PanelRecord(m=panel.m, n=panel.n, k=panel.k, stride=stride)


def _has_offsets(problem: QuantizedProduct) -> bool:
    return not {"m", "dmin", "biases"}.isdisjoint(problem.scheme.fields)
