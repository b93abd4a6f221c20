"""Convolutions: directly, or as matrix products of the filters with what they cover."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype, accumulator
from lbrx.arrays.shape import Layout
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import UINT, Int, Record, UInt, packed
from lbrx.device_info import DeviceKind
from lbrx.kernels import costs, layouts
from lbrx.kernels.arrays import buffer_of, kernel_name, reshaped, size_class
from lbrx.kernels.launching import SMALL_GROUP
from lbrx.kernels.matmul import matmul
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, DeviceInfo
from lbrx.ops import Spec
from lbrx.ops.convolution import Window, window

# Filters and columns of a thread, as convolution.metal instantiates them.
TILES = {"serial": (16, 32), "serial_row": (1, 64), "threads": (4, 1)}
COLUMN_BYTES = 32 << 20  # of covered elements at a time: more are written in several steps

COPYING = 0.3e-3  # microseconds of the reference processor for an element that is covered


class ConvolutionRecord(Record, header="convolution"):
    channels: UInt  # of a group
    filters: UInt
    groups: UInt
    height: UInt  # of an image
    width: UInt
    rows: UInt  # of a filter
    columns: UInt
    down: UInt  # stride
    right: UInt
    spread_down: UInt  # dilation
    spread_right: UInt
    top: Int  # padding
    left: Int
    out_height: UInt
    out_width: UInt
    tiles: UInt  # of filters in a group
    bias_step: UInt  # 0 where one zero is added to all


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

    def record(self, filters: int = 1) -> ConvolutionRecord:
        """The problem as the kernels read it, for tiles of so many filters."""
        w = self.window
        return ConvolutionRecord(
            channels=self.channels,
            filters=self.filters,
            groups=self.groups,
            height=self.height,
            width=self.width,
            rows=w.size[0],
            columns=w.size[1],
            down=w.stride[0],
            right=w.stride[1],
            spread_down=w.dilation[0],
            spread_right=w.dilation[1],
            top=w.before[0],
            left=w.before[1],
            out_height=w.results[0],
            out_width=w.results[1],
            tiles=-(-self.filters // filters),
            bias_step=self.bias,
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
    b, (spec,) = call.builder, call.outputs
    operands = [array for array in call.inputs if array is not None]
    same = all(array.dtype is spec.dtype for array in operands)
    working = spec.dtype if same else accumulator(spec.dtype)
    x, weight, *rest = (
        layouts.contiguous(b, layouts.cast(b, array, working)) for array in operands
    )
    result = b.result(Spec(spec.shape, working))
    if result.layout.size:
        images, channels, height, width = x.layout.shape
        filters, _, rows, columns = weight.layout.shape
        attributes = call.op.bind(call.attributes)
        groups = attributes["groups"]
        place = window(x.layout.shape, (rows, columns), attributes)
        sizes = (images, groups, channels // groups, filters // groups, height, width)
        problem = Convolution(working, *sizes, place, bool(rest))
        family.run(b, problem, x, weight, rest[0] if rest else None, result, op="conv2d")
    return (layouts.cast(b, result, spec.dtype),)


# ---- directly ----


Cost = Callable[[DeviceInfo, Convolution], float]


def _serial_cost(variant: str) -> Cost:
    def cost(info: DeviceInfo, problem: Convolution) -> float:
        filters, columns = TILES[variant]
        # Columns are computed as whole tiles; what is loaded serves the filters of a tile.
        width = problem.window.results[1]
        wasted = -(-width // columns) * columns / width
        loaded = costs.of_processor(info, "convolution loads") * min(filters, problem.filters)
        slowness = 1 / costs.of_processor(info, "convolution direct") + 1 / loaded
        return costs.dispatching(info) + problem.operations * wasted * slowness

    return cost


def _threads_cost(info: DeviceInfo, problem: Convolution) -> float:
    return costs.dispatching(info) + costs.of_gpu(info, "convolution", 0, problem.operations)


@family.variant("serial", cost=_serial_cost("serial"), made_for=DeviceKind.WIDE)
def serial(
    b: Builder, problem: Convolution, x: Array, weight: Array, bias: Array | None, result: Array
) -> None:
    """One thread per run of columns and some filters; columns are the lanes of CPU vectors."""
    _direct(b, problem, "serial", x, weight, bias, result)


@family.variant("serial_row", cost=_serial_cost("serial_row"), made_for=DeviceKind.WIDE)
def serial_row(
    b: Builder, problem: Convolution, x: Array, weight: Array, bias: Array | None, result: Array
) -> None:
    """One thread per run of columns and one filter, for groups of one or a few filters."""
    _direct(b, problem, "serial_row", x, weight, bias, result)


@family.variant("threads", cost=_threads_cost, made_for=DeviceKind.SIMD)
def threads(
    b: Builder, problem: Convolution, x: Array, weight: Array, bias: Array | None, result: Array
) -> None:
    """One thread per column and some filters: neighbouring threads read neighbouring elements."""
    _direct(b, problem, "threads", x, weight, bias, result)


def _direct(
    b: Builder,
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
    group = (min(grid[0], SMALL_GROUP), 1, 1) if columns == 1 else (1, 1, 1)
    added = buffer_of(bias) if bias is not None else bytes(result.dtype.itemsize)
    operands = [buffer_of(x), buffer_of(weight), added, buffer_of(result)]
    name = kernel_name("conv2d", variant, problem.dtype)
    pipeline = b.pipeline("convolution", name, safe_math=True)
    arguments = [*operands, problem.record(filters)]
    b.launch(pipeline, arguments, grid, group)


# ---- as products ----


def _product_cost(info: DeviceInfo, problem: Convolution) -> float:
    on_processors = costs.of_processor(info, "convolution product")
    speed = info.by_kind(wide=on_processors, simd=costs.peak(info) / 2)
    copied = 0 if problem.is_pointwise else problem.images * problem.groups * problem.covered
    written = copied * problem.places * problem.dtype.itemsize
    elementwise_copy = written / 4 * COPYING * costs.slower(info)
    copying = info.by_kind(wide=elementwise_copy, simd=2 * written / costs.bandwidth(info))
    return 4 * costs.dispatching(info) + problem.operations / speed + copying


@family.variant(
    "product",
    can=lambda info, problem: problem.covered > 0,
    cost=_product_cost,
    batch_invariant=False,
)
def product(
    b: Builder, problem: Convolution, x: Array, weight: Array, bias: Array | None, result: Array
) -> None:
    """Filters times what they cover, which is written out unless it is the images as they are."""
    p = problem
    wide = bias is not None and p.dtype is not dt.float32
    working = dt.float32 if wide else p.dtype
    filters = reshaped(weight, p.groups, p.filters, p.covered)
    filters = layouts.cast(b, filters, working)
    shape = (p.images, p.groups, p.filters, p.places)
    product = b.result(Spec(shape, working)) if bias is not None else reshaped(result, *shape)
    for first, count in _steps(p):
        part = _images(x, first, count)
        columns = part if p.is_pointwise else _columns(b, p, part, count)
        columns = reshaped(columns, count, p.groups, p.covered, p.places)
        columns = layouts.cast(b, columns, working)
        target = _images(product, first, count)
        seen, whole = matmul.problem_of(filters, columns, False, None)
        matmul.family.run(b, whole, *matmul.matrices(b, seen, (filters, columns)), None, target)
    if bias is not None:
        _add_bias(b, p, product, bias, result)


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


def _columns(b: Builder, p: Convolution, x: Array, images: int) -> Array:
    """What filters cover of some images."""
    rows = images * p.groups * p.covered
    columns = b.result(Spec((rows, p.places), p.dtype), "scratch")
    name = kernel_name("conv2d", "columns", p.dtype)
    pipeline = b.pipeline("convolution", name, safe_math=True)
    # A thread of a processor copies whole images, one of a GPU a row.
    height = p.window.results[0]
    run = b.info.by_kind(wide=height, simd=1)
    grid = (-(-height // run), rows, 1)
    group = (min(grid[0], SMALL_GROUP), 1, 1)
    operands = [buffer_of(x), buffer_of(columns)]
    arguments: list[Buffer | bytes] = [*operands, p.record(), packed(UINT, run)]
    b.launch(pipeline, arguments, grid, group)
    return columns


def _add_bias(b: Builder, p: Convolution, made: Array, bias: Array, result: Array) -> None:
    """Into the result, which is rounded once."""
    grid = (p.places, p.images * p.groups * p.filters, 1)
    group = (min(grid[0], SMALL_GROUP), 1, 1)
    name = kernel_name("conv2d", "bias", p.dtype)
    pipeline = b.pipeline("convolution", name, safe_math=True)
    arguments: list[Buffer | bytes] = [
        buffer_of(made),
        buffer_of(bias),
        buffer_of(result),
        p.record(),
    ]
    b.launch(pipeline, arguments, grid, group)
