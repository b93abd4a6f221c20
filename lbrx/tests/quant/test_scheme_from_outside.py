"""A quantization scheme that this file adds: nothing of it is known to the package."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import lbrx
from lbrx import metal, quant
from lbrx.quant.scheme import Fields, FloatArray, Scheme

LAYOUT = np.dtype([("d", "<f2"), ("qs", "i1", 32)])
# The sign of a code is its own, and its magnitude the square root of the value's.
SOURCE = """
struct squares : Codec<32, 34, true, false> {
  static float scale(Block b, uint) { return half_at(b.data); }
  static short code(Block b, uint unit, uint i) {
    const short root = char((b.data + 2 + unit * UNIT)[i]);
    return root * abs(root);
  }
};
"""


def decode(fields: Fields) -> FloatArray:
    root = fields["qs"].astype(np.float32)
    return fields["d"].astype(np.float32)[:, None] * root * np.abs(root)


def encode(values: FloatArray, importance: FloatArray | None) -> Fields:
    d = (np.abs(values).max(axis=1) / 225).astype(np.float16).astype(np.float32)
    ratio = values / np.where(d == 0, np.float32(1), d)[:, None]
    return {"d": d, "qs": np.rint(np.sign(ratio) * np.sqrt(np.abs(ratio))).clip(-15, 15)}


DECODED_BY_HOST = Scheme("squares", 8, 32, 32, LAYOUT, decode, encode, symmetric=True)
WITH_CODEC = replace(DECODED_BY_HOST, codec="squares", codec_source=SOURCE)


@pytest.fixture(params=[DECODED_BY_HOST, WITH_CODEC], ids=["host", "codec"])
def scheme(request):
    quant.register(request.param)
    yield request.param
    del quant.SCHEMES["squares"]


def expected(q: lbrx.Tensor, values: np.ndarray) -> np.ndarray:
    """The stored values in float64, from the bytes; they are near those that were quantized."""
    blocks = q.array.storage.parts["data"].numpy().view(LAYOUT)
    root = blocks["qs"].astype(np.float64)
    found = (blocks["d"].astype(np.float64)[..., None] * root * np.abs(root)).reshape(values.shape)
    assert np.abs(found - values).max() <= 0.07 * np.abs(values).max()
    return found


def test_tensors_of_it(scheme, place, rng):
    values = rng.standard_normal((5, 96)).astype(np.float32)
    values[1, :32] = 0
    q = lbrx.quantize(lbrx.tensor(values, device=place), "SQUARES")
    assert (q.shape, q.dtype, q.device) == ((5, 96), lbrx.float32, place)
    assert q.metadata.quantization == "squares"
    info = q.quantization
    assert (info.scheme, info.bits, info.group_size, info.symmetric) == ("squares", 8, 32, True)
    wanted = expected(q, values)
    np.testing.assert_allclose(q.numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose(lbrx.dequantize(q).numpy(), wanted, rtol=1e-6)
    np.testing.assert_allclose((q[1:4] + 1).numpy(), wanted[1:4] + 1, rtol=1e-6)
    half = lbrx.dequantize(q, lbrx.float16)
    np.testing.assert_allclose(half.numpy(), wanted, rtol=1e-3)
    rows = lbrx.embedding(q, lbrx.tensor([4, 0, 4], device=place))
    np.testing.assert_allclose(rows.numpy(), wanted[[4, 0, 4]], rtol=1e-6)


def packed_products() -> int:
    """Launches of kernels that multiply with packed values."""
    kernels = metal.stats()["kernels"]
    return sum(count for name, count in kernels.items() if name.startswith("quantized_matmul"))


@pytest.mark.parametrize("m", [1, 40])
def test_products_with_it(scheme, place, m, rng):
    weight = rng.standard_normal((37, 256)).astype(np.float32)
    x = rng.standard_normal((m, 256)).astype(np.float32)
    q = lbrx.quantize(lbrx.tensor(weight, device=place), "squares")
    product = x.astype(np.float64) @ expected(q, weight).T
    for dtype, error in ((lbrx.float32, 1e-2), (lbrx.float16, 0.1)):
        before = packed_products()
        found = lbrx.linear(lbrx.tensor(x, dtype=dtype, device=place), q)
        assert found.dtype is dtype
        np.testing.assert_allclose(found.numpy().astype(np.float64), product, atol=error)
        with_kernel = place == "metal" and scheme is WITH_CODEC
        assert (packed_products() > before) == with_kernel


def test_moves_between_devices(scheme, rng):
    values = rng.standard_normal((3, 64)).astype(np.float32)
    q = lbrx.quantize(lbrx.tensor(values, device="cpu"), "squares")
    there = q.to_device("metal")
    assert there.quantization.scheme == "squares"
    np.testing.assert_array_equal(there.to_device("cpu").numpy(), q.numpy())


def test_files_store_its_values(scheme, tmp_path, rng):
    values = rng.standard_normal((3, 64)).astype(np.float32)
    q = lbrx.quantize(lbrx.tensor(values, device="cpu"), "squares")
    for name in ("a.safetensors", "a.gguf", "a.npz"):
        lbrx.save(tmp_path / name, {"q": q})
        np.testing.assert_array_equal(lbrx.load(tmp_path / name)["q"].numpy(), q.numpy())


def test_what_it_refuses(scheme, place):
    values = np.zeros((2, 64), np.float32)
    values[1, 3] = np.nan
    with pytest.raises(lbrx.QuantizationError, match=r"element \(1, 3\) is nan: squares stores"):
        lbrx.quantize(lbrx.tensor(values, device=place), "squares")
    with pytest.raises(lbrx.ShapeError, match=r"does not fit squares.*multiple of 32"):
        lbrx.quantize(lbrx.tensor(values[:, :40], device=place), "squares")
    with pytest.raises(lbrx.QuantizationError, match="'squares' exists already"):
        quant.register(scheme)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Squares"}, "'Squares' has capital letters"),
        ({"planar": True}, "has the fields d and qs: planar schemes have data, then biases"),
        ({"codec": "squares", "elements": 24}, "has blocks of 24: codecs read multiples of 16"),
        ({"codec": "cubes", "codec_source": SOURCE}, "without a struct cubes: name it like"),
        ({"name": "q4_0"}, "'q4_0' exists already: give another name"),
    ],
)
def test_what_cannot_be_registered(changes, message):
    with pytest.raises(lbrx.QuantizationError, match=message):
        quant.register(replace(DECODED_BY_HOST, **changes))


def test_it_is_not_known_before():
    with pytest.raises(
        lbrx.QuantizationError, match="'squares' is not a quantization scheme: give"
    ):
        quant.find("squares")
