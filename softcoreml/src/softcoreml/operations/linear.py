"""Matrix products. float16 operands are multiplied and summed in float32."""

from __future__ import annotations

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import Array, define, require_size, widen
from softcoreml.operations.widening import widen_weight

_EQUATIONS = ("nchw,nwhu->nchu", "chw,whr->chr")


@define("linear")
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x (..., in) by the transpose of weight (out, in), plus bias (out)."""
    x, weight = widen(x), widen_weight(weight)
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise ModelError(f"x {list(x.shape)} does not fit weight {list(weight.shape)} (out, in)")
    require_size((*x.shape[:-1], weight.shape[0]), "weight")
    product = np.matmul(x, weight.T)
    if bias is None:
        return np.asarray(product)
    if np.shape(bias) != (weight.shape[0],):
        raise ModelError(f"bias {list(np.shape(bias))} needs {weight.shape[0]} values")
    return np.asarray(product + widen(bias))


@define("matmul")
def matmul(x: Array, y: Array, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    """NumPy's matmul; a transposition concerns the last two axes and leaves vectors alone."""
    x, y = widen_weight(x), widen_weight(y)
    if transpose_x and x.ndim > 1:
        x = x.swapaxes(-1, -2)
    if transpose_y and y.ndim > 1:
        y = y.swapaxes(-1, -2)
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    require_size((*batch, *x.shape[-2:-1], *(y.shape[-1:] if y.ndim > 1 else ())), "x and y")
    return np.asarray(np.matmul(x, y))


def _canonical(equation: str) -> str:
    """An equation with its letters renamed in order of their appearance."""
    names: dict[str, str] = {}
    for letter in equation:
        if letter.isalpha():
            names.setdefault(letter, chr(ord("a") + len(names)))
    return "".join(names.get(letter, letter) for letter in equation if not letter.isspace())


@define("einsum")
def einsum(values: tuple[Array, ...], equation: str) -> Array:
    """Products of matrices that lie on the axes -3 and -1; the others are batches and broadcast."""
    if len(equation) > 64 or _canonical(equation) not in [_canonical(one) for one in _EQUATIONS]:
        raise ModelError(f"equation {equation[:64]!r} is not of the form {' or '.join(_EQUATIONS)}")
    if len(values) != 2:
        raise ModelError(f"values must hold two tensors, not {len(values)}")
    x, y = widen(values[0]), widen(values[1])
    rank = len(equation.split(",")[0].strip())
    if x.ndim != rank or y.ndim != rank:
        raise ModelError(f"values {list(x.shape)} and {list(y.shape)} must have rank {rank}")
    left, right = x.swapaxes(-3, -2), y.swapaxes(-3, -2)
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    require_size((*batch, left.shape[-2], right.shape[-1]), "values")
    return np.asarray(np.matmul(left, right).swapaxes(-3, -2))
