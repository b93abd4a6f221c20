"""Running sums and products along an axis, in blocks that start from the total before them."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.dtype import Dtype
from lbrx.kernels import elementwise
from lbrx.kernels.arrays import buffer_of, empty, kernel_name, placed, size_class
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer, Context
from lbrx.ops import Spec
from lbrx.storage import Array

ROW_BLOCK = 4096  # elements
COLUMN_BLOCK = 256  # elements of each column
LANES = 256  # columns that a thread takes together
TOTAL_BYTES = 8
GRID_ROW = 1 << 24  # threads along x
GROUP = 256  # threads
SIMD_WIDTH = 32


@dataclass(frozen=True)
class Scan:
    """A problem: `outer` times `inner` runs, those of one `outer` interleaved."""

    op: str
    dtype: Dtype
    outer: int
    length: int
    inner: int

    @property
    def shape_class(self) -> str:
        """The tuner's class of the problem, with sizes rounded up to powers of two."""
        return f"{self.op} {self.dtype} {size_class(self.outer, self.length, self.inner)}"


family: KernelFamily[Scan] = KernelFamily("scan")
family.samples += [
    Sample("cumsum", (Spec((1 << 20,), dt.float32),)),
    Sample("cumsum", (Spec((1024, 1024), dt.float32),), {"axis": 0}),
]


@computes("cumsum", "cumprod")
def run(call: Call) -> tuple[Array, ...]:
    """Compute `cumsum` and `cumprod`."""
    (given,) = call.inputs
    assert given is not None
    array = elementwise.contiguous(call.gpu, placed(call.gpu, given))
    if array.dtype is dt.bool_:
        array = replace(array, dtype=dt.uint8)
    shape = array.layout.shape
    axis = sh.normalize_axis(call.op.bind(call.attributes)["axis"], len(shape))
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    result = empty(call.gpu, call.outputs[0])
    if result.layout.size:
        problem = Scan(call.op.name, array.dtype, outer, shape[axis], inner)
        family.run(call.gpu, problem, array, result)
    return (result,)


@family.variant("serial", cost=lambda info, problem: 2.0 if info.simd_hardware else 1.0)
def serial(gpu: Context, problem: Scan, array: Array, result: Array) -> None:
    """One thread a block, of a row or of columns side by side."""
    _launch(gpu, problem, array, result, "serial", tile=LANES)


@family.variant("simd", cost=lambda info, problem: 1.0 if info.simd_hardware else 2.0)
def simd(gpu: Context, problem: Scan, array: Array, result: Array) -> None:
    """A simdgroup a block of a row, a thread a block of a column."""
    width = SIMD_WIDTH if problem.inner == 1 else 1
    _launch(gpu, problem, array, result, "simd", tile=1, width=width)


def _launch(
    gpu: Context,
    problem: Scan,
    array: Array,
    result: Array,
    variant: str,
    tile: int,
    width: int = 1,
) -> None:
    """Blocks of `tile` columns by `width` threads each."""
    kind = "rows" if problem.inner == 1 else "columns"
    if variant == "simd":
        kind += "_simd"
    block = ROW_BLOCK if problem.inner == 1 else COLUMN_BLOCK
    blocks = -(-problem.length // block)
    tasks = problem.outer * blocks * -(-problem.inner // tile)
    record = struct.pack("6Q", tasks, problem.outer, problem.length, problem.inner, block, blocks)
    values, results = buffer_of(array), buffer_of(result)

    def dispatch(kernel: str, dtype: Dtype, buffers: list[Buffer], threads: int) -> None:
        pipeline = gpu.shaders.pipeline("scan", kernel_name(kernel, "", dtype), safe_math=True)
        grid = min(threads, GRID_ROW), -(-threads // GRID_ROW), 1
        group = min(threads, GROUP), 1, 1
        gpu.queue.dispatch(
            pipeline, [*buffers, record], grid, group, kernel=problem.op, variant=variant
        )

    # A run of one block starts from nothing; the argument is there for Metal's sake.
    totals = results
    if blocks > 1:
        runs = problem.outer * problem.inner
        totals = gpu.buffer(runs * blocks * TOTAL_BYTES, "scan")
        dispatch(f"{problem.op}_total_{kind}", problem.dtype, [values, totals], tasks * width)
        total = dt.float32 if problem.dtype.is_float else dt.int64
        dispatch(f"{problem.op}_totals", total, [totals], runs)
    dispatch(f"{problem.op}_{kind}", problem.dtype, [values, results, totals], tasks * width)
