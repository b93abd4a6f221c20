"""An operation: a numpy function, with rules for the shape and the dtype of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from lbrx.extension.errors import DtypeError, ShapeError
from lbrx.extension.operations import Attributes, OpFamily, differentiable, op
from lbrx.extension.tensors import Dtype, Shape, Tensor


def _shape(shapes: Sequence[Shape | None], _: Attributes) -> Shape:
    (shape,) = shapes
    if not shape or shape[-1] < 2:
        raise ShapeError(f"{shape} has rows without neighbours: give rows of two or more")
    return (*shape[:-1], shape[-1] - 1)


def _dtype(promoted: Dtype, _: Attributes) -> Dtype:
    if not promoted.is_float:
        raise DtypeError(f"{promoted} is not floating: cast to float32")
    return promoted


@op(OpFamily.OUTSIDE, _shape, _dtype)
def toy_neighbours(x: NDArray[Any]) -> NDArray[Any]:
    """The sums of each two neighbours in a row."""
    result: NDArray[Any] = x[..., 1:] + x[..., :-1]
    return result


def _gradient(g: Tensor) -> Tensor:
    whole = ((0, 0),) * (g.ndim - 1)
    return g.pad((*whole, (0, 1))) + g.pad((*whole, (1, 0)))


differentiable("toy_neighbours", x=_gradient)
