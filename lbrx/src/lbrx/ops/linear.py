"""Matrix products, optionally followed by a bias and an activation."""

from __future__ import annotations

import numpy as np

from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.errors import DtypeError, ShapeError
from lbrx.ops import activation as act
from lbrx.ops import rules
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, Reference, op

# The activations of `matmul` by name.
ACTIVATIONS: dict[str, Reference] = {
    "relu": act.relu,
    "gelu": act.gelu,
    "gelu_tanh": lambda x: act.gelu(x, approximate="tanh"),
    "silu": act.silu,
    "sigmoid": act.sigmoid,
    "tanh": act.tanh,
}


def product_shape(shapes: rules.Shapes, _: Attributes) -> Shape:
    """numpy's rule: a vector on the left is a row, on the right a column; other axes broadcast."""
    a, b = rules.first(shapes), rules.first(shapes[1:])
    if not a or not b:
        raise ShapeError("a scalar has no rows or columns: use * instead")
    rows, columns = a[-2:-1], (b[-1:] if len(b) > 1 else ())
    inner_a, inner_b = a[-1], b[max(len(b) - 2, 0)]
    if inner_a != inner_b:
        raise ShapeError(
            f"the inner sizes of {a} and {b} differ, {inner_a} and {inner_b}: transpose one"
        )
    bias = shapes[2] if len(shapes) > 2 else None
    if bias is not None and not columns:
        raise ShapeError(f"y of shape {b} is a vector, which takes no bias: add it with +")
    if bias is not None and bias != columns:
        raise ShapeError(f"the bias has shape {bias}: give {columns}, or add it with +")
    return sh.broadcast(a[:-2], b[:-2]) + rows + columns


def product_dtype(promoted: Dtype, attributes: Attributes) -> Dtype:
    name = attributes["activation"]
    if name is not None and name not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"activation={name!r} is not an activation of matmul: give None, {known}")
    if name is not None and not promoted.is_float:
        raise DtypeError(
            f"activation={name!r} of {promoted} products: cast x or y to a floating dtype"
        )
    return promoted


@op(OpFamily.MATMUL, product_shape, product_dtype)
def matmul(
    x: NumpyArray, y: NumpyArray, bias: NumpyArray | None = None, *, activation: str | None = None
) -> NumpyArray:
    """activation(x @ y + bias) over the last two axes; leading axes broadcast.

    x is (..., M, K) and y (..., K, N): the result is (..., M, N) in the promoted dtype. As in
    numpy, a vector on the left is a row and on the right a column, and that axis is left out of
    the result. bias has shape (N,). activation is None, "relu", "gelu", "gelu_tanh", "silu",
    "sigmoid" or "tanh", and needs a floating dtype. float16 and bfloat16 are accumulated in
    float32 and rounded once, after the activation. Integers wrap on overflow.

    Inner sizes that differ, scalars, and a bias of another shape raise ShapeError.

    >>> lbrx.tensor([[1.0, 2.0]]).matmul(lbrx.tensor([[3.0], [4.0]]), [0.5]).tolist()
    [[11.5]]
    """
    product = np.matmul(x, y)
    if bias is not None:
        product = product + bias
    return np.asarray(ACTIVATIONS[activation](product) if activation else product)
