"""Products of rows with the matrices of the experts that the rows are sent to."""

from __future__ import annotations

import numpy as np

from lbrx import quant
from lbrx.arrays.dtype import Dtype
from lbrx.arrays.shape import Shape
from lbrx.errors import DtypeError, ShapeError
from lbrx.ops import rules
from lbrx.ops.quantized import checked_shape, info_of, weights_of
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op


def _stack_shape(parts: rules.Shapes, scheme: str | None) -> Shape:
    """The shape of a stack of matrices, from those of its stored arrays."""
    shape = rules.first(parts) if scheme is None else checked_shape(parts, quant.find(scheme))
    if len(shape) != 3:
        raise ShapeError(f"experts of shape {shape} are not a stack of matrices: give three axes")
    return shape


def _shapes(shapes: rules.Shapes, attributes: Attributes) -> list[Shape]:
    x, chosen = (rules.first(shapes[i:]) for i in range(2))
    if len(chosen) != 2 or x[:-1] not in (chosen[:1], chosen):
        raise ShapeError(
            f"x {x} has no row for each token or choice of the indices {chosen}: give indices "
            "(tokens, used) and x (tokens, K) or (tokens, used, K)"
        )
    stacks = [
        _stack_shape(parts, attributes["scheme"])
        for parts in weights_of(shapes[2:], attributes["count"])
    ]
    for experts, _, depth in stacks:
        if depth != x[-1]:
            raise ShapeError(f"x {x} and experts of {depth} columns differ: give equal sizes")
        if not experts or not depth:
            raise ShapeError("the stack of experts is empty: give at least one, with columns")
    return [(*chosen, rows) for _, rows, _ in stacks]


def _types(values: Dtype, attributes: Attributes) -> tuple[Dtype, ...]:
    if not values.is_float:
        raise DtypeError(f"experts multiply floating values, not {values}: cast them")
    types: tuple[Dtype, ...] = (values,) * attributes["count"]
    return types


@op(OpFamily.MATMUL, _shapes, _types)
def expert_matmul(
    x: NumpyArray,
    indices: NumpyArray,
    *codes: NumpyArray,
    scheme: str | None = None,
    count: int = 1,
) -> tuple[NumpyArray, ...]:
    """x @ expert.T for the experts that each row is sent to, for each of `count` stacks of experts.

    indices (tokens, used) are the numbers of the experts that each token uses; x is (tokens, K), or
    (tokens, used, K) with a row for each use. A stack has values of shape (experts, N, K), and its
    result is (tokens, used, N) in the dtype of x. codes holds the stored arrays of each stack one
    after the other: those of a quantization scheme, or without one a floating array. Experts that
    no token uses are not read. Numbers beyond the experts stand for the nearest one.
    """
    results = []
    tokens, used = indices.shape
    rows = np.broadcast_to(x[:, None] if x.ndim == 2 else x, (tokens, used, x.shape[-1]))
    for parts in weights_of(codes, count):
        stack = parts[0]
        if scheme is not None:
            known = quant.find(scheme)
            stack = quant.dequantize(stack, info_of(known, *(*parts[1:], None, None)[:2]))
        result = np.empty((tokens, used, stack.shape[1]), x.dtype)
        chosen = np.clip(indices, 0, len(stack) - 1)
        for expert in np.unique(chosen):
            here = chosen == expert
            result[here] = rows[here] @ stack[expert].T.astype(x.dtype)
        results.append(result)
    return tuple(results)
