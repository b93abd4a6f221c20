"""How much arithmetic an operation is: multiplications and additions on floating numbers, roughly.

Functions such as exp count as one. It is what rooflines are drawn from, not a promise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lbrx.ops.table import Op, OpFamily, Spec

# For each element of the first operand.
_EACH = {
    OpFamily.REDUCTION: 1,
    OpFamily.SOFTMAX: 4,
    OpFamily.NORM: 6,
    OpFamily.ROPE: 6,
    OpFamily.SORTING: 1,
}
_NONE = (OpFamily.MOVEMENT, OpFamily.INDEXING, OpFamily.RANDOM)


def operations(op: Op, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> float:
    """Of one call."""
    size = float(math.prod(outputs[0].shape))
    if op.family in _NONE:
        return 0.0
    if op.family is OpFamily.MATMUL:
        return 2.0 * sum(math.prod(out.shape) for out in outputs) * inputs[0].shape[-1]
    if op.family is OpFamily.CONVOLUTION:
        return 2.0 * size * math.prod(inputs[1].shape[1:])
    if op.family is OpFamily.ATTENTION:
        # Scores and their products with the values: two each.
        width = inputs[0].shape[-1] + outputs[0].shape[-1]
        return 2.0 * math.prod(inputs[0].shape[:-1]) * inputs[1].shape[-2] * width
    if op.family in _EACH:
        return float(_EACH[op.family] * math.prod(inputs[0].shape))
    return size
