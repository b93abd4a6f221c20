"""Matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx import shape as sh
from lbrx.errors import ShapeError
from lbrx.ops import rules
from lbrx.ops.table import Attributes, Family, op
from lbrx.shape import Shape

Array = NDArray[Any]


def product_shape(shapes: rules.Shapes, _: Attributes) -> Shape:
    """numpy's rule: vectors are rows on the left and columns on the right, other axes broadcast."""
    a, b = rules.first(shapes), rules.first(shapes[1:])
    if not a or not b:
        raise ShapeError("a scalar has no rows or columns: use * instead")
    rows, columns = a[-2:-1], (b[-1:] if len(b) > 1 else ())
    inner_a, inner_b = a[-1], b[max(len(b) - 2, 0)]
    if inner_a != inner_b:
        raise ShapeError(
            f"the inner sizes of {a} and {b} differ, {inner_a} and {inner_b}: transpose one"
        )
    return sh.broadcast(a[:-2], b[:-2]) + rows + columns


@op(Family.MATMUL, product_shape, rules.same)
def matmul(x: Array, y: Array) -> Array:
    """The matrix product over the last two axes; leading axes broadcast."""
    return np.asarray(np.matmul(x, y))
