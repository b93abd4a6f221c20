"""Compressed weights: MIL's documented examples, and single elements in turn."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from mil_run import call, close
from seeds import generator

from softcoreml.errors import ModelError
from softcoreml.operations.compressed import unpack

Array = np.ndarray


def pack(values: Array, bits: int) -> Array:
    """Values one after the other in a large number, whose bytes follow from the lowest on."""
    number = 0
    for place, one in enumerate(values.reshape(-1)):
        number |= int(one) << (place * bits)
    return np.frombuffer(number.to_bytes(-(-values.size * bits // 8), "little"), np.uint8)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [0, 1, 5, 8, 13])
def test_unpack(bits: int, count: int) -> None:
    values = generator(bits).integers(0, 2**bits, count).astype(np.uint8)
    np.testing.assert_array_equal(unpack(pack(values, bits), bits, count), values)


def test_unpack_across_bytes() -> None:
    """Bytes that coremltools writes for 3-bit values 0 to 7 and 1."""
    packed = np.array([0x88, 0xC6, 0xFA, 0x01], np.uint8)
    assert unpack(packed, 3, 9).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 1]


@pytest.mark.parametrize("bits", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16, np.float32])
def test_one_table_with_packed_indices(bits: int, dtype: type) -> None:
    rng = generator(60 + bits)
    table = rng.integers(0, 100, 2**bits).astype(dtype)
    indices = rng.integers(0, 2**bits, (3, 5))
    shape = np.array([3, 5], np.uint32)
    for opset in ("ios16", "ios17"):
        packed = pack(indices, bits)
        actual = call("constexpr_lut_to_dense", opset, indices=packed, lut=table, shape=shape)
        assert actual.dtype == dtype
        np.testing.assert_array_equal(actual, table[indices])


def test_a_packed_mask() -> None:
    """MIL's example: bits 2 and 3 of five."""
    values = np.array([7, 9], np.float16)
    mask, shape = np.array([0b00001100], np.uint8), np.array([5], np.uint32)
    actual = call("constexpr_sparse_to_dense", "ios16", nonzero_data=values, mask=mask, shape=shape)
    assert actual.dtype == np.float16
    assert actual.tolist() == [0, 0, 7, 9, 0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("scalar", [False, True])
def test_affine_dequantize(dtype: type, axis: int, scalar: bool) -> None:
    rng = generator(70)
    limits = np.iinfo(dtype)
    data = rng.integers(limits.min, limits.max + 1, (3, 4, 5)).astype(dtype)
    count = data.shape[axis]
    scale = rng.random(count).astype(np.float16)
    zero = rng.integers(limits.min, limits.max + 1, count).astype(dtype)
    scale, zero = (scale[0], zero[0]) if scalar else (scale, zero)
    actual = call(
        "constexpr_affine_dequantize",
        "ios16",
        quantized_data=data,
        zero_point=zero,
        scale=scale,
        axis=np.int32(axis),
    )
    expected = np.zeros(data.shape)
    for place in itertools.product(*map(range, data.shape)):
        one = () if scalar else place[axis]
        expected[place] = float(scale[one]) * (int(data[place]) - int(zero[one]))
    close(actual, expected, 1e-6)


@pytest.mark.parametrize("groups", [(1, 1), (3, 1), (1, 4), (2, 8), (6, 8)])
@pytest.mark.parametrize("offset", [None, "same", "float"])
@pytest.mark.parametrize("scale_type", [np.float16, np.float32])
def test_blocks(groups: tuple[int, int], offset: str | None, scale_type: type) -> None:
    rng = generator(80)
    data = rng.integers(-8, 8, (6, 8)).astype(np.int8)
    scale = rng.random(groups).astype(scale_type)
    shift = rng.integers(-8, 8, groups).astype(np.int8 if offset == "same" else scale_type)
    given = {} if offset is None else {"offset": shift}
    actual = call("constexpr_blockwise_shift_scale", data=data, scale=scale, **given)
    expected = np.zeros(data.shape)
    for i, j in itertools.product(range(6), range(8)):
        block = i // (6 // groups[0]), j // (8 // groups[1])
        moved = int(data[i, j]) - (0.0 if offset is None else float(shift[block]))
        expected[i, j] = float(scale[block]) * moved
    close(actual, expected, 1e-6)


def test_a_table_for_each_group() -> None:
    """MIL's first example."""
    indices = np.array([2, 3, 3, 0, 1, 0, 3, 0, 2, 1, 0, 3], np.uint8).reshape(6, 2)
    lut = np.array([1, 5, 9, 13, 2, 10, 18, 26], np.float16).reshape(2, 1, 4, 1)
    expected = [[9, 13], [13, 1], [5, 1], [26, 2], [18, 10], [2, 26]]
    actual = call("constexpr_lut_to_dense", indices=indices, lut=lut)
    assert actual.dtype == np.float16
    assert actual.tolist() == expected


@pytest.mark.parametrize("axis", [1, 2])
def test_vectors_along_an_axis(axis: int) -> None:
    """MIL's second example, with a = 1, 2, 3 and b = 4, 5, 6."""
    indices = np.array([[[0, 0], [1, 0]], [[1, 1], [0, 0]]], np.uint8)
    lut = np.array([1, 2, 3, 4, 5, 6], np.int8).reshape(1, 1, 1, 2, 3)
    actual = call("constexpr_lut_to_dense", indices=indices, lut=lut, vector_axis=np.int32(axis))
    expected = {
        1: [
            [[1, 1], [2, 2], [3, 3], [4, 1], [5, 2], [6, 3]],
            [[4, 4], [5, 5], [6, 6], [1, 1], [2, 2], [3, 3]],
        ],
        2: [[[1, 2, 3, 1, 2, 3], [4, 5, 6, 1, 2, 3]], [[4, 5, 6, 4, 5, 6], [1, 2, 3, 1, 2, 3]]],
    }[axis]
    assert actual.tolist() == expected


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("groups", [(1, 1), (2, 3), (4, 1)])
def test_groups_of_vectors(axis: int, groups: tuple[int, int]) -> None:
    rng = generator(90)
    indices = rng.integers(0, 8, (4, 6)).astype(np.uint8)
    lut = rng.standard_normal((*groups, 8, 2)).astype(np.float32)
    expected = np.zeros((8, 6) if axis == 0 else (4, 12), np.float32)
    for i, j, part in itertools.product(range(4), range(6), range(2)):
        place = (2 * i + part, j) if axis == 0 else (i, 2 * j + part)
        table = lut[i // (4 // groups[0]), j // (6 // groups[1])]
        expected[place] = table[indices[i, j], part]
    actual = call("constexpr_lut_to_dense", indices=indices, lut=lut, vector_axis=axis)
    np.testing.assert_array_equal(actual, expected)


MASK = np.array(
    [[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 1], [0, 1, 1, 0, 1, 0], [0, 0, 0, 1, 0, 0]], np.uint8
)
INDICES = np.array([0, 1, 1, 0, 1, 1, 0, 0, 1], np.uint8)


@pytest.mark.parametrize("vector", [False, True])
def test_tables_of_sparse_indices(vector: bool) -> None:
    """MIL's examples of one value and of a vector, here of different ones."""
    if not vector:
        lut = np.array([2, 3], np.float16).reshape(1, 1, 2, 1)
        mask, values = call(
            "constexpr_lut_to_sparse", indices_mask=MASK, indices_nonzero_data=INDICES, lut=lut
        )
        np.testing.assert_array_equal(mask, MASK)
        assert values.tolist() == [2, 3, 3, 2, 3, 3, 2, 2, 3]
        return
    lut = np.array([[2, 20], [3, 30]], np.float16).reshape(1, 1, 2, 2)
    mask, values = call(
        "constexpr_lut_to_sparse",
        indices_mask=MASK,
        indices_nonzero_data=INDICES,
        lut=lut,
        vector_axis=np.int32(0),
    )
    np.testing.assert_array_equal(mask, np.repeat(MASK, 2, axis=0))
    dense = call("constexpr_sparse_to_dense", nonzero_data=values, mask=mask)
    places = np.argwhere(MASK)
    for (row, column), index in zip(places, INDICES, strict=True):
        assert dense[2 * row : 2 * row + 2, column].tolist() == lut[0, 0, index].tolist()
    assert np.count_nonzero(dense) == 2 * len(INDICES)


def test_blocks_of_sparse_data() -> None:
    """MIL's example."""
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0]], np.uint8)
    found, values = call(
        "constexpr_sparse_blockwise_shift_scale",
        data_mask=mask,
        nonzero_data=np.array([10, 11, 3, 4, 5, 6, 7, 8, 9], np.int8),
        scale=np.array([[0.1, 0.2, 0.3, 0.4]], np.float32),
        offset=np.array([[1, 2, 3, 4]], np.int8),
    )
    np.testing.assert_array_equal(found, mask)
    close(values, np.array([0.9, 1.8, 0.2, 0.4, 0.6, 0.9, 1.2, 0.7, 1.4]))


