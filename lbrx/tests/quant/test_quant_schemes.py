"""Properties of every scheme, and errors for bad input."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from quant_data import DATA, ENCODABLE, make, rmse, round_trip

import lbrx
import lbrx.quant.scheme
from lbrx import quant
from lbrx.errors import DtypeError, QuantizationError, ShapeError

# Schemes in which the extreme value of a group says what its scale was (unless that is subnormal).
STABLE = [
    *("q4_0", "q5_0", "q8_0", "q1_0", "tq1_0", "tq2_0", "mxfp4"),
    *("mlx:mxfp4", "mlx:mxfp8", "q4:64:symmetric", "q8:32:symmetric", "q2:128:symmetric"),
]
# The largest root mean square error of normal numbers, by bits; and of ternary types.
WORST = {1: 0.65, 2: 0.62, 3: 0.25, 4: 0.15, 5: 0.065, 6: 0.032, 7: 0.016, 8: 0.03}
TERNARY = {"tq1_0": 0.85, "tq2_0": 0.85}


@pytest.mark.parametrize("name", ENCODABLE)
def test_error_on_normal_numbers(rng, name):
    scheme = quant.find(name)
    values = make("gaussian", rng, (16, 1024))
    assert rmse(values, round_trip(values, name)) < TERNARY.get(name, WORST[scheme.bits])


@pytest.mark.parametrize("name", ENCODABLE)
def test_no_data_comes_back_worse_than_nothing(rng, name):
    """An all-zero answer has an error of one: every scheme does better, and never makes NaN."""
    for kind in DATA:
        values = make(kind, rng, (3, 512))
        back = round_trip(values, name)
        assert np.isfinite(back).all(), kind
        if kind in ("zeros", "tiny"):
            assert (np.abs(back) <= 1e-6).all(), kind
        elif kind not in ("outliers", "sparse") or name not in ("q1_0", *TERNARY):
            assert rmse(values, back) < rmse(values, np.zeros_like(values)), kind


@pytest.mark.parametrize("name", ENCODABLE)
def test_any_finite_numbers_are_stored_or_refused(rng, name):
    """Bit patterns at random: subnormal ones, and all sizes in one group."""
    patterns = rng.integers(0, 1 << 32, (40, 256), dtype=np.uint32).view(np.float32)
    patterns = np.nan_to_num(patterns, nan=1, posinf=2, neginf=-3)
    stored = 0
    for largest in (1e-38, 1e-20, 1e-6, 1.0, 1e4, 3e38):
        values = np.where(np.abs(patterns) <= largest, patterns, np.float32(largest / 3))
        try:
            back = round_trip(values, name)
        except QuantizationError:
            assert largest > 1e3, f"{largest} is not too large"
            continue
        stored += 1
        assert np.isfinite(back).all()
        assert (np.abs(back.astype(float)) <= largest * 1.5 + 1e-6).all()
    assert stored >= 4


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("name", [n for n in ENCODABLE if re.fullmatch(r"mlx:\d:32", n)])
def test_ranges_near_the_largest_float_are_stored_or_refused(name, dtype):
    """In the first group of two bits, three times the scale exceeds float32, although the value
    that it stands for does not."""
    ends = [(-9e37, 2.45e38), (-2.45e38, 9e37), (-3e38, 3e37), (0, 3.3e38), (-1.6e38, 1.7e38)]
    for low, high in ends:
        values = np.linspace(low, high, 32).astype(dtype)[None]
        try:
            back = round_trip(values, name)
        except QuantizationError as error:
            assert "too large" in str(error)  # noqa: PT017 - one of two right outcomes
            continue
        assert np.isfinite(back).all(), (low, high)
    if name == "mlx:2:32":
        with pytest.raises(QuantizationError, match="values are too large for mlx:2:32"):
            quant.quantize(np.linspace(*ends[0], 32).astype(dtype)[None], name)


@pytest.mark.parametrize("name", ["mlx:2:32", "mlx:3:32"])
def test_the_device_refuses_the_same_ranges(name):
    values = np.ones((4, 32), np.float32)
    values[2] = np.linspace(-9e37, 2.45e38, 32)
    with pytest.raises(QuantizationError, match="cannot hold elements 64 to 95"):
        lbrx.quantize(lbrx.tensor(values, device="metal"), name).numpy()


@pytest.mark.parametrize("name", STABLE)
def test_what_was_decoded_is_stored_again_without_loss(rng, name):
    for kind in ("gaussian", "outliers", "sparse", "zeros"):
        once = round_trip(make(kind, rng, (4, 512)), name)
        np.testing.assert_array_equal(round_trip(once, name), once, err_msg=kind)


@pytest.mark.parametrize(
    "shape", [(256,), (1, 512), (2, 3, 256), (0, 256), (3, 0), (5, 1, 1, 768)], ids=str
)
@pytest.mark.parametrize(
    "name", ["q4_0", "q4_k", "q6_k", "iq4_xs", "q3:32", "mlx:6:64", "mlx:nvfp4"]
)
def test_shapes(rng, name, shape):
    values = make("gaussian", rng, shape)
    data, info = quant.quantize(values, name)
    scheme = quant.find(name)
    assert data.shape[:-1] == shape[:-1]
    assert data.nbytes + sum(a.nbytes for a in info.arrays.values()) == scheme.nbytes(shape)
    back = quant.dequantize(data, info)
    assert (back.shape, back.dtype) == (shape, np.float32)
    if back.size:
        assert rmse(values, back) < 0.3


@pytest.mark.parametrize("name", ENCODABLE)
def test_rows_are_stored_alike_whatever_is_beside_them(rng, name, monkeypatch):
    values = make("weights", rng, (9, 512))
    importance = rng.random(512).astype(np.float32)
    data, info = quant.quantize(values, name, importance)
    back = quant.dequantize(data, info)
    rows = slice(3, 8, 2)
    part = info.map(lambda array: array[rows])
    np.testing.assert_array_equal(quant.dequantize(data[rows], part), back[rows])
    monkeypatch.setattr(lbrx.quant.scheme, "CHUNK", 1000)
    again = quant.quantize(values[rows], name, importance)
    np.testing.assert_array_equal(again.data, data[rows])
    for key, array in again.info.arrays.items():
        np.testing.assert_array_equal(array, part.arrays[key])
    np.testing.assert_array_equal(quant.dequantize(*again), back[rows])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64], ids=str)
@pytest.mark.parametrize("name", ["q5_1", "q3_k", "mxfp4", "q4:32"])
def test_other_floating_types_are_read_as_float32(rng, name, dtype):
    values = make("gaussian", rng, (3, 256)).astype(dtype)
    expected = quant.quantize(values.astype(np.float32), name).data
    np.testing.assert_array_equal(quant.quantize(values, name).data, expected)


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "mlx:4:64"])
def test_views_and_bytes(rng, name):
    values = make("gaussian", rng, (512, 6)).T
    data, info = quant.quantize(values, name)
    again = quant.quantize(np.ascontiguousarray(values), name)
    np.testing.assert_array_equal(data, again.data)
    back = quant.dequantize(data, info)
    for raw in (data.tobytes(), memoryview(data.tobytes()), bytearray(data.tobytes())):
        if not quant.find(name).planar:
            np.testing.assert_array_equal(quant.dequantize(raw, name, (6, 512)), back)
    np.testing.assert_array_equal(quant.dequantize(np.asfortranarray(data), info), back)


@pytest.mark.parametrize("dtype", [lbrx.float32, lbrx.bfloat16])
@pytest.mark.parametrize("name", ["q4_k", "q4:64", "mlx:4:64", "mlx:mxfp8"])
def test_sizes_are_known_beforehand(name, dtype):
    data, info = quant.quantize(np.ones((3, 512), dtype.numpy), name)
    size = data.nbytes + sum(array.nbytes for array in info.arrays.values())
    assert quant.find(name).nbytes((3, 512), dtype) == size


def test_importance_for_each_leading_index(rng):
    values = make("gaussian", rng, (2, 5, 512))
    importance = rng.random((2, 1, 512)).astype(np.float32)
    data = quant.quantize(values, "q4_k", importance).data
    for i in range(2):
        alone = quant.quantize(values[i], "q4_k", importance[i, 0]).data
        np.testing.assert_array_equal(data[i], alone)


def test_blocks_of_no_importance_count_evenly(rng):
    values = make("gaussian", rng, (4, 512))
    importance = np.ones(512, np.float32)
    even = quant.quantize(values, "q4_k", importance).data
    importance[256:] = 0
    np.testing.assert_array_equal(quant.quantize(values, "q4_k", importance).data, even)


def test_names():
    assert quant.find("Q4_K") is quant.find("q4_k")
    assert quant.find("q4") is quant.find("q4:64")
    assert quant.find("mlx:8") is quant.find("MLX:8:64")
    assert quant.find(quant.find("q8_0")) is quant.find("q8_0")
    assert len(quant.SCHEMES) == 25 + 42 + 21 + 6
    assert all(name == scheme.name for name, scheme in quant.SCHEMES.items())


@pytest.mark.parametrize("name", ["q9:64", "q4:48", "mlx:7:64", "q4_2", "", "int4"])
def test_unknown_names_are_told_the_known_ones(name):
    expected = (
        f"{name!r} is not a quantization scheme: give one of q4_0, q4_1, .* mlx:BITS:GROUP with"
    )
    with pytest.raises(QuantizationError, match=re.escape(expected).replace(r"\.\*", ".*")):
        quant.find(name)


ROW = np.ones((2, 256), np.float32)
NAN = np.where(np.arange(256) == 7, np.nan, ROW)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: quant.quantize(ROW[:, :100], "q4_0"), ShapeError, r"\(2, 100\).*multiple of 32"),
        (lambda: quant.quantize(np.float32(1).reshape(()), "q4_0"), ShapeError, "multiple of 32"),
        (lambda: quant.quantize(ROW[:, :32], "q4_k"), ShapeError, "multiple of 256"),
        (lambda: quant.quantize(ROW.astype(int), "q4_0"), DtypeError, "not int64: cast"),
        (lambda: quant.quantize(NAN, "q4_0"), QuantizationError, r"element \(0, 7\) is nan"),
        (lambda: quant.quantize(ROW * np.inf, "mlx:4"), QuantizationError, r"\(0, 0\) is inf"),
        (lambda: quant.quantize(ROW.astype(float) * 1e39, "q4:32"), QuantizationError, "is inf"),
        (lambda: quant.quantize(ROW * 1e30, "q4_k"), QuantizationError, "too large.*field d is"),
        (lambda: quant.quantize(ROW * 1e30, "q4:32"), QuantizationError, "field scales is float16"),
        (lambda: quant.quantize(ROW * 3000, "nvfp4"), QuantizationError, "3000.0: .* up to 2688"),
        (lambda: quant.quantize(ROW, "iq2_xs"), QuantizationError, "only decodes iq2_xs.*q2_k"),
        (lambda: quant.quantize(ROW, "q4_k", ROW[0, :9]), ShapeError, r"\(9,\).*\(2, 256\)"),
        (lambda: quant.quantize(ROW, "q4_k", np.ones((3, 256))), ShapeError, r"\(3, 256\)"),
        (lambda: quant.quantize(ROW, "q4_k", -ROW[0]), QuantizationError, "not negative"),
        (lambda: quant.quantize(ROW, "q4_k", NAN[0]), QuantizationError, "must be finite"),
        (lambda: quant.dequantize(bytes(17), "q4_0", (32,)), ShapeError, "takes 18 bytes.*not 17"),
        (lambda: quant.dequantize(bytes(18), "q4_0", (33,)), ShapeError, "multiple of 32"),
        (lambda: quant.dequantize(bytes(17), "q4_0"), ShapeError, "not whole blocks.*18"),
        (
            lambda: quant.dequantize(ROW.astype(np.uint32), "q4:32"),
            QuantizationError,
            "scales and zero",
        ),
        (
            lambda: quant.dequantize(
                *quant.quantize(ROW, "q4:32")._replace(info=quant.quantize(ROW[:1], "q4:32").info)
            ),
            ShapeError,
            r"scales of shape \(2, 8\), not \(1, 8\)",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_information_travels():
    data, info = quant.quantize(ROW, "q4:64")
    assert (info.scheme, info.bits, info.group_size, info.symmetric) == ("q4:64", 4, 64, False)
    assert sorted(info.arrays) == ["scales", "zero_points"]
    shapes = info.map(lambda array: array.shape)
    assert (shapes.scales, shapes.zero_points, shapes.biases) == ((2, 4), (2, 4), None)
    assert shapes.scheme == "q4:64"
    assert not quant.quantize(ROW, "q4_k").info.arrays
    described = quant.describe("q4", scales=info.scales, zero_points=info.zero_points)
    np.testing.assert_array_equal(quant.dequantize(data, described), quant.dequantize(data, info))
