"""What merges need of whole tensors: masks by exact ranks and by chance, inner products of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array, CpuStorage
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import UINT, Bool, Constants, Float, Record, UInt, packed
from lbrx.errors import ShapeError
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, kernel_name, size_class
from lbrx.kernels.launching import GROUP
from lbrx.kernels.random.random import StreamRecord
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer
from lbrx.ops import Spec
from lbrx.ops.merging import rank_probabilities

CUTS = 2  # ranks that separate kept elements from others
HIGH_BINS = 1 << 16
LOW_BINS = 1 << 15
RANK_BINS = 8 * 64 + 2
CUT_BYTES = 16
CHUNK = 1 << 18  # elements of one thread, at least: a histogram for fewer costs more than it saves
PER_CORE = 4  # threads of a CPU's core
FEW_CORES = 16  # where the number is unknown


Arguments = list[Buffer | bytes]


class MaskConstants(Constants, header="merge_masks"):
    HAS_BASE: Bool


class SelectionRecord(Record, header="merge_masks"):
    size: UInt
    chunk: UInt
    chunks: UInt
    ranks: Annotated[Sequence[int], UINT[CUTS]]  # elements before a cut, in descending magnitude


class MaskRowsRecord(Record, header="merge_masks"):
    rows: UInt
    length: UInt
    workers: UInt
    low: Float  # 2^16 times the probability of the smallest magnitude of a row
    step: Float  # the same from rank to rank


@dataclass(frozen=True)
class MaskProblem:
    """The problem: the rows of a tensor, and whether a base is subtracted."""

    kind: str
    dtype: Dtype
    rows: int
    length: int
    has_base: bool

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.rows * self.length

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        return f"{self.kind} {self.dtype} {size_class(self.rows, self.length)}"


family: KernelFamily[MaskProblem] = KernelFamily("merge_masks")
family.samples += [
    Sample("magnitude_mask", (Spec((1024, 1024), dt.bfloat16),) * 2, {"first": 0, "last": 1 << 19}),
    Sample(
        "rank_bernoulli",
        (Spec((1024, 1024), dt.bfloat16),) * 2,
        {"seed": 0, "low": 0.35, "high": 0.65},
    ),
]


@computes("magnitude_mask")
def run_magnitude_mask(call: Call) -> tuple[Array, ...]:
    """The elements of a range of ranks."""
    problem, operands = _prepared(call, "magnitude")
    mask = call.builder.result(call.outputs[0])
    ranks = call.attributes["last"], call.attributes["first"]
    if problem.size:
        family.run(call.builder, problem, operands, [buffer_of(mask)], ranks)
    return (mask,)


@computes("rank_bernoulli")
def run_rank_bernoulli(call: Call) -> tuple[Array, ...]:
    """A random mask, and the norms of its rows."""
    low, high = call.attributes["low"], call.attributes["high"]
    problem, operands = _prepared(call, "ranks" if low != high else "bernoulli")
    results = [call.builder.result(spec) for spec in call.outputs]
    chances = *rank_probabilities(low, high, problem.length), call.attributes["seed"]
    if problem.size:
        family.run(call.builder, problem, operands, [buffer_of(r) for r in results], chances)
    elif problem.rows:  # of no elements
        nothing = CpuStorage(np.zeros(problem.rows * 2, np.float32).view(np.uint8))
        results[1] = call.builder.placed(Array(nothing, results[1].layout, dt.float32))
    return tuple(results)


@computes("row_products")
def run_row_products(call: Call) -> tuple[Array, ...]:
    """The inner products of rows."""
    problem, operands = _prepared(call, "products", 3)
    result = call.builder.result(call.outputs[0])
    if problem.size:
        family.run(call.builder, problem, operands, [buffer_of(result)])
        return (result,)
    nothing = CpuStorage(np.zeros(problem.rows * 3, np.float32).view(np.uint8))
    return (call.builder.placed(Array(nothing, result.layout, dt.float32)),)


def _prepared(call: Call, kind: str, with_base: int = 2) -> tuple[MaskProblem, Arguments]:
    """The problem and the operands, the last one twice where there is no base."""
    arrays = [call.builder.placed(array) for array in call.inputs if array is not None]
    dtype = arrays[0].dtype
    for array in arrays[1:]:
        dtype = dt.promote(dtype, array.dtype)
    if dtype not in (dt.float16, dt.bfloat16, dt.float32):
        dtype = dt.float32
    arrays = [
        layouts.contiguous(call.builder, layouts.cast(call.builder, a, dtype)) for a in arrays
    ]
    shape = arrays[0].layout.shape
    size, length = math.prod(shape), shape[-1] if shape else 1
    if size >= 2**31:
        raise ShapeError(f"{call.op.name} of {size} elements: split it, kernels take 2^31 - 1")
    rows = math.prod(shape[:-1])
    buffers: Arguments = [buffer_of(array) for array in arrays]
    problem = MaskProblem(kind, dtype, rows, length, len(arrays) == with_base)
    return problem, [*buffers, *buffers[-1:] * (with_base - len(arrays))]


def _dispatch(
    b: Builder,
    problem: MaskProblem,
    kernel: str,
    arguments: Arguments,
    grid: tuple[int, int],
    typed: bool = True,
    group: int = 1,
) -> None:
    name = kernel_name(kernel, "", problem.dtype) if typed else kernel
    constants = MaskConstants(HAS_BASE=problem.has_base) if typed else None
    pipeline = b.pipeline("merge_masks", name, constants, safe_math=True)
    size = (*grid, 1), (min(group, grid[0]), 1, 1)
    b.launch(pipeline, arguments, *size, part=kernel)


def _most_threads(b: Builder, on_gpus: int) -> int:
    """The most threads that share the work; their scratch memory limits them on GPUs."""
    return b.info.by_kind(wide=PER_CORE, simd=on_gpus) * (b.info.cores or FEW_CORES)


@family.variant("histogram", can=lambda info, problem: problem.kind == "magnitude")
def histogram(
    b: Builder,
    problem: MaskProblem,
    operands: Arguments,
    results: Arguments,
    ranks: tuple[int, int],
) -> None:
    """Two histograms find the magnitudes at which the ranks cut, one thread for each chunk."""
    chunks = max(1, min(problem.size // CHUNK, _most_threads(b, 8)))
    chunk = -(-problem.size // chunks)
    chunks = -(-problem.size // chunk)
    cut = [min(rank, problem.size) for rank in ranks]
    used = CUTS if cut[1] else 1  # with no elements before it, the second one needs no search
    record = SelectionRecord(size=problem.size, chunk=chunk, chunks=chunks, ranks=cut)
    # The counts of upper halves are not needed any more when lower ones are counted.
    counts = b.scratch(chunks * max(HIGH_BINS, CUTS * LOW_BINS) * 4)
    totals = b.scratch(max(HIGH_BINS, CUTS * LOW_BINS) * 4)
    cuts = b.scratch(CUTS * CUT_BYTES)
    budgets = b.scratch(CUTS * chunks * 4)

    def total(bins: int, cuts: int) -> None:
        sizes = packed(UINT, bins, chunks)
        arguments: Arguments = [counts, totals, sizes]
        _dispatch(b, problem, "merge_totals", arguments, (bins, cuts), False, GROUP)

    _dispatch(b, problem, "merge_count_high", [*operands, counts, record], (chunks, 1))
    total(HIGH_BINS, 1)
    _dispatch(b, problem, "merge_cut_high", [totals, cuts, record], (CUTS, 1), False)
    _dispatch(b, problem, "merge_count_low", [*operands, counts, record, cuts], (chunks, used))
    total(LOW_BINS, used)
    arguments: Arguments = [totals, counts, cuts, budgets, record]
    _dispatch(b, problem, "merge_cut_low", arguments, (CUTS, 1), False)
    arguments = [*operands, *results, record, cuts, budgets]
    _dispatch(b, problem, "merge_cut_mask", arguments, (chunks, 1))


def _random(
    b: Builder, problem: MaskProblem, chances: tuple[float, float, int]
) -> tuple[int, Arguments]:
    """The number of workers, and the arguments of random masks."""
    low, step, seed = chances
    workers = min(problem.rows, _most_threads(b, 64))
    record = _rows_record(problem, workers, low, step)
    return workers, [record, StreamRecord(key=seed & (1 << 64) - 1, counter=0)]


def _rows_record(
    problem: MaskProblem, workers: int, low: float = 0, step: float = 0
) -> MaskRowsRecord:
    return MaskRowsRecord(
        rows=problem.rows, length=problem.length, workers=workers, low=low, step=step
    )


@family.variant("bernoulli", can=lambda info, problem: problem.kind == "bernoulli")
def bernoulli(
    b: Builder,
    problem: MaskProblem,
    operands: Arguments,
    results: Arguments,
    chances: tuple[float, float, int],
) -> None:
    """One probability for all elements, one thread for several rows."""
    workers, records = _random(b, problem, chances)
    arguments = [*operands, *results, *records]
    _dispatch(b, problem, "merge_bernoulli", arguments, (workers, 1))


@family.variant("ranks", can=lambda info, problem: problem.kind == "ranks")
def ranks(
    b: Builder,
    problem: MaskProblem,
    operands: Arguments,
    results: Arguments,
    chances: tuple[float, float, int],
) -> None:
    """Probabilities by the rank in a row, one thread for several rows."""
    workers, records = _random(b, problem, chances)
    scratch = b.scratch(workers * (problem.length + RANK_BINS + 1) * 4)
    arguments = [*operands, *results, *records, scratch]
    _dispatch(b, problem, "merge_rank_bernoulli", arguments, (workers, 1))


@family.variant("products", can=lambda info, problem: problem.kind == "products")
def products(b: Builder, problem: MaskProblem, operands: Arguments, results: Arguments) -> None:
    """The sums of products over rows, one thread for several rows."""
    workers = min(problem.rows, _most_threads(b, 64))
    record = _rows_record(problem, workers)
    _dispatch(b, problem, "merge_products", [*operands, *results, record], (workers, 1))
