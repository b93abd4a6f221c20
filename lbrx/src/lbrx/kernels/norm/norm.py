"""Layer norm and RMS norm over the last axis, also of a sum that is returned as well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lbrx.arrays import dtype as dt
from lbrx.arrays.storage import Array
from lbrx.command_lists.records import FLOAT, Bool, Constants, packed
from lbrx.kernels.arrays import buffer_of
from lbrx.kernels.layouts import cast, contiguous
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.kernels.rows import rows
from lbrx.kernels.rows.rows import RowProblem, RowTask
from lbrx.ops import Spec


class NormConstants(Constants, header="norm"):
    CENTRED: Bool  # layer norm
    RESIDUAL: Bool  # an array that is added first
    WEIGHT: Bool
    BIAS: Bool


family: KernelFamily[RowProblem] = KernelFamily("norm")
rows.add_variants(family)
rows.add_streamed(family)
family.samples += [
    Sample("rms_norm", (Spec((1, 4096), dt.float16), Spec((4096,), dt.float16)), {"eps": 1e-5}),
    Sample("rms_norm", (Spec((1024, 4096), dt.float32), Spec((4096,), dt.float32)), {"eps": 1e-5}),
    Sample("layer_norm", (Spec((4096, 256), dt.float32),), {"eps": 1e-5}),
]


@computes("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
def run(call: Call) -> tuple[Array, ...]:
    """Compute a norm in the dtype of the results."""
    b, spec = call.builder, call.outputs[0]
    results = tuple(b.result(output) for output in call.outputs)
    if math.prod(spec.shape) == 0:
        return results
    constants_given = {
        operand.name: cast(b, b.placed(array), spec.dtype)
        for operand, array in zip(call.op.operands, call.inputs, strict=False)
        if array is not None
    }
    problem = RowProblem(spec.dtype, math.prod(spec.shape[:-1]), spec.shape[-1])
    task = _task(call, constants_given, results)
    family.run(b, problem, task, op=task.op)
    return results


def _task(call: Call, given: Mapping[str, Array], results: Sequence[Array]) -> RowTask:
    """The arguments of norm.h's kernels; function constants leave out those that are None."""
    b, name = call.builder, call.op.name
    added, stride = rows.by_rows(b, *(given[key] for key in ("x", "residual") if key in given))
    arrays = {
        **dict(zip(("x", "residual"), added, strict=False)),
        **{key: contiguous(b, given[key]) for key in ("weight", "bias") if key in given},
        **dict(zip(("out", "total"), results, strict=False)),
    }
    buffers = [
        buffer_of(arrays[key]) if key in arrays else None
        for key in ("x", "residual", "weight", "bias", "out", "total")
    ]
    residual, weight, bias = (buffer is not None for buffer in buffers[1:4])
    constants = NormConstants(
        CENTRED=name.endswith("layer_norm"), RESIDUAL=residual, WEIGHT=weight, BIAS=bias
    )
    eps = packed(FLOAT, call.attributes["eps"])
    loads = rows.loads(stride, *arrays.values())
    return RowTask("norm", name, constants, [*buffers, eps], stride, loads)
