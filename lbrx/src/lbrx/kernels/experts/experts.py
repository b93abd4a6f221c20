"""Products of rows with the experts that they are sent to: one launch for all experts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Record, UInt, dtype_of
from lbrx.device_info import DeviceKind
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, reshaped, size_class
from lbrx.kernels.costs import dispatching, of_gpu, of_processor
from lbrx.kernels.quantized.quantized import TYPES, Stored, StoredConstants, pipeline, stored
from lbrx.kernels.quantized_matmul.quantized_integers import (
    COLUMNS,
    RUN,
    IntegerConstants,
    pack_rows,
)
from lbrx.kernels.quantized_matmul.quantized_matmul import QuantizedProduct
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, DeviceInfo
from lbrx.metal.library import PipelineRequest
from lbrx.ops import Spec
from lbrx.ops.quantized import weights_of
from lbrx.quant import Scheme

# Constants of experts.h and experts_serial.h.
SIMD_COLUMNS, SIMD_THREADS, SIMD_RESULTS = 8, 64, 8
TILE_COLUMNS, TILE_RESULTS = 16, 32
ORDER_THREADS = 256


class ExpertsRecord(Record, header="experts"):
    """Results are numbered by token, then by which of its experts it is."""

    results: UInt
    each: UInt  # results that share a row of x
    experts: UInt
    words: UInt  # of 32 bits in an index
    ordered: UInt  # whether there are runs
    longest: UInt  # results of a run, at most
    runs: UInt  # at most
    n: UInt
    k: UInt


class ExpertRun(Record, header="experts"):
    """Some results of one expert. A run of none is not used."""

    first: UInt  # place in the order
    length: UInt
    expert: UInt


@dataclass(frozen=True)
class ExpertProduct:
    """The problem: each of a token's rows times the matrix of one expert."""

    scheme: Scheme | None
    weight_type: Dtype
    """That of values which are not quantized."""
    experts: int
    tokens: int
    used: int
    shared: bool
    """Whether a token has one row of x for all its experts."""
    n: int
    k: int
    dtype: Dtype

    @property
    def results(self) -> int:
        """Uses of experts by tokens."""
        return self.tokens * self.used

    @property
    def values(self) -> int:
        """Values of the experts that are used, if tokens differ as much as they can."""
        return min(self.experts, self.results) * self.n * self.k

    @property
    def weight_bytes(self) -> float:
        """Bytes of these, as they are stored."""
        bits = 8 * self.weight_type.itemsize
        return self.values * (bits if self.scheme is None else self.scheme.bits_per_weight) / 8

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.results * self.n * self.k

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        name = self.weight_type.name if self.scheme is None else self.scheme.name
        sizes = size_class(self.experts, self.tokens, self.used, self.n, self.k)
        return f"{name} {self.dtype.name} {sizes}"

    def most_runs(self, longest: int) -> int:
        """Runs of so many results, if the last one of each expert is not full."""
        return min(self.results, self.results // longest + self.experts)


@dataclass(frozen=True)
class Stack:
    """Experts in memory, and the pipelines that read them."""

    arguments: list[Buffer | bytes]
    stored: Stored | None
    weight_type: Dtype

    def pipeline(
        self, b: Builder, stem: str, variant: str, constants: StoredConstants
    ) -> PipelineRequest:
        """A kernel for these experts."""
        if self.stored is not None:
            return pipeline(b, stem, f"expert_matmul_{variant}", self.stored, constants)
        return b.pipeline(stem, f"expert_matmul_{variant}_floats", constants, safe_math=True)

    def constants(self, values: Dtype) -> StoredConstants:
        """Function constants, with the dtype of x and results."""
        if self.stored is not None:
            return StoredConstants(**self.stored.constants(values))
        return StoredConstants(VALUES=TYPES[values], SCALES=TYPES[self.weight_type])


@dataclass(frozen=True)
class Sending:
    """Which experts rows are sent to."""

    indices: Buffer
    words: int


family: KernelFamily[ExpertProduct] = KernelFamily("expert_matmul")


@computes("expert_matmul")
def expert_matmul(call: Call) -> tuple[Array, ...]:
    """Compute `expert_matmul`: rows times the matrices of their experts."""
    b, (rows, chosen, *parts), name = call.builder, call.inputs, call.attributes["scheme"]
    assert rows is not None
    assert chosen is not None
    scheme = None if name is None else quant.find(name)
    results = tuple(b.result(spec) for spec in call.outputs)
    *leading, depth = rows.layout.shape
    x = reshaped(layouts.contiguous(b, b.placed(rows)), math.prod(leading), depth)
    sending = _sending(b, b.placed(chosen))
    for stack, result in zip(weights_of(parts, len(results)), results, strict=True):
        if result.layout.size:
            problem = _problem(scheme, stack, x, result, shared=len(leading) == 1)
            family.run(b, problem, x, sending, _stack(b, scheme, stack), result)
    return results


def _problem(
    scheme: Scheme | None, parts: Sequence[Array | None], x: Array, result: Array, shared: bool
) -> ExpertProduct:
    codes = parts[0]
    assert codes is not None
    tokens, used, n = result.layout.shape
    experts, depth = codes.layout.shape[0], x.layout.shape[-1]
    return ExpertProduct(scheme, codes.dtype, experts, tokens, used, shared, n, depth, result.dtype)


def _stack(b: Builder, scheme: Scheme | None, parts: Sequence[Array | None]) -> Stack:
    codes = parts[0]
    assert codes is not None
    if scheme is not None:
        packed = stored(b, scheme, parts)
        return Stack(packed.arguments, packed, codes.dtype)
    if codes.dtype not in TYPES:
        codes = layouts.cast(b, codes, dt.float32)
    buffer = buffer_of(layouts.contiguous(b, codes))
    return Stack([buffer] * 4, None, codes.dtype)


def _sending(b: Builder, chosen: Array) -> Sending:
    """Kernels read the lower halves of wide indices."""
    if chosen.dtype.itemsize < 4:
        chosen = layouts.cast(b, chosen, dt.int32)
    chosen = layouts.contiguous(b, chosen)
    return Sending(buffer_of(chosen), chosen.dtype.itemsize // 4)


def _record(
    problem: ExpertProduct, sending: Sending, longest: int = 1, runs: int = 0
) -> ExpertsRecord:
    return ExpertsRecord(
        results=problem.results,
        each=problem.used if problem.shared else 1,
        experts=problem.experts,
        words=sending.words,
        ordered=runs > 0,
        longest=longest,
        runs=runs,
        n=problem.n,
        k=problem.k,
    )


# ---- runs of results ----


@dataclass(frozen=True)
class Runs:
    """Results by their experts."""

    count: int
    order: Buffer
    runs: Buffer
    record: ExpertsRecord


def _runs(b: Builder, problem: ExpertProduct, sending: Sending, longest: int) -> Runs:
    """The results in runs. Those of a single token are all of different experts."""
    if problem.tokens == 1:
        record = _record(problem, sending)
        return Runs(problem.results, sending.indices, sending.indices, record)
    count = problem.most_runs(longest)
    record = _record(problem, sending, longest, count)
    order, starts = b.scratch(problem.results * 4), b.scratch(problem.experts * 4)
    runs = b.scratch(count * dtype_of(ExpertRun).itemsize)
    kind, threads = b.info.by_kind(wide=("serial", 1), simd=("simd", ORDER_THREADS))
    b.launch(
        b.pipeline("experts", f"expert_order_{kind}", StoredConstants(VALUES=0), safe_math=True),
        [sending.indices, order, runs, starts, record],
        (threads, 1, 1),
        (threads, 1, 1),
        part="order",
    )
    return Runs(count, order, runs, record)


def _launch(
    b: Builder,
    stem: str,
    variant: str,
    problem: ExpertProduct,
    operands: tuple[Array, Sending, Stack, Array],
    longest: int,
    columns: int,
    threads: int,
) -> None:
    """One kernel for all runs; a threadgroup has so many columns of the result."""
    x, sending, stack, result = operands
    runs = _runs(b, problem, sending, longest)
    b.launch(
        stack.pipeline(b, stem, variant, stack.constants(problem.dtype)),
        [
            *(*stack.arguments, buffer_of(x), buffer_of(result)),
            *(sending.indices, runs.order, runs.runs, runs.record),
        ],
        (-(-problem.n // columns) * threads, runs.count, 1),
        (threads, 1, 1),
    )


# ---- processors ----


def _serial_cost(info: DeviceInfo, problem: ExpertProduct) -> float:
    runs = problem.most_runs(TILE_RESULTS)
    decoded = runs * problem.n * problem.k / of_processor(info, "experts decoded")
    products = problem.operations / 2 / of_processor(info, "experts floats")
    return 2 * dispatching(info) + decoded + products


# GPU compilers do not support wide vectors.
@family.variant("serial", cost=_serial_cost, made_for=DeviceKind.WIDE, only=True)
def serial(
    b: Builder, problem: ExpertProduct, x: Array, sending: Sending, stack: Stack, result: Array
) -> None:
    """One thread decodes sixteen rows of an expert for up to 32 results."""
    operands = (x, sending, stack, result)
    _launch(b, "experts_serial", "serial", problem, operands, TILE_RESULTS, TILE_COLUMNS, 1)


def _can_integers(info: DeviceInfo, problem: ExpertProduct) -> bool:
    scheme = problem.scheme
    return scheme is not None and scheme.integer_codes and scheme.elements % RUN == 0


def _integers_cost(info: DeviceInfo, problem: ExpertProduct) -> float:
    products = problem.operations / 2 / of_processor(info, "experts integers")
    return 1.5 * dispatching(info) + products


# Not batch invariant: the number of tokens decides between this and the serial variant.
@family.variant(
    "integers",
    can=_can_integers,
    cost=_integers_cost,
    batch_invariant=False,
    made_for=DeviceKind.WIDE,
    only=True,
)
def integers(
    b: Builder, problem: ExpertProduct, x: Array, sending: Sending, stack: Stack, result: Array
) -> None:
    """One thread per few columns of one result, with x in 16-bit integers."""
    assert problem.scheme is not None
    assert stack.stored is not None
    rows = x.layout.shape[0]
    packing = QuantizedProduct(problem.scheme, rows, problem.n, problem.k, problem.dtype)
    packed = pack_rows(b, packing, x)
    together = COLUMNS[1] if problem.scheme.elements == RUN else 1
    constants = IntegerConstants(**stack.stored.constants(problem.dtype), ROWS=1, COLUMNS=together)
    b.launch(
        stack.pipeline(b, "experts_integers", "integers", constants),
        [
            *(*stack.arguments, *packed, buffer_of(result)),
            *(sending.indices, _record(problem, sending)),
        ],
        (-(-problem.n // together), problem.results, 1),
        (1, 1, 1),
    )


# ---- simdgroups ----


def _simd_cost(info: DeviceInfo, problem: ExpertProduct) -> float:
    time = of_gpu(info, "experts", problem.weight_bytes, problem.operations)
    return 2 * dispatching(info) + time


@family.variant("simd", cost=_simd_cost, made_for=DeviceKind.SIMD)
def simd(
    b: Builder, problem: ExpertProduct, x: Array, sending: Sending, stack: Stack, result: Array
) -> None:
    """Two simdgroups per threadgroup, each with four rows of an expert for up to eight results."""
    operands = (x, sending, stack, result)
    _launch(b, "experts", "simd", problem, operands, SIMD_RESULTS, SIMD_COLUMNS, SIMD_THREADS)


family.samples += [
    Sample(
        "expert_matmul",
        (
            Spec((tokens, 1024), dt.float32),
            Spec((tokens, 4), dt.int32),
            Spec((16, 2048, 576), dt.uint8),
        ),
        {"scheme": "q4_k"},
    )
    for tokens in (1, 256)
]
