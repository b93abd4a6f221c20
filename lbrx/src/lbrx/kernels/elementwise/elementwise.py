"""Operations on one element at a time, over arrays of any strides that broadcast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b

import numpy as np

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype, accumulator
from lbrx.arrays.shape import Layout, Shape
from lbrx.arrays.storage import Array, CpuStorage, NumberStorage
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import UINT, Record, packed
from lbrx.device_info import DeviceKind
from lbrx.kernels import streaming
from lbrx.kernels.arrays import KernelArguments, size_class, whole_buffer
from lbrx.kernels.launching import CHUNK_BYTES, GROUP, chunk_grid, grid_over, group_of
from lbrx.kernels.layouts import collapsed
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes, policy
from lbrx.metal import Buffer, DeviceInfo
from lbrx.metal.commands import NumberSlot
from lbrx.metal.library import PipelineRequest, generated
from lbrx.ops import BUILT_IN, TABLE, Attributes, Op, OpFamily, Role, Spec
from lbrx.program.chunked_program import chunked_source
from lbrx.program.element_program import (
    Access,
    Chunking,
    Program,
    ProgramInput,
    ProgramStep,
    source,
    space_record,
)

FAMILIES = {
    *(OpFamily.UNARY, OpFamily.BINARY, OpFamily.COMPARISON, OpFamily.TERNARY),
    *(OpFamily.CAST, OpFamily.ACTIVATION),
}
# Those of elementwise.h.
OPERATIONS = tuple(name for name in sorted(BUILT_IN) if TABLE[name].family in FAMILIES)
# Functions that take several times as long to compile as arithmetic, and to compute.
LONG = {
    *("sin", "cos", "tan", "pow", "remainder", "floor_divide", "logaddexp"),
    *("erf", "expm1", "gelu", "geglu", "softplus"),
}
PART = 1 << 30  # elements in one dispatch
BUSY = 32 * GROUP  # elements that keep a core of a GPU busy
MAX_CHUNKS = 2  # of a thread: more did not make an H200 faster
MAX_UNROLLED = 128  # steps in the text of a thread's chunks
BLOCK = 64  # side of the CPU's blocks
RUN = 4096  # elements of a row that a CPU's thread writes past the caches
# Reading columns by blocks pays off from these sizes: smaller arrays fit into the cache anyway.
COLUMNS_SIZE, COLUMNS_SIDE = 1 << 14, 16


@dataclass(frozen=True)
class ElementwiseProblem:
    """The problem: a program, and the number of elements it runs over."""

    program: Program
    size: int
    chunk: int = 1
    """Neighbouring elements that alignment allows to read at once."""

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        flat = "flat" if self.program.is_flat else f"strided{self.program.axes}"
        return f"{flat} {size_class(self.size)}"


family: KernelFamily[ElementwiseProblem] = KernelFamily("elementwise")
family.samples += [
    Sample("add", (Spec((1 << 22,), dt.float32),) * 2),
    Sample("gelu", (Spec((1 << 20,), dt.float16),)),
    Sample("multiply", (Spec((1 << 14,), dt.float32),) * 2),
]


# ---- from an operation to a program ----


def step_of(op: Op, attributes: Attributes, specs: Sequence[Spec], gives: Dtype) -> ProgramStep:
    """The step that computes an operation on values 0, 1, ... (numeric attributes last)."""
    if op.family is OpFamily.CAST:
        return ProgramStep("cast", ((0, gives),), gives)
    roles = op.roles(len(specs))
    values = [spec.dtype for spec, role in zip(specs, roles, strict=True) if role is Role.VALUE]
    promoted = values[0]
    for other in values[1:]:
        promoted = dt.promote(promoted, other)
    working = gives if gives.is_float and not promoted.is_float else promoted
    wanted = [accumulator(working) if role is Role.VALUE else dt.bool_ for role in roles]
    wanted += [dt.float32] * len(numbers(attributes))
    return ProgramStep(
        _function(op, attributes), tuple(enumerate(wanted)), gives, definition=op.metal or ""
    )


def has_function(op: Op) -> bool:
    """Whether an operation is elementwise and in `elementwise.h`, or brings its own MSL."""
    return op.family in FAMILIES and (op.metal is not None or op.name in BUILT_IN)


def numbers(attributes: Attributes) -> list[float]:
    """The numeric attributes, which kernels take as values."""
    return [float(v) for v in attributes.values() if isinstance(v, int | float)]


def _function(op: Op, attributes: Attributes) -> str:
    """The name in `elementwise.h`; attributes that are strings are part of it."""
    words = [v for v in attributes.values() if isinstance(v, str) and v != "none"]
    return "_".join([op.name, *words])


# ---- the index space of a kernel ----


def access(stride: int) -> Access:
    """How a kernel reads an operand with this stride along the last axis."""
    return {1: Access.ROW, 0: Access.SAME}.get(stride, Access.STRIDED)


def _access(shape: Shape, strides: Shape) -> Access:
    """How a kernel reads an operand; as columns only where reading by blocks pays off."""
    large = math.prod(shape) >= COLUMNS_SIZE and min(shape[-2:]) >= COLUMNS_SIDE
    if large and strides[-1] not in (0, 1) and strides[-2:-1] == (1,):
        return Access.COLUMN
    return access(strides[-1])


@dataclass(frozen=True)
class ElementSpace:
    """Sizes and strides as a kernel takes them."""

    shape: Shape
    strides: Sequence[Shape]  # of each input array, over the collapsed axes
    layouts: Sequence[Layout]  # of the same arrays; only the offsets are used

    def pieces(self) -> Iterator[tuple[int, ElementSpace]]:
        """Split the first axis so that 32-bit indices suffice; yields (first index, part)."""
        n = self.shape[0]
        if n <= PART:
            yield 0, self
            return
        for first in range(0, n, PART):
            layouts = [
                replace(layout, offset=layout.offset + first * steps[0])
                for layout, steps in zip(self.layouts, self.strides, strict=False)
            ]
            shape = (min(PART, n - first), *self.shape[1:])
            yield first, ElementSpace(shape, self.strides, layouts)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def in_chunks(self, program: Program, length: int) -> ElementSpace:
        """The same space with the last axis, and the inputs that are read along it, in chunks."""
        strides, layouts = [], []
        arrays = [x for x in program.inputs if x.access is not Access.SCALAR]
        for read, layout, steps in zip(arrays, self.layouts, self.strides, strict=False):
            unit = length if read.access is Access.ROW else 1
            strides.append((*(stride // unit for stride in steps[:-1]), steps[-1]))
            layouts.append(replace(layout, offset=layout.offset // unit))
        return ElementSpace((*self.shape[:-1], self.shape[-1] // length), strides, layouts)

    def record(self, wide: bool) -> Record:
        """The space as the generated kernel reads it."""
        axes, arrays = len(self.shape), len(self.layouts)
        starts = [layout.offset for layout in self.layouts] or [0]
        strides = [s for steps in self.strides[:arrays] for s in steps] or [0] * axes
        kind = space_record(axes, arrays, wide)
        return kind(shape=self.shape, start=starts, strides=strides)


# ---- running ----


@dataclass(frozen=True)
class Computation:
    """Steps on arrays of the results' shape and on host scalars."""

    name: str
    shape: Shape
    inputs: tuple[Array, ...]
    steps: tuple[ProgramStep, ...]
    outputs: tuple[tuple[int, Spec], ...]
    """(value, result) pairs; every result has as many elements as the shape."""


