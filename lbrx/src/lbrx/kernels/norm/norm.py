"""Layer norm and RMS norm over the last axis, also of a sum that is returned as well."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

from lbrx import dtype as dt
from lbrx.kernels import rows
from lbrx.kernels.arrays import buffer_of, empty, placed
from lbrx.kernels.elementwise import cast, contiguous
from lbrx.kernels.registry import Call, KernelFamily, Sample, computes
from lbrx.kernels.rows import RowProblem, RowTask
from lbrx.ops import Spec
from lbrx.storage import Array

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
    gpu, spec = call.gpu, call.outputs[0]
    results = tuple(empty(gpu, output) for output in call.outputs)
    if math.prod(spec.shape) == 0:
        return results
    given = {
        operand.name: cast(gpu, placed(gpu, array), spec.dtype)
        for operand, array in zip(call.op.operands, call.inputs, strict=False)
        if array is not None
    }
    problem = RowProblem(spec.dtype, math.prod(spec.shape[:-1]), spec.shape[-1])
    family.run(gpu, problem, _task(call, given, results))
    return results


def _task(call: Call, given: Mapping[str, Array], results: Sequence[Array]) -> RowTask:
    """The arguments of norm.h's kernels; function constants leave out those that are None."""
    gpu, name = call.gpu, call.op.name
    added, stride = rows.by_rows(gpu, *(given[key] for key in ("x", "residual") if key in given))
    arrays = {
        **dict(zip(("x", "residual"), added, strict=False)),
        **{key: contiguous(gpu, given[key]) for key in ("weight", "bias") if key in given},
        **dict(zip(("out", "total"), results, strict=False)),
    }
    buffers = [
        buffer_of(arrays[key]) if key in arrays else None
        for key in ("x", "residual", "weight", "bias", "out", "total")
    ]
    constants = {0: name.endswith("layer_norm")}
    constants |= {i: buffer is not None for i, buffer in enumerate(buffers[1:4], 1)}
    eps = struct.pack("f", call.attributes["eps"])
    loads = rows.loads(stride, *arrays.values())
    return RowTask("norm", name, constants, [*buffers, eps], stride, loads)
