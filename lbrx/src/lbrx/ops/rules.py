"""Shape and dtype rules that several operations use."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.arrays import dtype as dt
from lbrx.arrays import shape as sh
from lbrx.arrays.dtype import Dtype, Kind
from lbrx.arrays.shape import Shape
from lbrx.errors import DtypeError, ShapeError
from lbrx.ops.table import Attributes, ShapeRule

Shapes = Sequence[Shape | None]


def broadcast(shapes: Shapes, _: Attributes) -> Shape:
    """The shape to which all operands that are given broadcast."""
    return sh.broadcast(*(shape for shape in shapes if shape is not None))


def first(shapes: Shapes) -> Shape:
    """The shape of the first operand, which may not be optional."""
    assert shapes[0] is not None
    return shapes[0]


def along_axis(shapes: Shapes, attributes: Attributes) -> Shape:
    """The shape of the first operand, after checking that it has the axis."""
    sh.normalize_axis(attributes["axis"], len(first(shapes)))
    return first(shapes)


def reduced(shapes: Shapes, attributes: Attributes) -> Shape:
    """The shape without the reduced axes, or with size 1 for them if `keepdims`."""
    return sh.reduced(first(shapes), attributes["axis"], attributes["keepdims"])


def reduced_nonempty(shapes: Shapes, attributes: Attributes) -> Shape:
    """The rule of reductions that are not defined over empty axes, such as max."""
    shape = first(shapes)
    axes = sh.normalize_axes(attributes["axis"], len(shape))
    if any(shape[axis] == 0 for axis in axes):
        raise ShapeError(f"axes {axes} of shape {shape} are empty: give axes with elements")
    return reduced(shapes, attributes)


def normalized(shapes: Shapes, _: Attributes) -> Shape:
    """The shape of x, whose last axis is normalised; weight and bias have the size of that axis."""
    shape = first(shapes)
    if not shape:
        raise ShapeError("a scalar has no last axis to normalise: reshape it to (1,)")
    for other in shapes[1:]:
        if other is not None and other != shape[-1:]:
            raise ShapeError(f"weight or bias has shape {other}: give {shape[-1:]}")
    return shape


def normalized_sum(shapes: Shapes, attributes: Attributes) -> Shape:
    """The shape of x and residual, which must be equal, with the checks of `normalized`."""
    shape, residual = first(shapes), first(shapes[1:])
    if residual != shape:
        raise ShapeError(f"x and residual have shapes {shape} and {residual}: expand one")
    return normalized([shape, *shapes[2:]], attributes)


def from_attribute(_: Shapes, attributes: Attributes) -> Shape:
    shape: Shape = attributes["shape"]
    return shape


def elementwise(count: int) -> ShapeRule:
    """The shape rule of an elementwise operation with `count` operands, which broadcast."""
    return broadcast if count > 1 else (lambda shapes, _: first(shapes))


def same(promoted: Dtype, _: Attributes) -> Dtype:
    """The promoted dtype."""
    return promoted


def boolean(_: Dtype, __: Attributes) -> Dtype:
    """bool."""
    return dt.bool_


def index(_: Dtype, __: Attributes) -> Dtype:
    """int64."""
    return dt.int64


def numeric(promoted: Dtype, _: Attributes) -> Dtype:
    """The promoted dtype; bool raises DtypeError."""
    if promoted is dt.bool_:
        raise DtypeError("bool is not numeric: cast to a numeric dtype, or use ^ or ~")
    return promoted


def integral(promoted: Dtype, _: Attributes) -> Dtype:
    """The promoted dtype; a floating dtype raises DtypeError."""
    if promoted.is_float:
        raise DtypeError(f"{promoted} is not an integer dtype: cast to an integer dtype or to bool")
    return promoted


def shiftable(promoted: Dtype, attributes: Attributes) -> Dtype:
    """The promoted dtype; bool and floating dtypes raise DtypeError."""
    return integral(numeric(promoted, attributes), attributes)


def floating(promoted: Dtype, _: Attributes) -> Dtype:
    """The promoted dtype if it is floating, else float32."""
    return promoted if promoted.is_float else dt.float32


def not_half(promoted: Dtype, attributes: Attributes) -> Dtype:
    """Floating, but not float16 and bfloat16: kernels hold those as float32."""
    if promoted in (dt.float16, dt.bfloat16):
        raise DtypeError(f"{promoted} is computed in float32: cast to float32")
    return floating(promoted, attributes)


def floating_pair(promoted: Dtype, attributes: Attributes) -> tuple[Dtype, Dtype]:
    """Two results of the same floating dtype."""
    return floating(promoted, attributes), floating(promoted, attributes)


def accumulated(promoted: Dtype, _: Attributes) -> Dtype:
    """The promoted dtype if it is floating; sums of integers have 64 bits, as in numpy."""
    if promoted.is_float:
        return promoted
    return dt.uint64 if promoted.kind is Kind.UINT else dt.int64


def from_dtype(_: Dtype, attributes: Attributes) -> Dtype:
    dtype: Dtype = attributes["dtype"]
    return dtype
