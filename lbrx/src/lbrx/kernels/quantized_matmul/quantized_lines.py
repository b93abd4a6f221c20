"""Products of one row with quantized matrices, for decoding on GPUs that multiply bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array, MetalStorage
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import UINT, Bool, Record, UInt
from lbrx.device_info import DeviceKind
from lbrx.kernels.arrays import buffer_of
from lbrx.kernels.quantized.quantized import Stored, aligned, pipeline
from lbrx.kernels.quantized_matmul.quantized_matmul import (
    QuantizedProduct,
    family,
    problem_of,
    simd,
    simd_cost,
    stored_weights,
)
from lbrx.kernels.quantized_matmul.quantized_row import (
    WEIGHTS,
    Prologue,
    RowConstants,
    Rows,
    RowTurns,
)
from lbrx.kernels.registry import Call
from lbrx.metal import DeviceInfo
from lbrx.ops import Spec

# Constants of quant_lines.h.
MOST_SIMDGROUPS = 16  # of a threadgroup; their registers are all that a multiprocessor has
UNIT = 32  # values
LANES = 32
WORDS = 8  # of x in a unit
X_ALIGNMENT = 8  # bytes
PART = 76  # bytes of threadgroup memory for a unit of x
SUMS = 2048  # bytes of threadgroup memory for sums

SPARE = 4  # at most one unit in so many may be added to complete steps
SOME_CORES = 32  # of GPUs that do not say how many they have


class LinesConstants(RowConstants, header="quant_lines"):
    """If PAIRED, the result is the SwiGLU of the products with two matrices: a batch has rows of
    both. If SETTLED, the matrices are there before the kernels of the same list begin: this one
    reads them while those before it end. If TURNED, the results are heads of a token, which are
    rotated by its position or written to a cache: a batch has the rows of two features that are
    rotated together.
    """

    ROWS: UInt  # of a batch, that a simdgroup reads at a time
    DEPTH: UInt  # steps that are under way
    SEVERAL: Bool  # whether there is more than one matrix
    PAIRED: Bool
    SETTLED: Bool
    TURNED: Bool = False
    WIDE: Bool = False  # positions have 64 bits
    FACTORED: Bool = False
    INTERLEAVED: Bool = False  # features of a pair are neighbours


class LinesRecord(Record, header="quant_lines"):
    k: UInt
    rows: Annotated[Sequence[int], UINT[WEIGHTS]]  # of the matrices
    before: Annotated[Sequence[int], UINT[WEIGHTS - 1]]  # batches before those of the second, third
    batches: UInt
    shift: UInt  # 1 << shift simdgroups share a batch
    steps: UInt  # of 32 units for each of them, in a row


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


@family.variant("lines", can=_can, cost=_cost, batch_invariant=False, made_for=DeviceKind.SIMD)
def lines(
    b: Builder,
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
            named = b.named(family.name, "simd", lambda: "lines for memory not in vectors")
            simd(named, problem, x, [weight], [result])
        elif result.layout.size:
            alike.setdefault(weight.scale_type, []).append((weight, result))
    for pairs in alike.values():
        for at in range(0, len(pairs), WEIGHTS):
            some = pairs[at : at + WEIGHTS]
            sizes = [result.layout.shape[-1] for _, result in some]
            _dispatch(b, problem, form, before, None, Rows(some, sizes))


def is_chosen(info: DeviceInfo, problem: QuantizedProduct, weights: int) -> bool:
    """Whether one launch of this variant computes a product, so that x can be computed in it."""
    return weights <= WEIGHTS and problem.m == 1 and family.choose(info, problem).name == "lines"


def turns_rows(problem: QuantizedProduct, sizes: Sequence[int], features: int) -> bool:
    """Whether the kernel can rotate and write heads, whose pairs of features batches divide."""
    form = LINES.get(problem.scheme.codec or "")
    if form is None or any(size % features for size in sizes):
        return False
    return features % form.rows == 0


def takes(problem: QuantizedProduct, offsets: Sequence[int]) -> bool:
    """Whether the kernel can read codes at these offsets."""
    form = LINES.get(problem.scheme.codec or "")
    return form is not None and all(offset % form.alignment == 0 for offset in offsets)


def fused(
    call: Call, prologue: Prologue, gate: Spec | None = None, turns: RowTurns | None = None
) -> tuple[tuple[Array, ...], Array | None]:
    """A product whose x is computed in its kernel, and the sum of x and what is added to it.

    With a `gate`, the spec of a result, the results of two matrices become one by SwiGLU. With
    `turns` they are rotated and written to caches. All weights have the same type of scales, and
    `takes` holds.
    """
    b, problem = call.builder, problem_of(call)
    before = prologue.changed(partial(_row, b))
    if turns is not None:
        results = tuple(turns.results(b))
    else:
        results = tuple(b.result(spec) for spec in (call.outputs if gate is None else (gate,)))
    total = None
    if before.added is not None:
        total = b.result(Spec(before.x.layout.shape, problem.dtype))
    each = results if gate is None else results * 2
    pairs = list(zip(stored_weights(call), each, strict=True))
    rows = Rows(pairs, [spec.shape[-1] for spec in call.outputs], gate is not None, turns)
    named = b.named(family.name, "lines", lambda: "takes what is computed before or after it")
    _dispatch(named, problem, LINES[problem.scheme.codec or ""], before, total, rows)
    return results, total


def _row(b: Builder, array: Array) -> Array:
    """A contiguous row that the kernel can read in vectors."""
    buffer = aligned(b, b.placed(array), X_ALIGNMENT)
    storage = MetalStorage(buffer, 0, buffer.size)
    return Array(storage, sh.contiguous(array.layout.shape), array.dtype)


def _dispatch(
    b: Builder,
    problem: QuantizedProduct,
    form: Lines,
    prologue: Prologue,
    total: Array | None,
    rows: Rows,
) -> None:
    ends, counts = rows.batches(form.rows), rows.counts
    plan = divided(b.info, ends[-1], problem.k // UNIT)
    weight = rows.pairs[0][0]
    constants = LinesConstants(
        **weight.constants(problem.dtype),
        **prologue.constants,
        EVEN=plan.units == problem.k // UNIT,
        OWN=plan.words(form.words),
        ROWS=form.rows,
        DEPTH=min(form.depth, plan.steps * plan.turns),
        SEVERAL=len(counts) > 1,
        PAIRED=rows.paired,
        SETTLED=b.is_settled(rows.weights),
        **({} if rows.turns is None else rows.turns.constants),
    )
    record = LinesRecord(
        k=problem.k,
        rows=[*counts, 0, 0][:WEIGHTS],
        before=[*ends, ends[-1]][: WEIGHTS - 1],
        batches=ends[-1],
        shift=plan.split.bit_length() - 1,
        steps=plan.steps,
    )
    b.launch(
        pipeline(b, "quant_lines", "quantized_matmul_lines", weight, constants),
        [
            *rows.arguments,
            buffer_of(prologue.x),
            record,
            *prologue.arguments(total),
            *([] if rows.turns is None else rows.turns.arguments(b)),
        ],
        (plan.groups * plan.threads, 1, 1),
        (plan.threads, 1, 1),
        threadgroup_memory=(plan.memory,),
    )
