"""Elementwise steps and row reductions in one kernel, such as a softmax or a norm written out in
single operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b

from lbrx.arrays import shape as sh
from lbrx.arrays.shape import Shape
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Record
from lbrx.device_info import DeviceKind
from lbrx.kernels import layouts
from lbrx.kernels.arrays import KernelArguments, size_class, whole_buffer
from lbrx.kernels.elementwise import elementwise
from lbrx.kernels.launching import SIMD_WIDTH
from lbrx.kernels.registry import KernelFamily, policy
from lbrx.kernels.rows.rows import KEPT, OWN_BYTES
from lbrx.metal import DeviceInfo
from lbrx.metal.library import PipelineRequest, generated
from lbrx.ops import Spec
from lbrx.program.element_program import Access, ProgramInput, ProgramStep
from lbrx.program.row_program import TEAM, RowProgram, longest_run, source, space_record

LONGEST = TEAM * KEPT
"""The longest row that a threadgroup can process."""


@dataclass(frozen=True)
class RowComputation:
    """Steps on arrays of shape (*rows, length); values of rows have stride 0 there."""

    name: str
    rows: Shape
    length: int
    inputs: tuple[Array, ...]
    steps: tuple[ProgramStep, ...]
    outputs: tuple[tuple[int, Spec], ...]


@dataclass(frozen=True)
class FusedRowsProblem:
    """The problem: a program, and the number and length of its rows."""

    program: RowProgram
    count: int
    length: int
    run: int = 1
    """The number of elements that a thread of a team can load at once."""

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        return size_class(self.count, self.length)


family: KernelFamily[FusedRowsProblem] = KernelFamily("rows")


def compute(b: Builder, what: RowComputation) -> tuple[Array, ...]:
    """Choose a kernel and encode it."""
    arrays = [x.layout for x in what.inputs if not elementwise.is_host(x)]
    leading = [replace(x, shape=x.shape[:-1], strides=x.strides[:-1]) for x in arrays]
    axes, strides = layouts.collapsed(what.rows, [*leading, sh.contiguous(what.rows)])
    accesses = iter([elementwise.access(x.strides[-1]) for x in arrays])
    inputs = [
        ProgramInput(x.dtype, Access.SCALAR if elementwise.is_host(x) else next(accesses))
        for x in what.inputs
    ]
    wide = elementwise.needs_wide([*arrays, sh.contiguous((*what.rows, what.length))])
    outputs = tuple((value, spec.dtype) for value, spec in what.outputs)
    count = math.prod(what.rows)
    whole = tuple(math.prod(spec.shape) > count for _, spec in what.outputs)
    excess = policy().excess_precision
    program = RowProgram(tuple(inputs), what.steps, outputs, whole, len(axes), wide, excess=excess)
    results = tuple(b.result(spec) for _, spec in what.outputs)
    values = [
        elementwise.constant(x) if elementwise.is_host(x) else whole_buffer(x) for x in what.inputs
    ]
    steps = [(*outer, x.strides[-1]) for outer, x in zip(strides, arrays, strict=False)]
    space = _space(axes, what.length, [x.offset for x in arrays], steps, wide)
    arguments = [*values, *map(whole_buffer, results), space]
    problem = FusedRowsProblem(program, count, what.length, _run(what, program))
    family.run(b, problem, what.name, arguments, op=what.name)
    return results


def _run(what: RowComputation, program: RowProgram) -> int:
    """The elements of a vector if all rows that are read or written are whole vectors, else 1.

    The order of sums depends on it, and so it is 1 if bits must not depend on the batch.
    """
    accesses = zip(what.inputs, program.inputs, strict=True)
    arrays = [array for array, read in accesses if read.access is Access.ROW]
    written = [
        dtype for (_, dtype), whole in zip(program.outputs, program.whole, strict=True) if whole
    ]
    run = longest_run([*(array.dtype for array in arrays), *written])
    if policy().deterministic or what.length % run:
        return 1
    return run if all(_begins_with_runs(array, run) for array in arrays) else 1


def _begins_with_runs(array: Array, run: int) -> bool:
    """Whether every row of the array begins at a multiple of a run."""
    start = whole_buffer(array).offset // array.dtype.itemsize + array.layout.offset
    leading = zip(array.layout.shape[:-1], array.layout.strides[:-1], strict=True)
    return start % run == 0 and all(n == 1 or stride % run == 0 for n, stride in leading)


def _space(
    axes: Shape, length: int, starts: Sequence[int], strides: Sequence[Shape], wide: bool
) -> Record:
    """The space as the generated kernel reads it."""
    kind = space_record(len(axes), len(starts), wide)
    steps = [step for outer in strides for step in outer] or [0] * (len(axes) + 1)
    return kind(shape=axes, length=length, start=starts or [0], strides=steps)


@family.variant("serial", made_for=DeviceKind.WIDE)
def serial(b: Builder, problem: FusedRowsProblem, name: str, arguments: KernelArguments) -> None:
    """One thread per row."""
    _dispatch(b, problem.program, name, arguments, problem.count, 1, "serial")


def _row_bytes(problem: FusedRowsProblem) -> list[int]:
    """Of each result that has a value per element."""
    outputs = zip(problem.program.outputs, problem.program.whole, strict=True)
    return [problem.length * dtype.itemsize for (_, dtype), whole in outputs if whole]


def _can_stream(info: DeviceInfo, problem: FusedRowsProblem) -> bool:
    return 0 < max(_row_bytes(problem), default=0) <= OWN_BYTES


def _stream_cost(info: DeviceInfo, problem: FusedRowsProblem) -> float:
    """Where exponentials are kept between two loops, arithmetic is the limit, not memory."""
    streams = info.streams(problem.count * min(_row_bytes(problem)))
    return 0.5 if streams and problem.program.kept is None else 4.0


@family.variant("streamed", can=_can_stream, cost=_stream_cost, made_for=DeviceKind.WIDE, only=True)
def streamed(b: Builder, problem: FusedRowsProblem, name: str, arguments: KernelArguments) -> None:
    """One thread per row, which writes results past the caches."""
    program = replace(problem.program, streamed=True)
    _dispatch(b, program, name, arguments, problem.count, 1, "streamed")


@family.variant(
    "together",
    can=lambda info, problem: problem.length <= LONGEST,
    made_for=DeviceKind.SIMD,
)
def together(b: Builder, problem: FusedRowsProblem, name: str, arguments: KernelArguments) -> None:
    """One threadgroup per row."""
    program = replace(problem.program, together=True, run=problem.run)
    threads = -(-problem.length // (KEPT * SIMD_WIDTH)) * SIMD_WIDTH
    _dispatch(b, program, name, arguments, problem.count, threads, "together")


def _dispatch(
    b: Builder,
    program: RowProgram,
    name: str,
    arguments: KernelArguments,
    rows: int,
    team: int,
    variant: str,
) -> None:
    # Serial threads do not cooperate; the group size only shapes the grid.
    group = team if program.together else min(rows, SIMD_WIDTH)
    b.launch(_pipeline(program, name), arguments, (rows * team, 1, 1), (group, 1, 1))


@cache
def _pipeline(program: RowProgram, name: str) -> PipelineRequest:
    function = f"{name}_{blake2b(repr(program).encode(), digest_size=4).hexdigest()}"
    return PipelineRequest(
        "rows", function, safe_math=True, source=generated(source(program, function))
    )
