"""Products of one row with quantized matrices, for decoding on GPUs that multiply bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from lbrx.dtype import Dtype
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, empty, placed
from lbrx.kernels.quantized import Stored, pipeline
from lbrx.kernels.quantized_matmul import (
    QuantizedProduct,
    family,
    problem_of,
    simd,
    simd_cost,
    stored_weights,
)
from lbrx.kernels.quantized_row import WEIGHTS, Prologue, Rows, RowTurns
from lbrx.kernels.registry import Call
from lbrx.metal import Context, DeviceInfo
from lbrx.metal.commands import chosen, is_settled
from lbrx.ops import Spec
from lbrx.storage import Array

# Constants of quant_lines.h.
MOST_SIMDGROUPS = 16  # of a threadgroup; their registers are all that a multiprocessor has
UNIT = 32  # values
LANES = 32
WORDS = 8  # of x in a unit
X_ALIGNMENT = 8  # bytes
PART = 76  # bytes of threadgroup memory for a unit of x
SUMS = 2048  # bytes of threadgroup memory for sums

NO_TURNS = dict.fromkeys(range(14, 18), False)  # constants of kernels that rotate nothing
SPARE = 4  # at most one unit in so many may be added to complete steps
SOME_CORES = 32  # of GPUs that do not say how many they have


@dataclass(frozen=True)
class Lines:
    """How simdgroups read a weight."""

    rows: int  # of a batch, that are read at a time
    depth: int  # steps that are under way
    multiple: int  # that the number of columns must be of
    alignment: int  # of the weight, in bytes
    words: int = 1  # of x that a thread rounds, at least


LINES = {
    "q4_0": Lines(4, 2, 64, 4),
    "q8_0": Lines(2, 2, 64, 4),
    "q4_k": Lines(4, 1, 256, 16),
    "mlx_4": Lines(4, 2, 32, 16, words=2),  # which alternate
}


@dataclass(frozen=True)
class Plan:
    """How the batches of rows are divided."""

    groups: int  # threadgroups
    simdgroups: int  # of a threadgroup
    split: int  # simdgroups that share a batch
    steps: int  # of LANES units for each of them, in a row
    turns: int  # batches of a simdgroup

    @property
    def threads(self) -> int:
        """Threads of a threadgroup."""
        return self.simdgroups * LANES

    @property
    def units(self) -> int:
        """Units of x, with those beyond the last that complete a step."""
        return self.steps * self.split * LANES

    def words(self, least: int) -> int:
        """Words of x that a thread rounds at a time: a power of two."""
        wanted = min(max(least, self.units * WORDS // self.threads), WORDS)
        return 1 << (wanted.bit_length() - 1)

    @property
    def memory(self) -> int:
        """Bytes of threadgroup memory for x."""
        return PART * self.units


def divided(info: DeviceInfo, batches: int, units: int) -> Plan:
    """One threadgroup per core; simdgroups share batches if there are few of them."""
    cores = info.cores or SOME_CORES
    split = 1
    while 2 * split <= MOST_SIMDGROUPS and 2 * split * batches <= cores * MOST_SIMDGROUPS:
        if SPARE * (-units % (2 * split * LANES)) > units:
            break
        split *= 2
    wanted = -(-batches * split // cores)
    simdgroups = max(split, min(MOST_SIMDGROUPS, 1 << (wanted - 1).bit_length()))
    groups = min(cores, -(-batches * split // simdgroups))
    turns = -(-batches * split // (groups * simdgroups))
    return Plan(groups, simdgroups, split, -(-units // (LANES * split)), turns)


def _can(info: DeviceInfo, problem: QuantizedProduct) -> bool:
    form = LINES.get(problem.scheme.codec or "")
    if form is None or problem.m != 1 or problem.k % form.multiple:
        return False
    units = problem.k // UNIT
    most = max(units + units // SPARE, units + LANES)
    return PART * most + SUMS <= info.threadgroup_memory


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
    """Threadgroups keep x in threadgroup memory; simdgroups read several rows at a time."""
    form = LINES[problem.scheme.codec or ""]
    before = Prologue(x)
    alike: dict[Dtype, list[tuple[Stored, Array]]] = {}
    for weight, result in zip(weights, results, strict=True):
        if weight.codes.offset % form.alignment or buffer_of(x).offset % X_ALIGNMENT:
            simd(gpu, problem, x, [weight], [result])
        elif result.layout.size:
            alike.setdefault(weight.scale_type, []).append((weight, result))
    for pairs in alike.values():
        for at in range(0, len(pairs), WEIGHTS):
            some = pairs[at : at + WEIGHTS]
            sizes = [result.layout.shape[-1] for _, result in some]
            _dispatch(gpu, problem, form, before, None, Rows(some, sizes))


def is_chosen(info: DeviceInfo, problem: QuantizedProduct, weights: int) -> bool:
    """Whether one launch of this variant computes a product, so that x can be computed in it."""
    return weights <= WEIGHTS and problem.m == 1 and family.choose(info, problem).name == "lines"


def turns_rows(problem: QuantizedProduct, sizes: Sequence[int], features: int) -> bool:
    """Whether the kernel can rotate and write heads, whose pairs of features batches divide."""
    form = LINES.get(problem.scheme.codec or "")
    if form is None or any(size % features for size in sizes):
        return False
    return features % form.rows == 0


def fused(
    call: Call, prologue: Prologue, gate: Spec | None = None, turns: RowTurns | None = None
) -> tuple[tuple[Array, ...], Array | None] | None:
    """A product whose x is computed in its kernel, and the sum of x and what is added to it.

    With a `gate`, the spec of a result, the results of two matrices become one by SwiGLU. With
    `turns` they are rotated and written to caches. None if the operands are not where the kernel
    can read them.
    """
    gpu, problem = call.gpu, problem_of(call)
    form = LINES[problem.scheme.codec or ""]
    weights = stored_weights(call)
    before = prologue.changed(lambda array: elementwise.contiguous(gpu, placed(gpu, array)))
    if (
        len({weight.scale_type for weight in weights}) > 1
        or any(weight.codes.offset % form.alignment for weight in weights)
        or any(buffer_of(array).offset % X_ALIGNMENT for array in before.arrays)
    ):
        return None
    sizes = [spec.shape[-1] for spec in call.outputs]
    if turns is not None:
        results = tuple(turns.results(gpu))
    else:
        results = tuple(empty(gpu, spec) for spec in (call.outputs if gate is None else (gate,)))
    total = None
    if before.added is not None:
        total = empty(gpu, Spec(before.x.layout.shape, problem.dtype))
    each = results if gate is None else results * 2
    rows = Rows(list(zip(weights, each, strict=True)), sizes, gate is not None, turns)
    with chosen(lambda: "takes what is computed before or after it"):
        _dispatch(gpu, problem, form, before, total, rows)
    return results, total


def _dispatch(
    gpu: Context,
    problem: QuantizedProduct,
    form: Lines,
    prologue: Prologue,
    total: Array | None,
    rows: Rows,
) -> None:
    ends, counts = rows.batches(form.rows), rows.counts
    plan = divided(gpu.info, ends[-1], problem.k // UNIT)
    before = [*ends, ends[-1]][: WEIGHTS - 1]
    shift = plan.split.bit_length() - 1
    padded = [*counts, 0, 0][:WEIGHTS]
    numbers = (problem.k, *padded, *before, ends[-1], shift, plan.steps)
    constants = {
        4: form.rows,
        5: min(form.depth, plan.steps * plan.turns),
        6: plan.units == problem.k // UNIT,
        7: len(counts) > 1,
        8: plan.words(form.words),
        12: rows.paired,
        13: is_settled(rows.weights),
        **(NO_TURNS if rows.turns is None else rows.turns.constants),
        **prologue.constants,
    }
    record = struct.pack("9I", *numbers)
    weight = rows.pairs[0][0]
    gpu.queue.dispatch(
        pipeline(gpu, "quant_lines", "quantized_matmul_lines", weight, problem.dtype, constants),
        [
            *rows.arguments,
            buffer_of(prologue.x),
            record,
            *prologue.arguments(total),
            *([] if rows.turns is None else rows.turns.arguments(gpu)),
        ],
        (plan.groups * plan.threads, 1, 1),
        (plan.threads, 1, 1),
        threadgroup_memory=(plan.memory,),
        kernel="quantized_matmul",
        variant="lines",
    )
