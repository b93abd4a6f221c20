"""Convolutions: directly, or as matrix products of the filters with what they cover."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from lbrx import dtype as dt
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise, matmul
from lbrx.kernels.arrays import accumulator, buffer_of, empty, kernel_name, reshaped, size_class
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, Context, DeviceInfo
from lbrx.ops import Spec
from lbrx.ops.convolution import Window, window
from lbrx.shape import Layout
from lbrx.storage import Array

# Filters and columns of a thread, as convolution.metal instantiates them.
TILES = {"serial": (16, 32), "serial_row": (1, 64), "threads": (4, 1)}
GROUP = 64  # threads
COLUMN_BYTES = 32 << 20  # of covered elements at a time: more are written in several steps

# Costs are microseconds. Speeds are those of the reference processor of matmul.py.
EMULATED = 100  # times slower: kernels that are not meant for the device
DIRECT_SPEED = 60e3  # operations of a processor
LOADING = 12e3  # the same, for each filter that shares what is loaded
THREADS_SHARE = 0.1  # of a GPU's peak
PRODUCT_SPEED = 150e3  # of a processor
COPYING = 0.3e-3  # an element that is covered


@dataclass(frozen=True)
class Convolution:
    """A problem: images and filters, both in groups of channels."""

    dtype: Dtype
    images: int
    groups: int
    channels: int
    filters: int
    """Channels and filters are those of a group."""
    height: int
    width: int
    window: Window
    bias: bool

    @property
    def covered(self) -> int:
        """Elements that a filter covers at one place."""
        return self.channels * math.prod(self.window.size)

    @property
    def places(self) -> int:
        """Positions of a filter on an image, which is the size of a result's plane."""
        return math.prod(self.window.results)

    @property
    def operations(self) -> float:
        """Multiplications and additions of the whole convolution."""
        return 2.0 * self.images * self.groups * self.filters * self.places * self.covered

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        sizes = size_class(self.images * self.groups, self.filters, self.covered, self.places)
        return f"{self.dtype} {sizes}"

    @property
    def is_pointwise(self) -> bool:
        """Whether the images themselves are what filters cover."""
        w = self.window
        return w.size == w.stride == (1, 1) and w.before == w.after == (0, 0)

    def packed(self, filters: int = 1) -> bytes:
        """The `Convolution` record of convolution.h, for tiles of so many filters."""
        w = self.window
        return struct.pack(
            "11I2i4I",
            *(self.channels, self.filters, self.groups, self.height, self.width),
            *(*w.size, *w.stride, *w.dilation, *w.before, *w.results),
            *(-(-self.filters // filters), self.bias),
        )


family: KernelFamily[Convolution] = KernelFamily("convolution")
family.samples += [
    Sample(
        "conv2d",
        (Spec((1, 64, 56, 56), dt.float32), Spec((64, 64, 3, 3), dt.float32)),
        {"stride": 1, "padding": 1, "dilation": 1, "groups": 1},
    ),
    Sample(
        "conv2d",
        (Spec((1, 3, 224, 224), dt.float32), Spec((32, 3, 3, 3), dt.float32)),
        {"stride": 2, "padding": 1, "dilation": 1, "groups": 1},
    ),
]


@computes("conv2d")
def run(call: Call) -> tuple[Array, ...]:
    """Operands of one type, halves of several types in float32."""
    gpu, (spec,) = call.gpu, call.outputs
    given = [array for array in call.inputs if array is not None]
    same = all(array.dtype is spec.dtype for array in given)
    working = spec.dtype if same else accumulator(spec.dtype)
    x, weight, *rest = (
        elementwise.contiguous(gpu, elementwise.cast(gpu, array, working)) for array in given
    )
    result = empty(gpu, Spec(spec.shape, working))
    if result.layout.size:
        images, channels, height, width = x.layout.shape
        filters, _, rows, columns = weight.layout.shape
        attributes = call.op.bind(call.attributes)
        groups = attributes["groups"]
        place = window(x.layout.shape, (rows, columns), attributes)
        sizes = (images, groups, channels // groups, filters // groups, height, width)
        problem = Convolution(working, *sizes, place, bool(rest))
        family.run(gpu, problem, x, weight, rest[0] if rest else None, result)
    return (elementwise.cast(gpu, result, spec.dtype),)


# ---- directly ----


Cost = Callable[[DeviceInfo, Convolution], float]


def _direct_cost(variant: str) -> Cost:
    def cost(info: DeviceInfo, problem: Convolution) -> float:
        filters, columns = TILES[variant]
        # Columns are computed as whole tiles; what is loaded serves the filters of a tile.
        width = problem.window.results[1]
        wasted = -(-width // columns) * columns / width
        slowness = 1 / DIRECT_SPEED + 1 / (LOADING * min(filters, problem.filters))
        slowness /= matmul.of_processor(info, 1.0)
        if info.simd_hardware:
            slowness = 1 / (THREADS_SHARE * matmul.peak(info))
        meant = info.simd_hardware is (variant == "threads")
        started = matmul.dispatching(info)
        return started + problem.operations * wasted * slowness * (1 if meant else EMULATED)

    return cost


@family.variant("serial", cost=_direct_cost("serial"))
def serial(
    gpu: Context, problem: Convolution, x: Array, weight: Array, bias: Array | None, result: Array
) -> None:
    """One thread per run of columns and some filters; columns are the lanes of CPU vectors."""
    _direct(gpu, problem, "serial", x, weight, bias, result)


@family.variant("serial_row", cost=_direct_cost("serial_row"))
def serial_row(
    gpu: Context, problem: Convolution, x: Array, weight: Array, bias: Array | None, result: Array
) -> None:
    """One thread per run of columns and one filter, for groups of one or a few filters."""
    _direct(gpu, problem, "serial_row", x, weight, bias, result)


@family.variant("threads", cost=_direct_cost("threads"))
def threads(
    gpu: Context, problem: Convolution, x: Array, weight: Array, bias: Array | None, result: Array
) -> None:
    """One thread per column and some filters: neighbouring threads read neighbouring elements."""
    _direct(gpu, problem, "threads", x, weight, bias, result)


def _direct(
    gpu: Context,
    problem: Convolution,
    variant: str,
    x: Array,
    weight: Array,
    bias: Array | None,
    result: Array,
) -> None:
    filters, columns = TILES[variant]
    height, width = problem.window.results
    tiles = problem.images * problem.groups * -(-problem.filters // filters)
    grid = (-(-width // columns), height, tiles)
    group = (min(grid[0], GROUP), 1, 1) if columns == 1 else (1, 1, 1)
    added = buffer_of(bias) if bias is not None else bytes(result.dtype.itemsize)
    operands = [buffer_of(x), buffer_of(weight), added, buffer_of(result)]
    name = kernel_name("conv2d", variant, problem.dtype)
    pipeline = gpu.shaders.pipeline("convolution", name, safe_math=True)
    arguments = [*operands, problem.packed(filters)]
    gpu.queue.dispatch(pipeline, arguments, grid, group, kernel="conv2d", variant=variant)


# ---- as products ----


def _product_cost(info: DeviceInfo, problem: Convolution) -> float:
    product = matmul.of_processor(info, PRODUCT_SPEED)
    speed = matmul.peak(info) / 2 if info.simd_hardware else product
    copied = 0 if problem.is_pointwise else problem.images * problem.groups * problem.covered
    written = copied * problem.places * problem.dtype.itemsize
    copying = written / 4 * COPYING / matmul.of_processor(info, 1.0)
    if info.simd_hardware:
        copying = 2 * written / matmul.bandwidth(info)
    return 4 * matmul.dispatching(info) + problem.operations / speed + copying


@family.variant(
    "product",
    can=lambda info, problem: problem.covered > 0,
    cost=_product_cost,
    batch_invariant=False,
)
def product(
    gpu: Context, problem: Convolution, x: Array, weight: Array, bias: Array | None, result: Array
) -> None:
    """Filters times what they cover, which is written out unless it is the images as they are."""
    p = problem
    wide = bias is not None and p.dtype is not dt.float32
    working = dt.float32 if wide else p.dtype
    filters = reshaped(weight, p.groups, p.filters, p.covered)
    filters = elementwise.cast(gpu, filters, working)
    shape = (p.images, p.groups, p.filters, p.places)
    made = empty(gpu, Spec(shape, working)) if bias is not None else reshaped(result, *shape)
    for first, count in _steps(p):
        part = _images(x, first, count)
        columns = part if p.is_pointwise else _columns(gpu, p, part, count)
        columns = reshaped(columns, count, p.groups, p.covered, p.places)
        columns = elementwise.cast(gpu, columns, working)
        target = _images(made, first, count)
        left, right, whole = matmul.problem_of(gpu, filters, columns, False, None)
        matmul.family.run(gpu, whole, left, right, None, target)
    if bias is not None:
        _add_bias(gpu, p, made, bias, result)


def _steps(p: Convolution) -> list[tuple[int, int]]:
    """The images in runs whose covered elements fit a bounded memory: first and count of each."""
    if p.is_pointwise:
        return [(0, p.images)]
    each = p.groups * p.covered * p.places * p.dtype.itemsize
    count = max(min(COLUMN_BYTES // each, p.images), 1)
    return [(i, min(count, p.images - i)) for i in range(0, p.images, count)]


def _images(array: Array, first: int, count: int) -> Array:
    """Some of the images of a contiguous array."""
    layout = array.layout
    start = layout.offset + first * layout.strides[0]
    return replace(array, layout=Layout((count, *layout.shape[1:]), layout.strides, start))


def _columns(gpu: Context, p: Convolution, x: Array, images: int) -> Array:
    """What filters cover of some images."""
    rows = images * p.groups * p.covered
    columns = empty(gpu, Spec((rows, p.places), p.dtype), "scratch")
    name = kernel_name("conv2d", "columns", p.dtype)
    pipeline = gpu.shaders.pipeline("convolution", name, safe_math=True)
    # A thread of a processor copies whole images, one of a GPU a row.
    height = p.window.results[0]
    run = 1 if gpu.info.simd_hardware else height
    grid = (-(-height // run), rows, 1)
    group = (min(grid[0], GROUP), 1, 1)
    operands = [buffer_of(x), buffer_of(columns)]
    arguments: list[Buffer | bytes] = [*operands, p.packed(), struct.pack("I", run)]
    gpu.queue.dispatch(pipeline, arguments, grid, group, kernel="conv2d", variant="product")
    return columns


def _add_bias(gpu: Context, p: Convolution, made: Array, bias: Array, result: Array) -> None:
    """Into the result, which is rounded once."""
    grid = (p.places, p.images * p.groups * p.filters, 1)
    group = (min(grid[0], GROUP), 1, 1)
    name = kernel_name("conv2d", "bias", p.dtype)
    pipeline = gpu.shaders.pipeline("convolution", name, safe_math=True)
    arguments: list[Buffer | bytes] = [
        buffer_of(made),
        buffer_of(bias),
        buffer_of(result),
        p.packed(),
    ]
    gpu.queue.dispatch(pipeline, arguments, grid, group, kernel="conv2d", variant="product")
