"""Softmax and its logarithm over any axis."""

from __future__ import annotations

import math

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.shape import Layout
from lbrx.arrays.storage import Array
from lbrx.command_lists.builder import Builder
from lbrx.command_lists.records import Bool, Constants, Record, UInt
from lbrx.device_info import DeviceKind
from lbrx.kernels.arrays import buffer_of, kernel_name
from lbrx.kernels.launching import GROUP
from lbrx.kernels.layouts import cast, contiguous
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.kernels.rows import rows
from lbrx.kernels.rows.rows import RowLoads, RowProblem, RowTask
from lbrx.metal import DeviceInfo
from lbrx.ops import Spec

TILE = 256  # columns per thread on a CPU
COLUMN_PART = 1 << 12
COLUMN_PARTS = 64  # at most, since every part reads all summaries


class SoftmaxConstants(Constants, header="softmax"):
    LOGARITHM: Bool


class ColumnsRecord(Record, header="softmax"):
    """Columns of an axis before the last, which may be divided into parts."""

    length: UInt  # of the axis
    inner: UInt  # neighbouring columns
    part: UInt  # elements of a column in all parts but the last
    parts: UInt


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
    b, (spec,) = call.builder, call.outputs
    result = b.result(spec)
    if math.prod(spec.shape) == 0:
        return (result,)
    assert call.inputs[0] is not None
    array = cast(b, b.placed(call.inputs[0]), spec.dtype)
    axis = sh.normalize_axis(call.attributes["axis"], len(spec.shape))
    outer, inner = math.prod(spec.shape[:axis]), math.prod(spec.shape[axis + 1 :])
    loads = RowLoads.SINGLE
    if inner == 1:
        (array,), stride = rows.by_rows(b, _without_tail(array, axis))
        loads = rows.loads(stride, array)
    else:
        array, stride = contiguous(b, array), 0
    constants = SoftmaxConstants(LOGARITHM=call.op.name == "log_softmax")
    buffers = [buffer_of(array), buffer_of(result)]
    task = RowTask("softmax", call.op.name, constants, buffers, stride, loads)
    problem = RowProblem(spec.dtype, outer, spec.shape[axis], inner)
    family.run(b, problem, task, op=task.op)
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
    made_for=DeviceKind.WIDE,
    batch_invariant=False,  # with few columns the order of sums depends on their number
)
def columns(b: Builder, problem: RowProblem, task: RowTask) -> None:
    """One thread per tile of columns, which are the lanes of CPU vectors."""
    _columns(b, problem, task, "columns", TILE)


@family.variant("column", can=_is_columns, cost=lambda info, _: 1.5)
def column(b: Builder, problem: RowProblem, task: RowTask) -> None:
    """One thread per column: neighbouring threads read neighbouring elements."""
    _columns(b, problem, task, "column", 1)


def _columns(b: Builder, problem: RowProblem, task: RowTask, variant: str, width: int) -> None:
    """One kernel for short columns; for long ones, summaries of parts first."""
    part = max(COLUMN_PART, -(-problem.length // COLUMN_PARTS))
    parts = -(-problem.length // part)
    record = ColumnsRecord(length=problem.length, inner=problem.inner, part=part, parts=parts)
    arguments = [*task.arguments, record]
    grid = (-(-problem.inner // width), parts, problem.count)
    group = (min(grid[0], GROUP) if width == 1 else 1, 1, 1)
    steps = [""]
    if parts > 1:
        summaries = problem.count * parts * problem.inner
        arguments.append(b.scratch(summaries * rows.SUMMARY_BYTES))
        steps = ["_summary", "_finish"]
    for step in steps:
        name = kernel_name("softmax", variant + step, problem.dtype)
        pipeline = b.pipeline("softmax", name, task.constants, safe_math=True)
        b.launch(pipeline, arguments, grid, group)
