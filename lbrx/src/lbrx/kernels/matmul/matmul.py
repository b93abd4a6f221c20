"""Matrix products with bias and activation: the problem, and kernels for every case.

Kernels for simdgroups are in `matmul_tiles.py`, for a few rows in `matvec.py`, the vendor's in
`mps.py`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.errors import ShapeError
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import accumulator, buffer_of, empty, kernel_name, size_class
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, Context, DeviceInfo, Pipeline
from lbrx.metal.commands import Size
from lbrx.ops import Spec
from lbrx.shape import Layout, Shape
from lbrx.storage import Array

# The numbers used in matmul.h.
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "sigmoid": 5, "tanh": 6}
BATCH_AXES = 4  # supported by kernels
LONGEST_ELEMENT = 8  # bytes of a zero of any dtype
LONGEST = 2**31 - 1  # rows or columns, which kernels count in 32 bits

# Rows and columns of a thread, as in matmul.h.
SERIAL_ROWS, SERIAL_COLUMNS = 64, 64

# Costs are microseconds, by the device's calibration where it has one.
DISPATCH = 5.0
ENCODING = 15.0, 45.0  # of a product by MPS, by processors and by GPUs (the host of an H200)
EMULATED = 1e6  # for kernels that work on the device but are not made for it
# Speeds of kernels on processors are given for one that computes so many operations of float32
# products by MPS, and scaled to the device's products.
REFERENCE_PRODUCTS = 190e3
SERIAL_SPEED = 130e3  # operations
# For each thread of a processor that is not calibrated: operations of products, and bytes per
# second. Common cores are within a factor of two of it.
CORE_PRODUCTS, CORE_BANDWIDTH = 95e3, 16e9
M1_PEAK, M1_BANDWIDTH = 2.6e12, 68e9  # for GPUs of which nothing is known or measured


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

    def packed(self, *, into_transposed: bool = False) -> bytes:
        """The `Product` record of matmul.h, for a row-major or a transposed result."""
        bias = (self.bias, 0) if into_transposed else (0, self.bias)
        out = (1, self.m) if into_transposed else (self.row or self.n, 1)
        zeros = (0,) * (BATCH_AXES - len(self.batch))
        return struct.pack(
            f"{6 + BATCH_AXES}I{6 + 2 * BATCH_AXES}Q",
            *(self.m, self.n, self.k, *bias, len(self.batch)),
            *(*self.batch, *zeros),
            *(*self.x.strides, *self.y.strides, *out),
            *(*self.x_batch, *zeros),
            *(*self.y_batch, *zeros),
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
    gpu, (spec,) = call.gpu, call.outputs
    given = [array for array in call.inputs if array is not None]
    same = all(array.dtype is spec.dtype for array in given)
    working = spec.dtype if same else accumulator(spec.dtype)
    x, y, *rest = (elementwise.cast(gpu, array, working) for array in given)
    bias = elementwise.contiguous(gpu, rest[0]) if rest else None
    result = empty(gpu, Spec(spec.shape, working))
    if result.layout.size:
        x, y, problem = problem_of(gpu, x, y, bias is not None, call.attributes["activation"])
        if problem.k:
            as_for = replace(problem, bias=False, activation=None) if bare else None
            family.run(gpu, problem, x, y, bias, result, as_for=as_for)
        else:
            finish(gpu, problem, result, 0, bias, result)
    return (elementwise.cast(gpu, result, spec.dtype),)


def problem_of(
    gpu: Context, x: Array, y: Array, bias: bool, activation: str | None
) -> tuple[Array, Array, MatmulProblem]:
    """The operands as matrices that kernels support, copied if necessary, and the problem."""
    if x.layout.ndim == 1:
        x = replace(x, layout=sh.unsqueeze(x.layout, 0))
    if y.layout.ndim == 1:
        y = replace(y, layout=sh.unsqueeze(y.layout, 1))
    x, left = _matrix(gpu, x)
    y, right = _matrix(gpu, y)
    (m, k), n = x.layout.shape[-2:], y.layout.shape[-1]
    if max(m, n, k) > LONGEST:
        raise ShapeError(f"matmul of {m} x {k} and {k} x {n}: no side may exceed {LONGEST}")
    problem = MatmulProblem(m, n, k, x.dtype, left, right, bias=bias, activation=activation)
    if x.layout.ndim == 2 == y.layout.ndim:
        return x, y, problem
    shape = sh.broadcast(x.layout.shape[:-2], y.layout.shape[:-2])
    batch, (x_batch, y_batch) = elementwise.collapsed(
        shape, [_batch_layout(x, shape), _batch_layout(y, shape)]
    )
    if len(batch) > BATCH_AXES:
        x, y = _expanded(gpu, x, shape), _expanded(gpu, y, shape)
        return problem_of(gpu, x, y, bias, activation)
    problem = replace(problem, batch=batch, x_batch=x_batch, y_batch=y_batch)
    return x, y, _with_rows_merged(problem)


def _matrix(gpu: Context, array: Array) -> tuple[Array, Matrix]:
    """The layout of the last two axes; the array is copied if neither is contiguous."""
    (*_, rows, columns), (*batch, down, across) = array.layout.shape, array.layout.strides
    if all(stride >= 0 for stride in batch):
        if (across == 1 or columns == 1) and (down >= columns or rows == 1):
            return array, Matrix(False, down if rows > 1 else columns)
        if (down == 1 or rows == 1) and (across >= rows or columns == 1):
            return array, Matrix(True, across if columns > 1 else rows)
    return elementwise.contiguous(gpu, array), Matrix(False, columns)


def _batch_layout(array: Array, shape: Shape) -> Layout:
    layout = Layout(array.layout.shape[:-2], array.layout.strides[:-2])
    return sh.expand(layout, shape)


def _expanded(gpu: Context, array: Array, shape: Shape) -> Array:
    layout = sh.expand(array.layout, shape + array.layout.shape[-2:])
    return elementwise.contiguous(gpu, replace(array, layout=layout))


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


def peak(info: DeviceInfo) -> float:
    """Operations per microsecond: measured, else declared."""
    return (info.arithmetic_rate or M1_PEAK) / 1e6


def product_peak(info: DeviceInfo, dtype: Dtype) -> float:
    """Operations per microsecond of products: those of matrix units, where it is known that they
    are faster for halves."""
    return info.matrix_peak / 1e6 if info.matrix_peak and dtype.itemsize == 2 else peak(info)


def bandwidth(info: DeviceInfo) -> float:
    """Bytes per microsecond: measured, else declared."""
    unknown = M1_BANDWIDTH if info.simd_hardware else CORE_BANDWIDTH * (info.cores or 1)
    return (info.memory_rate or unknown) / 1e6


def dispatching(info: DeviceInfo) -> float:
    """Microseconds from a small kernel to the next one."""
    return info.calibration.dispatch * 1e6 if info.calibration else DISPATCH


def encoding(info: DeviceInfo) -> float:
    """Microseconds of the host for a small product by MPS."""
    return info.calibration.encoding * 1e6 if info.calibration else ENCODING[info.simd_hardware]


def product_rate(info: DeviceInfo, variant: str, dtype: Dtype, otherwise: float) -> float:
    """Operations per microsecond of large products by a variant: measured, else what is given."""
    measured = info.product_rate(variant, dtype.name)
    return measured / 1e6 if measured else otherwise


def of_processor(info: DeviceInfo, speed: float) -> float:
    """A speed of the reference processor, on another: in proportion to its products, as measured,
    else by the number of its threads."""
    products = product_rate(info, "mps", dt.float32, CORE_PRODUCTS * (info.cores or 1))
    return speed * products / REFERENCE_PRODUCTS


def busy(info: DeviceInfo, tasks: int) -> float:
    """The share of a processor's threads that so many tasks keep busy."""
    return min(tasks / (info.cores or 1), 1.0)


