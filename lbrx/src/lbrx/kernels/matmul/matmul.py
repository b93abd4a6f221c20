"""Matrix products with bias and activation: the problem, and kernels for every case.

Kernels for simdgroups are in `matmul_tiles.py`, for a few rows in `matvec.py`, the vendor's in
`mps.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, NamedTuple

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype, accumulator
from lbrx.arrays.shape import Layout, Shape
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import UINT, ULONG, Constants, Record, UInt, ULong, packed
from lbrx.device_info import DeviceKind
from lbrx.errors import ShapeError
from lbrx.kernels.arrays import buffer_of, kernel_name, size_class
from lbrx.kernels.costs import EMULATED, bandwidth, busy, dispatching, of_processor, product_rate
from lbrx.kernels.layouts import cast, collapsed, contiguous
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, DeviceInfo
from lbrx.metal.commands import Size
from lbrx.metal.library import PipelineRequest
from lbrx.ops import Spec

# The numbers used in matmul.h.
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "sigmoid": 5, "tanh": 6}
BATCH_AXES = 4  # supported by kernels
LONGEST_ELEMENT = 8  # bytes of a zero of any dtype
LONGEST = 2**31 - 1  # rows or columns, which kernels count in 32 bits

# Rows and columns of a thread, as in matmul.h.
SERIAL_ROWS, SERIAL_COLUMNS = 64, 64


class ProductRecord(Record, header="matmul"):
    """x is (m, k), y is (k, n). Strides count elements."""

    m: UInt
    n: UInt
    k: UInt
    bias_row: UInt  # stride of the bias, 0 where it is broadcast
    bias_column: UInt
    axes: UInt  # of the batch, outermost first
    shape: Annotated[Sequence[int], UINT[BATCH_AXES]]
    x_row: ULong
    x_column: ULong
    y_row: ULong
    y_column: ULong
    out_row: ULong
    out_column: ULong
    x_batch: Annotated[Sequence[int], ULONG[BATCH_AXES]]
    y_batch: Annotated[Sequence[int], ULONG[BATCH_AXES]]


class ProductConstants(Constants, header="matmul"):
    ACTIVATION: UInt


@dataclass(frozen=True)
class Matrix:
    """The memory layout of an operand: row-major, or column-major if transposed."""

    transposed: bool
    leading: int
    """The distance between rows, or columns if transposed, in elements."""

    @property
    def strides(self) -> tuple[int, int]:
        """(row stride, column stride)."""
        return (1, self.leading) if self.transposed else (self.leading, 1)

    @property
    def transposed_view(self) -> Matrix:
        """The same memory read as the transposed matrix."""
        return Matrix(not self.transposed, self.leading)


@dataclass(frozen=True)
class MatmulProblem:
    """The problem: (m, k) times (k, n), for each member of a batch."""

    m: int
    n: int
    k: int
    dtype: Dtype
    x: Matrix
    y: Matrix
    batch: Shape = ()
    x_batch: Shape = ()
    y_batch: Shape = ()
    """Strides of the batch axes; 0 if all members share the operand."""
    bias: bool = False
    activation: str | None = None
    row: int = 0
    """Elements from a row of the result to the next, for tiles only; 0 if rows are contiguous."""

    @cached_property
    def members(self) -> int:
        return math.prod(self.batch)

    @cached_property
    def operations(self) -> float:
        return 2.0 * self.members * self.m * self.n * self.k

    @property
    def finishes(self) -> bool:
        """Whether there is a bias or an activation."""
        return self.bias or self.activation is not None

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        order = "".join("t" if matrix.transposed else "n" for matrix in (self.x, self.y))
        sizes = size_class(self.members, self.m, self.n, self.k)
        return f"{self.dtype.name} {order} {sizes}"

    @property
    def transposed(self) -> MatmulProblem:
        """The product of the transposed operands, which gives the transposed result."""
        return replace(
            self,
            m=self.n,
            n=self.m,
            x=self.y.transposed_view,
            y=self.x.transposed_view,
            x_batch=self.y_batch,
            y_batch=self.x_batch,
        )

    @property
    def activation_number(self) -> int:
        """The activation as the kernels' function constant."""
        return ACTIVATIONS[self.activation]

    def record(self, *, into_transposed: bool = False) -> ProductRecord:
        """For a row-major or a transposed result."""
        bias_row, bias_column = (self.bias, 0) if into_transposed else (0, self.bias)
        out_row, out_column = (1, self.m) if into_transposed else (self.row or self.n, 1)
        (x_row, x_column), (y_row, y_column) = self.x.strides, self.y.strides
        zeros = (0,) * (BATCH_AXES - len(self.batch))
        return ProductRecord(
            m=self.m,
            n=self.n,
            k=self.k,
            bias_row=bias_row,
            bias_column=bias_column,
            axes=len(self.batch),
            shape=(*self.batch, *zeros),
            x_row=x_row,
            x_column=x_column,
            y_row=y_row,
            y_column=y_column,
            out_row=out_row,
            out_column=out_column,
            x_batch=(*self.x_batch, *zeros),
            y_batch=(*self.y_batch, *zeros),
        )


