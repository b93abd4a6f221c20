"""The largest element, or the mean, under a window that moves over images."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Int, Record, UInt
from lbrx.device_info import DeviceKind
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, kernel_name, size_class
from lbrx.kernels.launching import SMALL_GROUP
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer
from lbrx.ops import Spec
from lbrx.ops.convolution import Window, pooling

COLUMNS = {"serial": 16, "threads": 1}  # of a thread, as pooling.metal instantiates them


class PoolingRecord(Record, header="pooling"):
    height: UInt  # of an image
    width: UInt
    rows: UInt  # of the window
    columns: UInt
    down: UInt  # stride
    right: UInt
    top: Int  # padding
    left: Int
    out_height: UInt
    out_width: UInt
    with_padding: UInt  # whether padding counts as elements of a mean


@dataclass(frozen=True)
class Pooling:
    """A problem: so many planes, and the window that moves over each."""

    op: str
    dtype: Dtype
    planes: int
    height: int
    width: int
    window: Window
    with_padding: bool

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        sizes = size_class(self.planes, *self.window.results, math.prod(self.window.size))
        return f"{self.op} {self.dtype} {sizes}"

    def record(self) -> PoolingRecord:
        """The problem as the kernels read it."""
        w = self.window
        return PoolingRecord(
            height=self.height,
            width=self.width,
            rows=w.size[0],
            columns=w.size[1],
            down=w.stride[0],
            right=w.stride[1],
            top=w.before[0],
            left=w.before[1],
            out_height=w.results[0],
            out_width=w.results[1],
            with_padding=self.with_padding,
        )


family: KernelFamily[Pooling] = KernelFamily("pooling")
family.samples += [
    Sample(
        op,
        (Spec((8, 64, 112, 112), dt.float32),),
        {"kernel_size": 3, "stride": 2, "padding": 1},
    )
    for op in ("max_pool2d", "avg_pool2d")
]


@computes("max_pool2d", "avg_pool2d")
def run(call: Call) -> tuple[Array, ...]:
    """Compute `max_pool2d` and `avg_pool2d`."""
    (x_images,), (spec,) = call.inputs, call.outputs
    assert x_images is not None
    x = layouts.contiguous(call.builder, call.builder.placed(x_images))
    attributes = call.op.bind(call.attributes)
    images, channels, height, width = x.layout.shape
    result = call.builder.result(spec)
    if result.layout.size:
        with_padding = attributes.get("count_include_pad", True)
        place = pooling(x.layout.shape, attributes)
        name, planes = call.op.name, images * channels
        problem = Pooling(name, spec.dtype, planes, height, width, place, with_padding)
        family.run(call.builder, problem, x, result, op=call.op.name)
    return (result,)


@family.variant("serial", made_for=DeviceKind.WIDE)
def serial(b: Builder, problem: Pooling, x: Array, result: Array) -> None:
    """One thread per run of columns of a row, which are the lanes of CPU vectors."""
    _launch(b, problem, "serial", x, result)


@family.variant("threads", made_for=DeviceKind.SIMD)
def threads(b: Builder, problem: Pooling, x: Array, result: Array) -> None:
    """One thread per result: neighbouring threads read neighbouring elements."""
    _launch(b, problem, "threads", x, result)


def _launch(b: Builder, problem: Pooling, variant: str, x: Array, result: Array) -> None:
    height, width = problem.window.results
    grid = (-(-width // COLUMNS[variant]), height, problem.planes)
    group = (min(grid[0], SMALL_GROUP), 1, 1)
    name = kernel_name(problem.op, variant, problem.dtype)
    pipeline = b.pipeline("pooling", name, safe_math=True)
    arguments: list[Buffer | bytes] = [buffer_of(x), buffer_of(result), problem.record()]
    b.launch(pipeline, arguments, grid, group)
