"""Products of one row with quantized matrices, with the row in registers: for decoding on GPUs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from lbrx.dtype import Dtype
from lbrx.kernels.arrays import buffer_of
from lbrx.kernels.quantized import Stored, pipeline
from lbrx.kernels.quantized_matmul import QuantizedProduct, family, simd, simd_cost
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.storage import Array

# Constants of quant_lines.h.
WEIGHTS = 3  # in one launch
MOST_LINES, MOST_THREADS = 128, 256

SOME_CORES = 32  # of GPUs that do not say how many they have
THREADS_PER_CORE = 384  # that are wanted at a time: measured on an H200


@dataclass(frozen=True)
class Lines:
    """How a thread reads the rows of a weight."""

    values: int  # of a unit
    units: int  # of a thread, in each row
    batch: int  # rows that are read at a time
    multiple: int  # that the number of columns must be of
    alignment: int  # of the weight, in bytes


LINES = {
    "q4_0": Lines(32, 2, 2, 64, 4),
    "q8_0": Lines(16, 4, 1, 64, 4),
    "q4_k": Lines(32, 2, 2, 256, 16),
    "mlx_4": Lines(32, 2, 2, 32, 16),
}


def _can(info: DeviceInfo, problem: QuantizedProduct) -> bool:
    form = LINES.get(problem.scheme.codec or "")
    return form is not None and problem.m == 1 and problem.k % form.multiple == 0


def _cost(info: DeviceInfo, problem: QuantizedProduct) -> float:
    # Apple's GPUs have no instruction for products of bytes.
    return (2.0 if info.cuda is None else 0.5) * simd_cost(info, problem)


@family.variant("lines", can=_can, cost=_cost, batch_invariant=False)
def lines(
    gpu: Context,
    problem: QuantizedProduct,
    x: Array,
    weights: Sequence[Stored],
    results: Sequence[Array],
) -> None:
    """Threads keep their part of x in registers and read the same part of many rows."""
    form = LINES[problem.scheme.codec or ""]
    alike: dict[Dtype, list[tuple[Stored, Array]]] = {}
    for weight, result in zip(weights, results, strict=True):
        if weight.codes.offset % form.alignment:
            simd(gpu, problem, x, [weight], [result])
        elif result.layout.size:
            alike.setdefault(weight.scale_type, []).append((weight, result))
    for pairs in alike.values():
        for at in range(0, len(pairs), WEIGHTS):
            _dispatch(gpu, problem, form, x, pairs[at : at + WEIGHTS])


def _dispatch(
    gpu: Context,
    problem: QuantizedProduct,
    form: Lines,
    x: Array,
    pairs: Sequence[tuple[Stored, Array]],
) -> None:
    rows = [result.layout.shape[-1] for _, result in pairs]
    units = problem.k // form.values
    threads = min(-(-units // (32 * form.units)) * 32, MOST_THREADS)
    own = lines_of_group(gpu.info, sum(rows), threads, 2 * form.batch)
    groups = list(accumulate(-(-n // own) for n in rows))
    before = [*groups[:-1], groups[-1], groups[-1]][: WEIGHTS - 1]
    padded = [*rows, 0, 0][:WEIGHTS]
    given: list[Buffer | bytes] = []
    for weight, result in [*pairs, *[pairs[0]] * (WEIGHTS - len(pairs))]:
        given += [*weight.arguments[:3], buffer_of(result)]
    weight = pairs[0][0]
    vector = buffer_of(x)
    aligned = vector.offset % (4 * x.dtype.itemsize) == 0
    constants = {4: form.batch, 5: own, 6: form.units, 7: aligned}
    gpu.queue.dispatch(
        pipeline(gpu, "quant_lines", "quantized_matmul_lines", weight, problem.dtype, constants),
        [*given, vector, struct.pack("6I", problem.k, *padded, *before)],
        (groups[-1] * threads, 1, 1),
        (threads, 1, 1),
        kernel="quantized_matmul",
        variant="lines",
    )


def lines_of_group(info: DeviceInfo, rows: int, threads: int, least: int) -> int:
    """Rows of a threadgroup, a power of two: enough threadgroups for all cores come first."""
    most = rows * threads // ((info.cores or SOME_CORES) * THREADS_PER_CORE)
    lines = least
    while 2 * lines <= min(most, MOST_LINES):
        lines *= 2
    return lines