family: KernelFamily[MatmulProblem] = KernelFamily("matmul")


# ---- from an operation to a problem ----


@computes("matmul")
def matmul(call: Call) -> tuple[Array, ...]:
    """numpy's matmul; operands of different dtypes are cast to what the result accumulates in."""
    return _product(call, bare=False)


def finished_product(call: Call) -> tuple[Array, ...]:
    """A product together with a bias and an activation that were separate operations.

    To keep the bits, its variant is the one that is chosen for the product alone.
    """
    return _product(call, bare=True)


def _product(call: Call, bare: bool) -> tuple[Array, ...]:
    b, (spec,) = call.builder, call.outputs
    arrays = [array for array in call.inputs if array is not None]
    same = all(array.dtype is spec.dtype for array in arrays)
    working = spec.dtype if same else accumulator(spec.dtype)
    x, y, *rest = (cast(b, array, working) for array in arrays)
    result = b.result(Spec(spec.shape, working))
    if result.layout.size:
        seen, problem = problem_of(x, y, bool(rest), call.attributes["activation"])
        arrays = matrices(b, seen, (x, y, *rest))
        bias = arrays[2] if rest else None
        if problem.k:
            as_for = replace(problem, bias=False, activation=None) if bare else None
            family.run(b, problem, *arrays[:2], bias, result, as_for=as_for)
        else:
            finish(b, problem, result, 0, bias, result)
    return (cast(b, result, spec.dtype),)


class Seen(NamedTuple):
    """How the kernels see an operand."""

    layout: Layout
    copied: bool
    """Whether a contiguous copy in this shape is made of it."""

    @property
    def strides(self) -> Shape:
        """Those of what kernels read."""
        return sh.contiguous(self.layout.shape).strides if self.copied else self.layout.strides


def matrices(b: Builder, seen: Sequence[Seen], operands: Sequence[Array]) -> list[Array]:
    """The operands as kernels see them, and a contiguous bias."""
    arrays = [replace(x, layout=how.layout) for x, how in zip(operands, seen, strict=False)]
    copied = [each.copied for each in seen]
    arrays = [contiguous(b, x) if c else x for x, c in zip(arrays, copied, strict=True)]
    return [*arrays, *(contiguous(b, bias) for bias in operands[2:])]