@computes(*OPERATIONS)
def run(call: Call) -> tuple[Array, ...]:
    """One operation as a program of one step."""
    arrays = [x for x in call.inputs if x is not None]
    specs = [Spec(x.layout.shape, x.dtype) for x in arrays]
    (output,) = call.outputs
    inputs = [expanded(x, output.shape) for x in arrays]
    inputs += [host_number(v) for v in numbers(call.attributes)]
    step = step_of(call.op, call.attributes, specs, output.dtype)
    outputs = ((len(inputs), output),)
    computed = Computation(call.op.name, output.shape, tuple(inputs), (step,), outputs)
    return compute(call.builder, computed)


def expanded(array: Array, shape: Shape) -> Array:
    """The array broadcast to a shape; host scalars are left as they are."""
    return array if is_host(array) else replace(array, layout=sh.expand(array.layout, shape))


def host_number(value: float) -> Array:
    """A number as a float32 scalar in host memory."""
    data = np.array([value], np.float32).view(np.uint8)
    return Array(CpuStorage(data), sh.contiguous(()), dt.float32)


def compute(b: Builder, what: Computation) -> tuple[Array, ...]:
    """Choose a kernel and encode it."""
    results = tuple(b.result(spec) for _, spec in what.outputs)
    if 0 in what.shape:
        return results
    arrays = [x.layout for x in what.inputs if not is_host(x)]
    written = sh.contiguous(what.shape)
    axes, strides = collapsed(what.shape, [*arrays, written])
    if axes == (1,):  # a single element is treated as a row of length 1
        strides = [(1,)] * len(strides)
    accesses = iter([_access(axes, steps) for steps in strides])
    inputs = [
        ProgramInput(x.dtype, Access.SCALAR if is_host(x) else next(accesses)) for x in what.inputs
    ]
    wide = needs_wide([*arrays, written])
    outputs = tuple((value, spec.dtype) for value, spec in what.outputs)
    excess = policy().excess_precision and len(what.steps) > 1
    program = Program(tuple(inputs), what.steps, outputs, len(axes), wide, excess=excess)
    values = [constant(x) if is_host(x) else whole_buffer(x) for x in what.inputs]
    space = ElementSpace(axes, strides, arrays)
    problem = ElementwiseProblem(
        program, math.prod(what.shape), _longest_chunk(program, space, values)
    )
    family.run(b, problem, what.name, space, values, results, op=what.name)
    return results