def test_a_constant_cast() -> None:
    source = np.array([1, -2.5, 65504], np.float16)
    actual = call("constexpr_cast", "ios16", source_val=source, output_dtype="fp32")
    assert actual.dtype == np.float32
    assert actual.tolist() == [1, -2.5, 65504]


TABLE = np.zeros((1, 1, 4, 1), np.float16)
FOUR, EIGHT = np.zeros((4, 4), np.uint8), np.array([2, 4], np.uint32)


@pytest.mark.parametrize(
    ("name", "opset", "inputs", "message"),
    [
        (
            "lut_to_dense",
            "ios16",
            {"indices": np.zeros(9, np.uint8), "lut": np.zeros(4), "shape": EIGHT},
            "indices needs 2 bytes",
        ),
        (
            "lut_to_dense",
            "ios16",
            {"indices": np.zeros(2, np.uint8), "lut": np.zeros(5), "shape": EIGHT},
            "lut",
        ),
        (
            "lut_to_dense",
            "ios16",
            {
                "indices": np.zeros(2, np.uint8),
                "lut": np.zeros(4),
                "shape": np.full(4, 2**31, np.uint32),
            },
            "shape",
        ),
        ("lut_to_dense", "ios18", {"indices": FOUR + 4, "lut": TABLE}, "indices reach 4"),
        ("lut_to_dense", "ios18", {"indices": FOUR, "lut": np.zeros((3, 1, 4, 1))}, "lut"),
        ("lut_to_dense", "ios18", {"indices": FOUR, "lut": np.zeros((1, 4, 1))}, "lut"),
        ("lut_to_dense", "ios18", {"indices": FOUR, "lut": np.zeros((1, 1, 4, 2))}, "vector_axis"),
        (
            "lut_to_dense",
            "ios18",
            {"indices": FOUR, "lut": np.zeros((1, 1, 4, 2)), "vector_axis": 2},
            "vector_axis",
        ),
        (
            "sparse_to_dense",
            "ios18",
            {"nonzero_data": np.zeros(3), "mask": FOUR},
            "mask has 0 set bits",
        ),
        (
            "sparse_to_dense",
            "ios16",
            {"nonzero_data": np.zeros(3), "mask": np.zeros(2, np.uint8), "shape": EIGHT},
            "mask",
        ),
        (
            "blockwise_shift_scale",
            "ios18",
            {"data": FOUR, "scale": np.zeros((3, 1), np.float16)},
            "scale",
        ),
        (
            "blockwise_shift_scale",
            "ios18",
            {"data": FOUR, "scale": np.zeros((0, 1), np.float16)},
            "scale",
        ),
        (
            "blockwise_shift_scale",
            "ios18",
            {"data": FOUR, "scale": np.zeros((2, 1), np.float16), "offset": np.zeros((1, 1))},
            "offset",
        ),
        (
            "affine_dequantize",
            "ios16",
            {"quantized_data": FOUR, "scale": np.zeros(3), "zero_point": 0, "axis": 0},
            "scale",
        ),
        (
            "affine_dequantize",
            "ios16",
            {"quantized_data": FOUR, "scale": np.float32(1), "zero_point": np.zeros(9), "axis": 0},
            "zero_point",
        ),
        (
            "affine_dequantize",
            "ios16",
            {"quantized_data": FOUR, "scale": np.zeros(4), "zero_point": 0, "axis": 7},
            "axis",
        ),
    ],
)
def test_refused(name: str, opset: str, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        call(f"constexpr_{name}", opset, **inputs)