def problem_of(
    x: Array, y: Array, bias: bool, activation: str | None
) -> tuple[tuple[Seen, Seen], MatmulProblem]:
    """The operands as matrices that kernels support, copied if necessary, and the problem."""
    plain = x.layout.ndim <= 2 >= y.layout.ndim
    seen = _matrix(_at_least_2d(x.layout, 0)), _matrix(_at_least_2d(y.layout, 1))
    shape = sh.broadcast(*(each.layout.shape[:-2] for each in seen))
    layouts = [_batch_layout(each, shape) for each in seen]
    batch, (x_batch, y_batch) = collapsed(shape, layouts)
    if len(batch) > BATCH_AXES:
        seen = _expanded(seen[0], shape), _expanded(seen[1], shape)
        layouts = [_batch_layout(each, shape) for each in seen]
        batch, (x_batch, y_batch) = collapsed(shape, layouts)
    (m, k), n = seen[0].layout.shape[-2:], seen[1].layout.shape[-1]
    if max(m, n, k) > LONGEST:
        raise ShapeError(f"matmul of {m} x {k} and {k} x {n}: no side may exceed {LONGEST}")
    left, right = map(_matrix_of, seen)
    problem = MatmulProblem(m, n, k, x.dtype, left, right, bias=bias, activation=activation)
    if plain:
        return seen, problem
    return seen, _with_rows_merged(replace(problem, batch=batch, x_batch=x_batch, y_batch=y_batch))


def _at_least_2d(layout: Layout, axis: int) -> Layout:
    return sh.unsqueeze(layout, axis) if layout.ndim == 1 else layout


def _matrix(layout: Layout) -> Seen:
    """An operand, copied if neither of the last two axes is contiguous."""
    return Seen(layout, _read_as(layout.shape, layout.strides) is None)


def _matrix_of(seen: Seen) -> Matrix:
    matrix = _read_as(seen.layout.shape, seen.strides)
    assert matrix is not None
    return matrix


def _read_as(shape: Shape, strides: Shape) -> Matrix | None:
    """How the last two axes lie in memory; None if not as a matrix."""
    (*_, rows, columns), (*batch, down, across) = shape, strides
    if all(stride >= 0 for stride in batch):
        if (across == 1 or columns == 1) and (down >= columns or rows == 1):
            return Matrix(False, down if rows > 1 else columns)
        if (down == 1 or rows == 1) and (across >= rows or columns == 1):
            return Matrix(True, across if columns > 1 else rows)
    return None


def _batch_layout(seen: Seen, shape: Shape) -> Layout:
    layout = Layout(seen.layout.shape[:-2], seen.strides[:-2])
    return sh.expand(layout, shape)


def _expanded(seen: Seen, shape: Shape) -> Seen:
    whole = sh.expand(seen.layout, shape + seen.layout.shape[-2:])
    return Seen(whole, copied=True)


def _with_rows_merged(problem: MatmulProblem) -> MatmulProblem:
    """Merge batch members that are adjacent and share y into rows of one product."""
    *outer, members = problem.batch
    *x_outer, x_stride = problem.x_batch
    *y_outer, y_stride = problem.y_batch
    x, m = problem.x, problem.m
    leading = x_stride if m == 1 else x.leading
    follow = not x.transposed and x_stride == m * leading and leading >= problem.k
    if members > 1 and not (follow and y_stride == 0 and m * members <= LONGEST):
        return problem
    return replace(
        problem,
        m=m * members,
        x=Matrix(False, leading) if members > 1 else x,
        batch=tuple(outer),
        x_batch=tuple(x_outer),
        y_batch=tuple(y_outer),
    )


# ---- what kernels share ----


def pipeline(
    b: Builder,
    problem: MatmulProblem,
    kernel: str,
    dtype: Dtype,
    constants: ProductConstants | None = None,
    *,
    stem: str = "matmul",
) -> PipelineRequest:
    """A kernel of the shader, specialised for the problem's activation."""
    return pipeline_of(b, problem, kernel_name(stem, kernel, dtype), constants, stem=stem)


def pipeline_of(
    b: Builder,
    problem: MatmulProblem,
    name: str,
    constants: ProductConstants | None = None,
    source: str | None = None,
    *,
    stem: str = "matmul_tiles",
) -> PipelineRequest:
    """The same by the kernel's own name, of a shader or of generated source."""
    values = constants or ProductConstants(ACTIVATION=problem.activation_number)
    return b.pipeline(stem, name, values, safe_math=True, source=source)