def _longest_chunk(program: Program, space: ElementSpace, values: KernelArguments) -> int:
    """The most neighbouring elements that vectors can hold in every array; 1 if an array is not
    read along the last axis, or rows are not multiples of a chunk."""
    along = all(x.access in (Access.SCALAR, Access.ROW, Access.SAME) for x in program.inputs)
    if not along or (program.axes == 1 and not program.is_flat):
        return 1
    widths = [dtype.itemsize for _, dtype in program.outputs]
    starts = [0] if program.is_flat else [space.shape[-1]]  # multiples of a chunk, in elements
    bytes_and_widths: list[tuple[int, int]] = []
    arrays = iter(zip(space.layouts, space.strides, strict=False))
    for value, read in zip(values, program.inputs, strict=True):
        if isinstance(value, bytes):
            continue
        layout, strides = next(arrays)
        if read.access is Access.ROW:
            width = read.dtype.itemsize
            widths.append(width)
            bytes_and_widths.append((value.offset + layout.offset * width, width))
            if not program.is_flat:
                starts += [layout.offset, *strides[:-1]]
    longest = min(CHUNK_BYTES // max(widths), space.size)
    return math.gcd(
        1 << (longest.bit_length() - 1),
        *starts,
        *(start // width if start % width == 0 else 1 for start, width in bytes_and_widths),
    )


def is_host(array: Array) -> bool:
    """Whether an operand is a scalar on the host, which kernels get by value."""
    return array.storage.device == "cpu"


def constant(array: Array) -> bytes:
    """A host scalar's bytes; a replay can change those of a traced number."""
    storage = array.storage
    if isinstance(storage, NumberStorage):
        return NumberSlot.of(storage.argument, storage.number, array.dtype.numpy)
    return np.ascontiguousarray(array.numpy()).tobytes()


def needs_wide(layouts: Sequence[Layout]) -> bool:
    """Whether offsets exceed a signed 32-bit integer."""
    return any(layout.bounds()[1] > 2**31 for layout in layouts)


@family.variant("single")
def single(
    b: Builder,
    problem: ElementwiseProblem,
    name: str,
    space: ElementSpace,
    values: KernelArguments,
    results: Sequence[Array],
) -> None:
    """One thread per element; on a CPU, neighbouring threads become a vectorised loop."""
    program = problem.program
    pipeline = _pipeline(program, name)
    buffers = [whole_buffer(result) for result in results]
    if not program.is_flat:
        for first, piece in space.pieces():
            written = buffers if piece is space else _slices(program, buffers, first, piece)
            arguments = [*values, *written, piece.record(program.wide)]
            grid = grid_over(piece.shape)
            b.launch(pipeline, arguments, grid, group_of(grid))
        return
    for part in _parts(program, values, buffers, space, problem.size):
        grid = (part.size, 1, 1)
        b.launch(pipeline, part.arguments, grid, group_of(grid))


@family.variant(
    "blocked",
    can=lambda info, problem: problem.program.reads_columns,
    cost=lambda info, problem: 0.5,
    made_for=DeviceKind.WIDE,
    only=True,
)
def blocked(
    b: Builder,
    problem: ElementwiseProblem,
    name: str,
    space: ElementSpace,
    values: KernelArguments,
    results: Sequence[Array],
) -> None:
    """One thread per block, which transposes its part of operands that are read by columns."""
    program = replace(problem.program, blocked=True)
    _in_parts(b, program, name, space, values, results)


def _stream_cost(info: DeviceInfo, problem: ElementwiseProblem) -> float:
    return 0.4 if streaming.pays_off(info, problem.program, problem.size) else 2.0


@family.variant("streamed", cost=_stream_cost, made_for=DeviceKind.WIDE, only=True)
def streamed(
    b: Builder,
    problem: ElementwiseProblem,
    name: str,
    space: ElementSpace,
    values: KernelArguments,
    results: Sequence[Array],
) -> None:
    """One thread per run or block, which writes results past the caches."""
    columns = problem.program.reads_columns
    program = replace(problem.program, blocked=columns, streamed=True)
    _in_parts(b, program, name, space, values, results)


def _in_parts(
    b: Builder,
    program: Program,
    name: str,
    space: ElementSpace,
    values: KernelArguments,
    results: Sequence[Array],
) -> None:
    pipeline = _pipeline(program, name)
    buffers = [whole_buffer(result) for result in results]
    across, down = (BLOCK, BLOCK) if program.blocked else (RUN, 1)
    for first, piece in space.pieces():
        written = buffers if piece is space else _slices(program, buffers, first, piece)
        x, y, z = grid_over(piece.shape)
        grid = (-(-x // across), -(-y // down), z)
        arguments = [*values, *written, piece.record(program.wide)]
        b.launch(pipeline, arguments, grid, (1, 1, 1))


def _chunks_cost(info: DeviceInfo, problem: ElementwiseProblem) -> float:
    """Several elements per thread pay off once all cores of a GPU are busy."""
    enough = BUSY * (info.cores or 1)
    return 0.9 if problem.size >= enough else 1.1


@family.variant(
    "chunks",
    can=lambda info, problem: problem.chunk > 1,
    cost=_chunks_cost,
    made_for=DeviceKind.SIMD,
)
def chunks(
    b: Builder,
    problem: ElementwiseProblem,
    name: str,
    space: ElementSpace,
    values: KernelArguments,
    results: Sequence[Array],
) -> None:
    """Several chunks per thread, each a vector of neighbouring elements."""
    chunking = _chunking(problem)
    program = replace(problem.program, chunking=chunking)
    pipeline = _pipeline(program, name)
    buffers = [whole_buffer(result) for result in results]
    if program.is_flat:
        for part in _parts(program, values, buffers, space, problem.size):
            groups = -(-part.size // (chunking.length * chunking.count * GROUP))
            arguments = [*part.arguments, packed(UINT, part.size)]
            b.launch(
                pipeline,
                arguments,
                (groups * GROUP, 1, 1),
                (GROUP, 1, 1),
            )
        return
    for first, piece in space.in_chunks(program, chunking.length).pieces():
        written = _slices(program, buffers, first, piece, chunking.length)
        grid, group = chunk_grid(piece.shape, chunking.count)
        arguments = [*values, *written, piece.record(program.wide)]
        b.launch(pipeline, arguments, grid, group)


def _chunking(problem: ElementwiseProblem) -> Chunking:
    """Enough chunks to keep memory busy, fewer if the text would be long."""
    program = problem.program
    cost = sum(8 if step.function in LONG else 1 for step in program.steps)
    short = MAX_CHUNKS * problem.chunk * cost <= MAX_UNROLLED
    return Chunking(problem.chunk, MAX_CHUNKS if short else 1)


@dataclass(frozen=True)
class FlatPart:
    """The arguments of one dispatch over a part of contiguous arrays."""

    arguments: Sequence[Buffer | bytes]
    size: int


def _parts(
    program: Program,
    values: KernelArguments,
    buffers: Sequence[Buffer],
    space: ElementSpace,
    size: int,
) -> Iterator[FlatPart]:
    """Split a flat program so that 32-bit indices suffice."""
    starts = iter(layout.offset for layout in space.layouts)
    bound: list[tuple[Buffer | bytes, int, int]] = []
    for value, read in zip(values, program.inputs, strict=True):
        start = 0 if read.access is Access.SCALAR else next(starts)
        bound.append((value, start, read.dtype.itemsize))
    for buffer, (_, dtype) in zip(buffers, program.outputs, strict=True):
        bound.append((buffer, 0, dtype.itemsize))
    for first in range(0, size, PART):
        count = min(PART, size - first)
        yield FlatPart([_from(*item, first, count) for item in bound], count)


def _slices(
    program: Program, buffers: Sequence[Buffer], first: int, piece: ElementSpace, chunk: int = 1
) -> list[Buffer | bytes]:
    """The slices of the result buffers for one part of the first axis."""
    row, count = math.prod(piece.shape[1:]), math.prod(piece.shape)
    sizes = [dtype.itemsize * chunk for _, dtype in program.outputs]
    return [_from(b, 0, size, first * row, count) for b, size in zip(buffers, sizes, strict=True)]


def _from(
    value: Buffer | bytes, start: int, itemsize: int, first: int, count: int
) -> Buffer | bytes:
    if isinstance(value, bytes):
        return value
    return value.slice((start + first) * itemsize, count * itemsize)


@cache
def _pipeline(program: Program, name: str) -> PipelineRequest:
    """Named by a digest of the program; compiled with safe math, which keeps NaN and infinity."""
    function = f"{name}_{blake2b(repr(program).encode(), digest_size=6).hexdigest()}"
    text = generated((source if program.chunking is None else chunked_source)(program, function))
    return PipelineRequest("elementwise", function, safe_math=True, source=text)
