"""Layer norm and RMS norm over the last axis, and both of a sum that is returned too."""

from __future__ import annotations

import math
import struct

from lbrx.kernels import rows
from lbrx.kernels.arrays import buffer_of, empty, placed
from lbrx.kernels.elementwise import cast, contiguous
from lbrx.kernels.registry import Call, Family, computes
from lbrx.kernels.rows import Rows, Task
from lbrx.storage import Array

family: Family[Rows] = Family("norm")
rows.add_variants(family)


@computes("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
def run(call: Call) -> tuple[Array, ...]:
    gpu, spec, op = call.gpu, call.outputs[0], call.op
    results = tuple(empty(gpu, output) for output in call.outputs)
    if math.prod(spec.shape) == 0:
        return results
    given = {
        operand.name: cast(gpu, placed(gpu, array), spec.dtype)
        for operand, array in zip(op.operands, call.inputs, strict=False)
        if array is not None
    }
    x, stride = rows.by_rows(gpu, given["x"])
    residual = given.get("residual")
    if residual is not None:
        residual, other = rows.by_rows(gpu, residual)
        if other != stride:  # a task has one stride
            x, residual = contiguous(gpu, x), contiguous(gpu, residual)
            stride = spec.shape[-1]
    vectors = [given.get("weight"), given.get("bias")]
    operands = [x, residual, *(v and contiguous(gpu, v) for v in vectors), results[0]]
    operands.append(results[1] if residual else None)
    arguments = [array and buffer_of(array) for array in operands]
    constants = [op.name.endswith("layer_norm"), *(array is not None for array in operands[1:4])]
    task = Task(
        "norm",
        op.name,
        dict(enumerate(constants)),
        [*arguments, struct.pack("f", call.attributes["eps"])],
        stride,
    )
    length = spec.shape[-1]
    family.run(gpu, Rows(spec.dtype, math.prod(spec.shape[:-1]), length), task)
    return results