def operands(
    problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> list[Buffer | bytes]:
    """The first arguments of every kernel. Without a bias, a zero is added to all columns."""
    added = buffer_of(bias) if bias is not None else bytes(LONGEST_ELEMENT)
    return [buffer_of(x), buffer_of(y), added, buffer_of(result)]


def finish(
    b: Builder,
    problem: MatmulProblem,
    parts: Array,
    count: int,
    bias: Array | None,
    result: Array,
) -> None:
    """Add planes of partial sums in order, then apply bias and activation."""
    grid = (problem.n, problem.members * problem.m, 1)
    group = min(problem.n, 256)
    _, *buffers = operands(problem, parts, parts, bias, result)
    arguments = [*buffers, packed(UINT, count), packed(UINT, problem.bias)]
    b.launch(
        pipeline(b, problem, "finish", bits(result.dtype)),
        arguments,
        grid,
        (group, min(grid[1], 256 // group), 1),
        part="finish",
    )


def bits(dtype: Dtype) -> Dtype:
    """Integers use the kernel of the unsigned type of the same width, since they wrap alike."""
    if not dtype.is_integer:
        return dtype
    return {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}[dtype.itemsize]


def is_aligned(
    buffer: Buffer | bytes, leading: int, batch: Shape, dtype: Dtype, nbytes: int | None = None
) -> bool:
    """Whether rows begin at multiples of `nbytes`, by default of four elements."""
    assert isinstance(buffer, Buffer)
    step = nbytes or 4 * dtype.itemsize
    strides = (stride * dtype.itemsize for stride in (leading, *batch))
    return all(each % step == 0 for each in (buffer.offset, *strides))


# ---- variants ----


def _serial_cost(info: DeviceInfo, problem: MatmulProblem) -> float:
    columns = -(-problem.n // SERIAL_COLUMNS) * SERIAL_COLUMNS * problem.members * problem.k
    blocks = -(-problem.n // SERIAL_COLUMNS) * -(-problem.m // SERIAL_ROWS) * problem.members
    # Every block of rows packs y: it is read and written as float32, or twice if transposed.
    packed = 8.0 * -(-problem.m // SERIAL_ROWS) * (1 + problem.y.transposed)
    speed = product_rate(info, "serial", problem.dtype, of_processor(info, "matmul serial"))
    time = columns * (packed / bandwidth(info) + 2 * problem.m / speed)
    return dispatching(info) + time / busy(info, blocks)


# The private memory of a GPU thread is too small for a block.
@family.variant("serial", cost=_serial_cost, made_for=DeviceKind.WIDE, only=True)
def serial(
    b: Builder, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """One thread per block of the result. Sums are in order of k: the same bits for any m."""
    grid = (-(-problem.n // SERIAL_COLUMNS), -(-problem.m // SERIAL_ROWS), problem.members)
    _dispatch(b, problem, "serial", operands(problem, x, y, bias, result), grid, (1, 1, 1))


@family.variant("single", cost=lambda info, problem: EMULATED + problem.operations)
def single(
    b: Builder, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """One thread per element of the result, for integers on GPUs."""
    grid = (problem.n, problem.m, problem.members)
    across = min(problem.n, 32)
    group = (across, min(problem.m, 256 // across), 1)
    _dispatch(b, problem, "single", operands(problem, x, y, bias, result), grid, group)


def _dispatch(
    b: Builder,
    problem: MatmulProblem,
    variant: str,
    given: list[Buffer | bytes],
    grid: Size,
    group: Size,
) -> None:
    b.launch(
        pipeline(b, problem, variant, bits(problem.dtype)),
        [*given, problem.record()],
        grid,
        group,
    )


family.samples += [
    Sample("matmul", (Spec((1024, 1024), d), Spec((1024, 1024), d)), {"activation": None})
    for d in (dt.float32, dt.float16, dt.bfloat16)
]
family.samples.append(
    Sample(
        "matmul",
        (Spec((1, 4096), dt.float16), Spec((4096, 4096), dt.float16)),
        {"activation": None},
    )
)
