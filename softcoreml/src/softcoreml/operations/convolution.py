"""Convolutions as products of matrices: windows become columns, group by group.

float16 operands are multiplied and summed in float32, and the bias is added before rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import (
    Array,
    along,
    by_channel,
    define,
    integers,
    positive,
    require_rank,
    require_size,
    widen,
)
from softcoreml.operations.widening import widen_weight
from softcoreml.operations.windows import Windows, windows_of

COLUMN_BYTES = 1 << 25
"""Bytes of columns that are copied at a time: larger convolutions go by blocks of rows."""


def _convolve(x: Array, weight: Array, windows: Windows, groups: int) -> Array:
    """x (batch, channels, spatial...), weight (out, channels / groups, kernel...), in float32."""
    view = windows.view(windows.padded(x, 0))
    rank = len(windows.outputs)
    out, inner = weight.shape[0], math.prod(weight.shape[1:])
    matrices = weight.reshape(groups, out // groups, inner)
    result = np.empty((len(x), groups, out // groups, *windows.outputs), dtype=np.float32)
    row_bytes = 4 * groups * inner * math.prod(windows.outputs[1:])
    block = max(1, COLUMN_BYTES // max(1, row_bytes))
    order = (0, *range(1 + rank, 1 + 2 * rank), *range(1, 1 + rank))
    for image in range(len(x)):
        for first in range(0, windows.outputs[0], block):
            part = view[image][:, first : first + block]
            shape = (groups, out // groups, *part.shape[1 : 1 + rank])
            columns = part.transpose(order).reshape(groups, inner, -1)
            result[image, :, :, first : first + block] = (matrices @ columns).reshape(shape)
    return result.reshape(len(x), out, *windows.outputs)


def _with_bias(result: Array, bias: Array | None) -> Array:
    if bias is None:
        return result
    return np.asarray(result + by_channel(bias, result, "bias"))


@define("conv")
def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    strides: Array | None = None,
    pad_type: str = "valid",
    pad: Array | None = None,
    dilations: Array | None = None,
    groups: Any = 1,
) -> Array:
    """x (batch, in, spatial...), weight (out, in / groups, kernel...): 1 to 3 spatial axes."""
    x, weight = widen(x), widen_weight(weight)
    require_rank(x, "x", 3, 4, 5)
    require_rank(weight, "weight", x.ndim)
    parts = int(groups)
    if parts < 1 or x.shape[1] != weight.shape[1] * parts or weight.shape[0] % parts:
        raise ModelError(
            f"groups {parts} do not fit x {list(x.shape)} and weight {list(weight.shape)}"
        )
    kernel = weight.shape[2:]
    windows = windows_of(x.shape[2:], kernel, strides, dilations, pad_type, pad)
    require_size((len(x), weight.shape[0], *windows.outputs), "x and weight")
    return _with_bias(_convolve(x, weight, windows, parts), bias)


@define("conv_quantized")
def conv_quantized(
    x: Array,
    weight: Array,
    quantization_type: str,
    quant_scale: Array,
    quant_bias: Array,
    nbits: Any = 8,
    bias: Array | None = None,
    **others: Any,
) -> Array:
    """A convolution whose weights are weight * quant_scale + quant_bias, for each output channel.

    The type "lut" is refused: MIL defines no input that holds its table.
    """
    if quantization_type != "linear":
        raise ModelError(f"quantization_type {quantization_type!r} has no table: only linear works")
    if not 1 <= int(nbits) <= 8:
        raise ModelError(f"nbits {nbits} must lie between 1 and 8")
    rank = np.ndim(weight)
    scale, shift = (along(widen(one).reshape(-1), 0, rank) for one in (quant_scale, quant_bias))
    real = np.asarray(weight).astype(np.float32) * scale + shift
    moved = None if bias is None else np.asarray(bias).astype(np.float32)
    return np.asarray(conv(x=x, weight=real, bias=moved, **others))


def _extent(
    length: int, stride: int, size: int, pad_type: str, pads: tuple[int, int], wanted: int | None
) -> tuple[int, int]:
    """Where the output of one axis begins in the sum of all windows, and its length."""
    whole = (length - 1) * stride + size
    if pad_type == "same":
        count = length * stride if wanted is None else wanted
        return max(0, whole - count) // 2, count
    first = pads[0] if pad_type == "custom" else 0
    last = pads[1] if pad_type == "custom" else 0
    return first, whole - first - last if wanted is None else wanted


def _transposed_windows(
    x: Array,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pad_type: str,
    pad: Array | None,
    wanted: tuple[int, ...] | None,
) -> list[tuple[int, int]]:
    rank = len(kernel)
    if pad_type not in ("valid", "same", "custom"):
        raise ModelError(f"pad_type {pad_type!r} is not one of valid, same and custom")
    pads = (0,) * (2 * rank) if pad is None else integers(pad, "pad", 2 * rank)
    if min(pads) < 0:
        raise ModelError(f"pad {list(pads)} must not be negative")
    extents = [
        _extent(
            x.shape[2 + axis],
            strides[axis],
            (kernel[axis] - 1) * dilations[axis] + 1,
            pad_type,
            (pads[2 * axis], pads[2 * axis + 1]),
            None if wanted is None else wanted[axis],
        )
        for axis in range(rank)
    ]
    if any(count < 1 for _, count in extents):
        raise ModelError(f"pad {list(pads)} leaves nothing of the output")
    return extents


@define("conv_transpose")
def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    pad: Array | None = None,
    output_shape: Array | None = None,
    pad_type: str = "valid",
    strides: Array | None = None,
    dilations: Array | None = None,
    groups: Any = 1,
) -> Array:
    """x (batch, in, spatial...), weight (in, out / groups, kernel...): the gradient of conv.

    Padding crops the sum of all windows. An output_shape that reaches beyond it holds the bias.
    """
    x, weight = widen(x), widen_weight(weight)
    require_rank(x, "x", 3, 4, 5)
    require_rank(weight, "weight", x.ndim)
    parts, rank = int(groups), x.ndim - 2
    if parts < 1 or x.shape[1] != weight.shape[0] or x.shape[1] % parts or 0 in x.shape[2:]:
        raise ModelError(
            f"groups {parts} do not fit x {list(x.shape)} and weight {list(weight.shape)}"
        )
    ones = (1,) * rank
    steps = positive(ones if strides is None else integers(strides, "strides", rank), "strides")
    spread = ones if dilations is None else integers(dilations, "dilations", rank)
    positive(spread, "dilations")
    wanted = None
    if output_shape is not None:
        wanted = positive(integers(output_shape, "output_shape", rank + 2), "output_shape")[2:]
    kernel = weight.shape[2:]
    extents = _transposed_windows(x, kernel, steps, spread, str(pad_type).lower(), pad, wanted)
    return _with_bias(_spread(x, weight, parts, steps, spread, extents), bias)


def _spread(
    x: Array,
    weight: Array,
    groups: int,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    extents: list[tuple[int, int]],
) -> Array:
    """Adds every element of the kernel's product to its places in the output."""
    batch, channels, *spatial = x.shape
    kernel, out = weight.shape[2:], weight.shape[1] * groups
    whole = [
        max((length - 1) * stride + (size - 1) * by + 1, first + count)
        for length, stride, size, by, (first, count) in zip(
            spatial, strides, kernel, dilations, extents, strict=True
        )
    ]
    require_size((batch, out, *whole), "strides, dilations and output_shape")
    result = np.zeros((batch, out, *whole), dtype=np.float32)
    columns = x.reshape(batch, groups, channels // groups, -1)
    matrices = weight.reshape(groups, channels // groups, out // groups, *kernel)
    for place in np.ndindex(*kernel):
        matrix = matrices[(..., *place)].swapaxes(1, 2)
        where = [
            slice(one * by, one * by + (length - 1) * stride + 1, stride)
            for one, by, length, stride in zip(place, dilations, spatial, strides, strict=True)
        ]
        product = np.matmul(matrix, columns).reshape(batch, out, *spatial)
        result[(slice(None), slice(None), *where)] += product
    inside = [slice(first, first + count) for first, count in extents]
    return result[(slice(None), slice(None), *inside)]
