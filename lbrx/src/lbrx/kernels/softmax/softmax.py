"""Softmax and its logarithm over any axis."""

from __future__ import annotations

import math
import struct

from lbrx import dtype as dt
from lbrx import shape as sh
from lbrx.kernels import rows
from lbrx.kernels.arrays import buffer_of, empty, kernel_name, placed
from lbrx.kernels.elementwise import cast, contiguous
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.kernels.rows import RowLoads, RowProblem, RowTask
from lbrx.metal import Context, DeviceInfo
from lbrx.ops import Spec
from lbrx.shape import Layout
from lbrx.storage import Array

TILE = 256  # columns per thread on a CPU
GROUP = 256  # threads
COLUMN_PART = 1 << 12
COLUMN_PARTS = 64  # at most, since every part reads all summaries

family: KernelFamily[RowProblem] = KernelFamily("softmax")
rows.add_variants(family)
family.samples += [
    Sample("softmax", (Spec((4096, 256), dt.float32),), {"axis": -1}),
    Sample("softmax", (Spec((1024, 4096), dt.float32),), {"axis": -1}),
    Sample("log_softmax", (Spec((1, 128_256), dt.float32),), {"axis": -1}),
    Sample("softmax", (Spec((1024, 1024), dt.float32),), {"axis": 0}),
]


@computes("softmax", "log_softmax")
def run(call: Call) -> tuple[Array, ...]:
    """Compute `softmax` and `log_softmax` in the dtype of the result."""
    gpu, (spec,) = call.gpu, call.outputs
    result = empty(gpu, spec)
    if math.prod(spec.shape) == 0:
        return (result,)
    assert call.inputs[0] is not None
    array = cast(gpu, placed(gpu, call.inputs[0]), spec.dtype)
    axis = sh.normalize_axis(call.attributes["axis"], len(spec.shape))
    outer, inner = math.prod(spec.shape[:axis]), math.prod(spec.shape[axis + 1 :])
    loads = RowLoads.SINGLE
    if inner == 1:
        (array,), stride = rows.by_rows(gpu, _without_tail(array, axis))
        loads = rows.loads(stride, array)
    else:
        array, stride = contiguous(gpu, array), 0
    constants, buffers = {0: call.op.name == "log_softmax"}, [buffer_of(array), buffer_of(result)]
    task = RowTask("softmax", call.op.name, constants, buffers, stride, loads)
    family.run(gpu, RowProblem(spec.dtype, outer, spec.shape[axis], inner), task)
    return (result,)


def _without_tail(array: Array, axis: int) -> Array:
    """Without axes of size one after `axis`."""
    layout = array.layout
    kept = Layout(layout.shape[: axis + 1], layout.strides[: axis + 1], layout.offset)
    return Array(array.storage, kept, array.dtype)


# ---- axes before the last ----


def _is_columns(info: DeviceInfo, problem: RowProblem) -> bool:
    return problem.inner > 1 and problem.length <= rows.LONGEST


@family.variant(
    "columns",
    can=_is_columns,
    cost=lambda info, _: 2.0 if info.simd_hardware else 1.0,
    batch_invariant=False,  # with few columns the order of sums depends on their number
)
def columns(gpu: Context, problem: RowProblem, task: RowTask) -> None:
    """One thread per tile of columns, which are the lanes of CPU vectors."""
    _columns(gpu, problem, task, "columns", TILE)


@family.variant("column", can=_is_columns, cost=lambda info, _: 1.5)
def column(gpu: Context, problem: RowProblem, task: RowTask) -> None:
    """One thread per column: neighbouring threads read neighbouring elements."""
    _columns(gpu, problem, task, "column", 1)


def _columns(gpu: Context, problem: RowProblem, task: RowTask, variant: str, width: int) -> None:
    """One kernel for short columns; for long ones, summaries of parts first."""
    part = max(COLUMN_PART, -(-problem.length // COLUMN_PARTS))
    parts = -(-problem.length // part)
    record = struct.pack("4I", problem.length, problem.inner, part, parts)
    arguments = [*task.arguments, record]
    grid = (-(-problem.inner // width), parts, problem.count)
    group = (min(grid[0], GROUP) if width == 1 else 1, 1, 1)
    steps = [""]
    if parts > 1:
        summaries = problem.count * parts * problem.inner
        arguments.append(gpu.buffer(summaries * rows.SUMMARY_BYTES, "scratch"))
        steps = ["_summary", "_finish"]
    for step in steps:
        name = kernel_name("softmax", variant + step, problem.dtype)
        pipeline = gpu.shaders.pipeline("softmax", name, task.constants, safe_math=True)
        gpu.queue.dispatch(pipeline, arguments, grid, group, kernel=task.op, variant=variant)
