"""Compressed weights: quantized, by tables, sparse, and their combinations.

Tensors of less than 8 bits arrive as one byte for each value. The operations of iOS 16 that take
packed bytes unpack them here: values follow each other from the lowest bit on, across bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import (
    Array,
    axis_of,
    define,
    dtype_named,
    integers,
    require_rank,
    require_size,
    widen,
)
from softcoreml.operations.quantization import scaled_difference

_TABLE_BITS = {2: 1, 4: 2, 16: 4, 64: 6, 256: 8}


def unpack(packed: Array, bits: int, count: int) -> Array:
    """`count` unsigned values of 1 to 8 bits from bytes, lowest bits first."""
    data = np.asarray(packed).view(np.uint8)
    if bits == 8:
        return data[:count]
    groups = -(-count // 8)  # of 8 values, in as many bytes as a value has bits
    words = np.zeros((groups, 8), dtype=np.uint8)
    padded = np.zeros(groups * bits, dtype=np.uint8)
    padded[: min(data.size, padded.size)] = data[: padded.size]
    words[:, :bits] = padded.reshape(groups, bits)
    shifts = np.arange(8, dtype=np.uint64) * np.uint64(bits)
    values = (words.view("<u8") >> shifts) & np.uint64(2**bits - 1)
    return np.asarray(values, dtype=np.uint8).reshape(-1)[:count]


def _unpacked(packed: Array, bits: int, shape: Array, name: str) -> tuple[Array, tuple[int, ...]]:
    """The values of a packed input, flat, and the shape that they have."""
    sizes = require_size(integers(shape, "shape"), "shape")
    count = math.prod(sizes)
    needed = -(-count * bits // 8)
    if np.ndim(packed) != 1 or np.size(packed) != needed:
        raise ModelError(f"{name} needs {needed} bytes for the shape {list(sizes)}")
    return unpack(packed, bits, count), sizes


@define("constexpr_affine_dequantize", "ios16")
def constexpr_affine_dequantize(
    quantized_data: Array, zero_point: Array, scale: Array, axis: Any
) -> Array:
    """scale * (data - zero point), with scalars or one value for each entry of an axis."""
    return scaled_difference(quantized_data, scale, zero_point, axis, "quantized_data")


@define("constexpr_cast", "ios16")
def constexpr_cast(source_val: Array, output_dtype: str) -> Array:
    return np.asarray(source_val).astype(dtype_named(output_dtype, "output_dtype"))


@define("constexpr_lut_to_dense", "ios16")
def constexpr_lut_to_dense_packed(indices: Array, lut: Array, shape: Array) -> Array:
    """Values of one table of 2, 4, 16, 64 or 256 entries, by packed indices."""
    bits = _TABLE_BITS.get(np.size(lut))
    if bits is None or np.ndim(lut) != 1:
        raise ModelError(f"lut {list(np.shape(lut))} must have 2, 4, 16, 64 or 256 entries")
    flat, sizes = _unpacked(indices, bits, shape, "indices")
    return np.asarray(lut)[flat].reshape(sizes)


def _placed(values: Array, mask: Array) -> Array:
    """Zeros with the values, in row-major order, where the mask is set."""
    require_rank(values, "nonzero_data", 1)
    chosen = np.asarray(mask) != 0
    if np.count_nonzero(chosen) != np.size(values):
        raise ModelError(
            f"mask has {np.count_nonzero(chosen)} set bits for {np.size(values)} values"
        )
    result = np.zeros(chosen.shape, dtype=np.asarray(values).dtype)
    result[chosen] = values
    return result


@define("constexpr_sparse_to_dense", "ios16")
def constexpr_sparse_to_dense_packed(nonzero_data: Array, mask: Array, shape: Array) -> Array:
    flat, sizes = _unpacked(mask, 1, shape, "mask")
    return _placed(nonzero_data, flat).reshape(sizes)


@define("constexpr_sparse_to_dense", "ios18")
def constexpr_sparse_to_dense(nonzero_data: Array, mask: Array) -> Array:
    return _placed(nonzero_data, mask)


def _blocks(sizes: tuple[int, ...], groups: tuple[int, ...], name: str) -> list[int]:
    """The length of a group along each axis."""
    fits = len(sizes) == len(groups) and all(groups)
    if not fits or any(size % count for size, count in zip(sizes, groups, strict=True)):
        raise ModelError(f"{name} {list(groups)} must divide the sizes {list(sizes)} axis by axis")
    return [size // count for size, count in zip(sizes, groups, strict=True)]


def _by_blocks(data: Array, scale: Array, offset: Array | None) -> Array:
    """scale * (data - offset), where one scale belongs to a block of data.

    The difference has the type of the scale; the product is float32, to be rounded once.
    """
    data, scale = np.asarray(data), np.asarray(scale)
    blocks = _blocks(data.shape, scale.shape, "scale")
    split = [one for pair in zip(scale.shape, blocks, strict=True) for one in pair]
    spread = [one for size in scale.shape for one in (size, 1)]
    values = data.astype(scale.dtype) if data.dtype.kind == "f" else data
    values = values.reshape(split).astype(np.float32)
    if offset is not None:
        if np.shape(offset) != scale.shape:
            raise ModelError(f"offset {list(np.shape(offset))} needs the shape of scale")
        values = values - widen(offset).reshape(spread)
        if np.asarray(offset).dtype.kind == "f":  # differences of integers are exact
            values = values.astype(scale.dtype).astype(np.float32)
    return np.asarray(values * widen(scale).reshape(spread)).reshape(data.shape)


@define("constexpr_blockwise_shift_scale", "ios18")
def constexpr_blockwise_shift_scale(
    data: Array, scale: Array, offset: Array | None = None
) -> Array:
    return _by_blocks(data, scale, offset)


@define("constexpr_sparse_blockwise_shift_scale", "ios18")
def constexpr_sparse_blockwise_shift_scale(
    data_mask: Array, nonzero_data: Array, scale: Array, offset: Array | None = None
) -> tuple[Array, Array]:
    """The mask, and the values of its set bits scaled as at their places in the dense tensor."""
    dense = _by_blocks(_placed(nonzero_data, data_mask), scale, offset)
    return np.asarray(data_mask), dense[np.asarray(data_mask) != 0]


def _looked_up(indices: Array, lut: Array, vector_axis: Any) -> Array:
    """Entries of tables (groups..., entries, vector): each index gives a vector along an axis."""
    indices, lut = np.asarray(indices), np.asarray(lut)
    if lut.ndim != indices.ndim + 2 or not indices.ndim:
        raise ModelError(f"lut {list(lut.shape)} needs two axes more than {list(indices.shape)}")
    entries, length = lut.shape[-2:]
    blocks = _blocks(indices.shape, lut.shape[:-2], "lut")
    if indices.size and int(indices.max()) >= entries:
        raise ModelError(f"indices reach {indices.max()} in tables of {entries} entries")
    flat = indices.astype(np.intp)
    weight = entries
    for axis in range(indices.ndim - 1, -1, -1):  # the number of the group, times its entries
        group = np.arange(indices.shape[axis]) // blocks[axis] * weight
        flat += group.reshape([-1 if one == axis else 1 for one in range(indices.ndim)])
        weight *= lut.shape[axis]
    if length == 1:
        return lut.reshape(-1)[flat]
    if vector_axis is None:
        raise ModelError(f"vector_axis must be given for the vectors of {length} in lut")
    where = axis_of(vector_axis, indices.ndim, "vector_axis")
    require_size((*indices.shape, length), "lut", lut.itemsize)
    vectors = np.moveaxis(lut.reshape(-1, length)[flat], -1, where + 1)
    sizes = list(indices.shape)
    sizes[where] *= length
    return vectors.reshape(sizes)


@define("constexpr_lut_to_dense", "ios18")
def constexpr_lut_to_dense(indices: Array, lut: Array, vector_axis: Any = None) -> Array:
    return _looked_up(indices, lut, vector_axis)


@define("constexpr_lut_to_sparse", "ios18")
def constexpr_lut_to_sparse(
    indices_mask: Array, indices_nonzero_data: Array, lut: Array, vector_axis: Any = None
) -> tuple[Array, Array]:
    """The mask, repeated along vector_axis, and the entries of its set bits."""
    mask = np.asarray(indices_mask)
    dense = _looked_up(_placed(indices_nonzero_data, mask), lut, vector_axis)
    if dense.shape != mask.shape:
        mask = np.repeat(mask, np.shape(lut)[-1], axis=int(vector_axis))
    return mask, dense[mask != 0]
