"""Operations on quantized values: encoding, decoding, and products with quantized weights.

Quantized values are one to three operands. `codes` are uint8 rows of GGUF blocks, or uint32 rows of
packed words. Packed words come with `scales` and, where the scheme has them, `offsets`: its zero
points or biases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from lbrx import quant
from lbrx.arrays import dtype as dt
from lbrx.arrays.dtype import Dtype, DtypeLike
from lbrx.arrays.shape import Shape
from lbrx.errors import DtypeError, QuantizationError, ShapeError
from lbrx.ops import rules
from lbrx.ops.table import Attributes, NumpyArray, OpFamily, op
from lbrx.quant import QuantizationInfo, Scheme

T = TypeVar("T")
_OPERAND_OF_FIELD = {"scales": "scales", "zero_points": "offsets", "biases": "offsets"}


def stored_names(scheme: Scheme) -> tuple[str, ...]:
    """The names of a scheme's stored arrays in the order of the operands, `data` (codes) first."""
    return scheme.fields if scheme.planar else ("data",)


def values_shape(scheme: Scheme, codes: Shape) -> Shape:
    """The shape of the values, given the shape of their codes."""
    row = math.prod(scheme.layout["data"].shape) if scheme.planar else scheme.block_bytes
    if not codes or codes[-1] % row:
        raise ShapeError(
            f"{scheme.name} codes of shape {codes} do not end with complete blocks: "
            f"give a last axis that is a multiple of {row}"
        )
    return (*codes[:-1], codes[-1] // row * scheme.elements)


def checked_shape(shapes: rules.Shapes, scheme: Scheme) -> Shape:
    """The shape of the values; raises if an array is missing or does not fit the codes."""
    shape = values_shape(scheme, rules.first(shapes))
    names = stored_names(scheme)
    padded = [*shapes, None, None][: len(names)]
    if sum(other is not None for other in shapes) != len(names) or None in padded:
        raise QuantizationError(f"{scheme.name} is stored as {', '.join(names)}: give all of them")
    for name, other in zip(names[1:], padded[1:], strict=True):
        expected = scheme.part_shape(name, shape)
        if other != expected:
            raise ShapeError(
                f"{name} of shape {other} do not fit {scheme.name} values of shape {shape}: "
                f"give {expected}"
            )
    return shape


def info_of(
    scheme: Scheme, scales: NumpyArray | None, offsets: NumpyArray | None
) -> QuantizationInfo[NumpyArray]:
    arrays = {"scales": scales, "offsets": offsets}
    fields = {name: arrays[_OPERAND_OF_FIELD[name]] for name in stored_names(scheme)[1:]}
    return quant.describe(scheme, **{n: a for n, a in fields.items() if a is not None})


def _decoded_shape(shapes: rules.Shapes, attributes: Attributes) -> Shape:
    return checked_shape(shapes, quant.find(attributes["scheme"]))


def _floating_only(dtype: Dtype) -> Dtype:
    if not dtype.is_float:
        raise DtypeError(f"quantized values are floating, not {dtype}: cast to a floating dtype")
    return dtype


@op(
    OpFamily.QUANTIZATION,
    _decoded_shape,
    lambda _, attributes: _floating_only(attributes["dtype"]),
)
def decode_blocks(
    codes: NumpyArray,
    scales: NumpyArray | None = None,
    offsets: NumpyArray | None = None,
    *,
    scheme: str,
    dtype: DtypeLike = dt.float32,
) -> NumpyArray:
    """The values of quantized codes, in a floating dtype (float32 by default).

    codes are uint8 rows of blocks, or uint32 rows of packed words with the scales and offsets
    that the scheme has. The last axis becomes as long as the values; the other axes stay. Arrays
    that do not fit the scheme raise ShapeError or QuantizationError.
    """
    known = quant.find(scheme)
    return quant.dequantize(codes, info_of(known, scales, offsets))


def _encoded_shapes(shapes: rules.Shapes, attributes: Attributes) -> list[Shape]:
    scheme, shape = quant.find(attributes["scheme"]), rules.first(shapes)
    scheme.blocks(shape)  # raises for a last axis that is not complete blocks
    if scheme.planar:
        return [scheme.part_shape(name, shape) for name in stored_names(scheme)]
    return [(*shape[:-1], shape[-1] // scheme.elements * scheme.block_bytes)]


def encoded_types(scheme: Scheme, values: Dtype) -> tuple[Dtype, ...]:
    """The dtype of each stored array."""
    if not scheme.planar:
        return (dt.uint8,)
    kept = values if scheme.keeps_dtype else None
    others = [kept or dt.parse(scheme.layout[n].base) for n in stored_names(scheme)[1:]]
    return dt.uint32, *others


@op(
    OpFamily.QUANTIZATION,
    _encoded_shapes,
    lambda values, attributes: encoded_types(
        quant.find(attributes["scheme"]), _floating_only(values)
    ),
)
def encode_blocks(x: NumpyArray, *, scheme: str) -> tuple[NumpyArray, ...]:
    """The values quantized with a scheme: a tuple of codes and, where it has them, scales and
    zero points or biases.

    x has a floating dtype, and its last axis is a multiple of the scheme's block length.
    """
    known = quant.find(scheme)
    data, info = quant.quantize(x, known)
    return data, *(info.arrays[name] for name in stored_names(known)[1:])


def weights_of(stored: Sequence[T], count: int) -> list[Sequence[T]]:
    """The stored arrays of each of `count` weights, from one sequence of all of them."""
    each = len(stored) // count
    return [stored[i * each : (i + 1) * each] for i in range(count)]


def _product_shapes(shapes: rules.Shapes, attributes: Attributes) -> list[Shape]:
    scheme, x = quant.find(attributes["scheme"]), rules.first(shapes)
    weights = [
        checked_shape(parts, scheme) for parts in weights_of(shapes[1:], attributes["count"])
    ]
    for weight in weights:
        if len(weight) != 2:
            raise ShapeError(f"a weight of shape {weight} is not a matrix: index or reshape it")
        if not x or x[-1] != weight[1]:
            raise ShapeError(
                f"the last axes of x {x} and of the weight {weight} differ: give equal sizes"
            )
    return [(*x[:-1], weight[0]) for weight in weights]


@op(
    OpFamily.MATMUL,
    _product_shapes,
    lambda values, attributes: (_floating_only(values),) * attributes["count"],
)
def quantized_matmul(
    x: NumpyArray, *codes: NumpyArray, scheme: str, count: int = 1
) -> tuple[NumpyArray, ...]:
    """x @ weight.T for each of `count` quantized weights of one scheme.

    x is (..., K) of a floating dtype; each weight has values of shape (N, K), and its result is
    (..., N) in the dtype of x. codes holds all stored arrays of the first weight (codes, scales,
    offsets), then those of the second, and so on.
    """
    known = quant.find(scheme)
    weights = [
        quant.dequantize(parts[0], info_of(known, *(*parts[1:], None, None)[:2]))
        for parts in weights_of(codes, count)
    ]
    return tuple(np.asarray(np.matmul(x, weight.T)) for weight in weights)
