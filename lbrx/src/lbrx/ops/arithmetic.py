"""Estimated number of floating-point operations of a call, for roofline figures.

A multiplication and an addition count as one each, and so does a function such as exp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lbrx.ops.table import Op, OpFamily, Spec

_PER_INPUT_ELEMENT = {
    OpFamily.REDUCTION: 1,
    OpFamily.SOFTMAX: 4,
    OpFamily.NORM: 6,
    OpFamily.ROPE: 6,
    OpFamily.SORTING: 1,
}
_NO_ARITHMETIC = (OpFamily.MOVEMENT, OpFamily.INDEXING, OpFamily.RANDOM)


def operations(op: Op, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> float:
    """The estimate for one call with these inputs and outputs."""
    size = float(math.prod(outputs[0].shape))
    if op.family in _NO_ARITHMETIC:
        return 0.0
    if op.family is OpFamily.MATMUL:
        return 2.0 * sum(math.prod(out.shape) for out in outputs) * inputs[0].shape[-1]
    if op.family is OpFamily.CONVOLUTION:
        return 2.0 * size * math.prod(inputs[1].shape[1:])
    if op.family is OpFamily.ATTENTION:
        # The scores (query @ key) and their product with the values, each a multiply and an add.
        width = inputs[0].shape[-1] + outputs[0].shape[-1]
        return 2.0 * math.prod(inputs[0].shape[:-1]) * inputs[1].shape[-2] * width
    if op.family in _PER_INPUT_ELEMENT:
        return float(_PER_INPUT_ELEMENT[op.family] * math.prod(inputs[0].shape))
    return size
