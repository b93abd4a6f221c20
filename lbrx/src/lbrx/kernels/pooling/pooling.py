"""The largest element, or the mean, under a window that moves over images."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from lbrx import dtype as dt
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, empty, kernel_name, placed, size_class
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, Context
from lbrx.ops import Spec
from lbrx.ops.convolution import Window, pooling
from lbrx.storage import Array

COLUMNS = {"serial": 16, "threads": 1}  # of a thread, as pooling.metal instantiates them
GROUP = 64  # threads


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

    def packed(self) -> bytes:
        """The `Pooling` record of pooling.h."""
        w = self.window
        sizes = (self.height, self.width, *w.size, *w.stride)
        return struct.pack("6I2i3I", *sizes, *w.before, *w.results, self.with_padding)


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
    (given,), (spec,) = call.inputs, call.outputs
    assert given is not None
    x = elementwise.contiguous(call.gpu, placed(call.gpu, given))
    attributes = call.op.bind(call.attributes)
    images, channels, height, width = x.layout.shape
    result = empty(call.gpu, spec)
    if result.layout.size:
        with_padding = attributes.get("count_include_pad", True)
        place = pooling(x.layout.shape, attributes)
        name, planes = call.op.name, images * channels
        problem = Pooling(name, spec.dtype, planes, height, width, place, with_padding)
        family.run(call.gpu, problem, x, result)
    return (result,)


@family.variant("serial", cost=lambda info, problem: 2.0 if info.simd_hardware else 1.0)
def serial(gpu: Context, problem: Pooling, x: Array, result: Array) -> None:
    """One thread per run of columns of a row, which are the lanes of CPU vectors."""
    _launch(gpu, problem, "serial", x, result)


@family.variant("threads", cost=lambda info, problem: 1.0 if info.simd_hardware else 2.0)
def threads(gpu: Context, problem: Pooling, x: Array, result: Array) -> None:
    """One thread per result: neighbouring threads read neighbouring elements."""
    _launch(gpu, problem, "threads", x, result)


def _launch(gpu: Context, problem: Pooling, variant: str, x: Array, result: Array) -> None:
    height, width = problem.window.results
    grid = (-(-width // COLUMNS[variant]), height, problem.planes)
    group = (min(grid[0], GROUP), 1, 1)
    name = kernel_name(problem.op, variant, problem.dtype)
    pipeline = gpu.shaders.pipeline("pooling", name, safe_math=True)
    arguments: list[Buffer | bytes] = [buffer_of(x), buffer_of(result), problem.packed()]
    gpu.queue.dispatch(pipeline, arguments, grid, group, kernel=problem.op, variant=variant)
