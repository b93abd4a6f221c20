"""Products of one row with quantized matrices, for decoding on GPUs that multiply bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

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
from lbrx.kernels.registry import Call
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.metal.commands import chosen
from lbrx.ops import Spec
from lbrx.storage import Array

# Constants of quant_lines.h.
WEIGHTS = 3  # in one launch
MOST_SIMDGROUPS = 16  # of a threadgroup; their registers are all that a multiprocessor has
UNIT = 32  # values
LANES = 32
WORDS = 8  # of x in a unit
LEAST_WORDS = 4  # of x that a thread rounds: fewer cost as many instructions
X_ALIGNMENT = 8  # bytes
PART = 76  # bytes of threadgroup memory for a unit of x
SUMS = 2048  # bytes of threadgroup memory for sums
EARLY = 0.5  # of the GPU's cache: weights of so many bytes are fetched before the kernel begins

SPARE = 4  # at most one unit in so many may be added to complete steps
SOME_CORES = 32  # of GPUs that do not say how many they have


@dataclass(frozen=True)
class Lines:
    """How simdgroups read a weight."""

    rows: int  # of a batch, that are read at a time
    depth: int  # steps that are under way
    multiple: int  # that the number of columns must be of
    alignment: int  # of the weight, in bytes


LINES = {
    "q4_0": Lines(4, 2, 64, 4),
    "q8_0": Lines(2, 2, 64, 4),
    "q4_k": Lines(4, 1, 256, 16),
    "mlx_4": Lines(4, 2, 32, 16),
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

    @property
    def words(self) -> int:
        """Words of x that a thread rounds at a time: a power of two."""
        wanted = min(max(LEAST_WORDS, self.units * WORDS // self.threads), WORDS)
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


@dataclass(frozen=True)
class Prologue:
    """What a product's x is computed from within its kernel: x is then not stored."""

    x: Array
    added: Array | None = None
    """Added to x; the sum is a result of the kernel."""
    weight: Array | None = None
    """Of an RMS norm of x."""
    eps: float = 0.0
    gated: Array | None = None
    """What silu(x) is multiplied by."""

    def arguments(self, total: Array | None) -> list[Buffer | bytes | None]:
        """Those after the `Lines` record."""
        eps = struct.pack("f", self.eps)
        return [
            None if self.added is None else buffer_of(self.added),
            None if total is None else buffer_of(total),
            *((None, None) if self.weight is None else (buffer_of(self.weight), eps)),
            None if self.gated is None else buffer_of(self.gated),
        ]

    @property
    def constants(self) -> dict[int, bool]:
        """The kernel's function constants."""
        operands = (self.added, self.weight, self.gated)
        return {9 + i: operand is not None for i, operand in enumerate(operands)}

    @property
    def arrays(self) -> list[Array]:
        """The operands that there are."""
        every = (self.x, self.added, self.weight, self.gated)
        return [array for array in every if array is not None]

    def changed(self, change: Callable[[Array], Array]) -> Prologue:
        """The same with other operands."""
        added, weight, gated = (
            None if array is None else change(array)
            for array in (self.added, self.weight, self.gated)
        )
        return Prologue(change(self.x), added, weight, self.eps, gated)


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
            _dispatch(gpu, problem, form, before, None, Rows(pairs[at : at + WEIGHTS]))


def is_chosen(info: DeviceInfo, problem: QuantizedProduct, weights: int) -> bool:
    """Whether one launch of this variant computes a product, so that x can be computed in it."""
    return weights <= WEIGHTS and problem.m == 1 and family.choose(info, problem).name == "lines"


def fused(
    call: Call, prologue: Prologue, gate: Spec | None = None
) -> tuple[tuple[Array, ...], Array | None] | None:
    """A product whose x is computed in its kernel, and the sum of x and what is added to it.

    With a `gate`, the spec of a result, the results of two matrices become one by SwiGLU. None if
    the operands are not where the kernel can read them.
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
    results = tuple(empty(gpu, spec) for spec in (call.outputs if gate is None else (gate,)))
    sizes = Spec(before.x.layout.shape, problem.dtype)
    total = None if before.added is None else empty(gpu, sizes)
    with chosen(lambda: "takes what is computed before or after it"):
        _dispatch(gpu, problem, form, before, total, Rows.of(weights, results))
    return results, total


@dataclass(frozen=True)
class Rows:
    """Matrices of one launch and what is written of them: a result each, or one for both."""

    pairs: Sequence[tuple[Stored, Array]]
    paired: bool = False

    @classmethod
    def of(cls, weights: Sequence[Stored], results: Sequence[Array]) -> Rows:
        """As many results as weights, or one result of two weights."""
        paired = len(results) < len(weights)
        return cls(list(zip(weights, [*results] * (1 + paired), strict=True)), paired)

    @property
    def counts(self) -> list[int]:
        """Rows of the matrices that are counted one after the other: of a pair those of one."""
        rows = [result.layout.shape[-1] for _, result in self.pairs]
        return rows[:1] if self.paired else rows

    def batches(self, rows: int) -> list[int]:
        """For each of them the batches up to its end; a batch has so many rows."""
        own = rows // 2 if self.paired else rows
        return [*accumulate(-(-count // own) for count in self.counts)]

    @property
    def arguments(self) -> list[Buffer | bytes | None]:
        """Buffers of `WEIGHTS` matrices and results; those that are missing repeat the first."""
        filled = [*self.pairs, *[self.pairs[0]] * (WEIGHTS - len(self.pairs))]
        return [each for w, result in filled for each in (*w.arguments[:3], buffer_of(result))]


def comes_early(info: DeviceInfo, nbytes: float) -> bool:
    """Whether weights of so many bytes are fetched while the kernels before theirs end."""
    return nbytes <= EARLY * (info.cache or 0)


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
    nbytes = sum(counts) * (1 + rows.paired) * problem.k * problem.scheme.bits_per_weight / 8
    early = comes_early(gpu.info, nbytes)
    shift = plan.split.bit_length() - 1
    padded = [*counts, 0, 0][:WEIGHTS]
    numbers = (problem.k, *padded, *before, ends[-1], shift, plan.steps, early)
    constants = {
        4: form.rows,
        5: min(form.depth, plan.steps * plan.turns),
        6: plan.units == problem.k // UNIT,
        7: len(counts) > 1,
        8: plan.words,
        12: rows.paired,
        13: early,
        **prologue.constants,
    }
    record = struct.pack("10I", *numbers)
    weight = rows.pairs[0][0]
    gpu.queue.dispatch(
        pipeline(gpu, "quant_lines", "quantized_matmul_lines", weight, problem.dtype, constants),
        [*rows.arguments, buffer_of(prologue.x), record, *prologue.arguments(total)],
        (plan.groups * plan.threads, 1, 1),
        (plan.threads, 1, 1),
        threadgroup_memory=(plan.memory,),
        kernel="quantized_matmul",
        variant="lines",
    )
