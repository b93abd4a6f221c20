"""Running sums and products along an axis, in blocks that start from the total before them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Record, ULong
from lbrx.device_info import DeviceKind
from lbrx.kernels import layouts
from lbrx.kernels.arrays import buffer_of, kernel_name, size_class
from lbrx.kernels.launching import GROUP, SIMD_WIDTH
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.metal import Buffer
from lbrx.ops import Spec

ROW_BLOCK = 4096  # elements
COLUMN_BLOCK = 256  # elements of each column
LANES = 256  # columns that a thread takes together
TOTAL_BYTES = 8
GRID_ROW = 1 << 24  # threads along x


class ScanRecord(Record, header="scan"):
    tasks: ULong
    outer: ULong
    length: ULong
    inner: ULong
    block: ULong  # elements of a run
    blocks: ULong  # in a run


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
    (scanned,) = call.inputs
    assert scanned is not None
    array = layouts.contiguous(call.builder, call.builder.placed(scanned))
    if array.dtype is dt.bool_:
        array = replace(array, dtype=dt.uint8)
    shape = array.layout.shape
    axis = sh.normalize_axis(call.op.bind(call.attributes)["axis"], len(shape))
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    result = call.builder.result(call.outputs[0])
    if result.layout.size:
        problem = Scan(call.op.name, array.dtype, outer, shape[axis], inner)
        family.run(call.builder, problem, array, result, op=problem.op)
    return (result,)


@family.variant("serial", made_for=DeviceKind.WIDE)
def serial(b: Builder, problem: Scan, array: Array, result: Array) -> None:
    """One thread a block, of a row or of columns side by side."""
    _launch(b, problem, array, result, "serial", tile=LANES)


@family.variant("simd", made_for=DeviceKind.SIMD)
def simd(b: Builder, problem: Scan, array: Array, result: Array) -> None:
    """A simdgroup a block of a row, a thread a block of a column."""
    width = SIMD_WIDTH if problem.inner == 1 else 1
    _launch(b, problem, array, result, "simd", tile=1, width=width)


def _launch(
    b: Builder,
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
    record = ScanRecord(
        tasks=tasks,
        outer=problem.outer,
        length=problem.length,
        inner=problem.inner,
        block=block,
        blocks=blocks,
    )
    values, results = buffer_of(array), buffer_of(result)

    def dispatch(kernel: str, dtype: Dtype, buffers: list[Buffer], threads: int) -> None:
        pipeline = b.pipeline("scan", kernel_name(kernel, "", dtype), safe_math=True)
        grid = min(threads, GRID_ROW), -(-threads // GRID_ROW), 1
        group = min(threads, GROUP), 1, 1
        b.launch(pipeline, [*buffers, record], grid, group)

    # A run of one block starts from nothing; the argument is there for Metal's sake.
    totals = results
    if blocks > 1:
        runs = problem.outer * problem.inner
        totals = b.scratch(runs * blocks * TOTAL_BYTES, "scan")
        dispatch(f"{problem.op}_total_{kind}", problem.dtype, [values, totals], tasks * width)
        total = dt.float32 if problem.dtype.is_float else dt.int64
        dispatch(f"{problem.op}_totals", total, [totals], runs)
    dispatch(f"{problem.op}_{kind}", problem.dtype, [values, results, totals], tasks * width)