def pipeline(
    gpu: Context,
    problem: MatmulProblem,
    kernel: str,
    dtype: Dtype,
    constants: Mapping[int, bool | int] | None = None,
    *,
    stem: str = "matmul",
) -> Pipeline:
    """A kernel of the shader, specialised for the problem's activation."""
    return pipeline_of(gpu, problem, kernel_name(stem, kernel, dtype), constants, stem=stem)


def pipeline_of(
    gpu: Context,
    problem: MatmulProblem,
    name: str,
    constants: Mapping[int, bool | int] | None = None,
    source: str | None = None,
    *,
    stem: str = "matmul_tiles",
) -> Pipeline:
    """The same by the kernel's own name, of a shader or of generated source."""
    values = {0: ACTIVATIONS[problem.activation], **(constants or {})}
    return gpu.shaders.pipeline(stem, name, values, safe_math=True, source=source)


def operands(
    problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> list[Buffer | bytes]:
    """The first arguments of every kernel. Without a bias, a zero is added to all columns."""
    added = buffer_of(bias) if bias is not None else bytes(LONGEST_ELEMENT)
    return [buffer_of(x), buffer_of(y), added, buffer_of(result)]


def finish(
    gpu: Context,
    problem: MatmulProblem,
    parts: Array,
    count: int,
    bias: Array | None,
    result: Array,
) -> None:
    """Add planes of partial sums in order, then apply bias and activation."""
    grid = (problem.n, problem.members * problem.m, 1)
    group = min(problem.n, 256)
    _, *given = operands(problem, parts, parts, bias, result)
    arguments = [*given, struct.pack("I", count), struct.pack("I", problem.bias)]
    gpu.queue.dispatch(
        pipeline(gpu, problem, "finish", bits(result.dtype)),
        arguments,
        grid,
        (group, min(grid[1], 256 // group), 1),
        kernel="matmul",
        variant="finish",
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
    speed = product_rate(info, "serial", problem.dtype, of_processor(info, SERIAL_SPEED))
    time = columns * (packed / bandwidth(info) + 2 * problem.m / speed)
    return dispatching(info) + time / busy(info, blocks)


# The private memory of a GPU thread is too small for a block.
@family.variant("serial", can=lambda info, problem: not info.simd_hardware, cost=_serial_cost)
def serial(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """One thread per block of the result. Sums are in order of k: the same bits for any m."""
    grid = (-(-problem.n // SERIAL_COLUMNS), -(-problem.m // SERIAL_ROWS), problem.members)
    _dispatch(gpu, problem, "serial", operands(problem, x, y, bias, result), grid, (1, 1, 1))


@family.variant("single", cost=lambda info, problem: EMULATED + problem.operations)
def single(
    gpu: Context, problem: MatmulProblem, x: Array, y: Array, bias: Array | None, result: Array
) -> None:
    """One thread per element of the result, for integers on GPUs."""
    grid = (problem.n, problem.m, problem.members)
    across = min(problem.n, 32)
    group = (across, min(problem.m, 256 // across), 1)
    _dispatch(gpu, problem, "single", operands(problem, x, y, bias, result), grid, group)


def _dispatch(
    gpu: Context,
    problem: MatmulProblem,
    variant: str,
    given: list[Buffer | bytes],
    grid: Size,
    group: Size,
) -> None:
    gpu.queue.dispatch(
        pipeline(gpu, problem, variant, bits(problem.dtype)),
        [*given, problem.packed()],
        grid,
        group,
        kernel="matmul",
        variant=variant,
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
