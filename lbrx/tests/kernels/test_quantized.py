"""Quantized values: decoding, encoding and products by every kernel, against lbrx.quant."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from device_memory import on_processors
from op_oracle import rotating
from quantized_values import reference, stored, weight

import lbrx
import softmetal
from lbrx import metal, quant
from lbrx.arrays import dtype as dt
from lbrx.command_lists.builder import Builder
from lbrx.kernels import deterministic, forced
from lbrx.kernels.quantized_matmul import quantized_integers, quantized_matmul
from lbrx.kernels.quantized_matmul.quantized_matmul import QuantizedProduct, family
from lbrx.tensors.quantized import linears, pack

FLOATS = (dt.float32, dt.float16, dt.bfloat16)
ROUNDING = {dt.float32: 2.0**-23, dt.float16: 2.0**-10, dt.bfloat16: 2.0**-7}
# Of the schemes in groups, those of 64 have the kernels of all.
SCHEMES = [name for name in quant.SCHEMES if ":32" not in name and ":128" not in name]
COMMON = ["q4_0", "q4_1", "q8_0", "q4_k", "q6_k", "mlx:4:64", "mlx:8:64", "q4:64"]
VARIANTS = ["serial", "serial_tiles", "floats", "panels", "simd", "tiles"]
# Not for integer kernels: codes are not integers, or groups are too small.
NOT_IN_INTEGERS = ("mlx:mxfp8", "mlx:nvfp4", "e4m3:64", "nf4:64", "fp4:64", "e2m1:16")
INTEGERS = ("serial", "serial_tiles")


def sampled(names, count):
    """Some of the names in the default run, by the day; all of them in the full one."""
    kept = {rotating(names[i::count], f"quantized{i}")[0] for i in range(count)}
    return [n if n in kept else pytest.param(n, marks=pytest.mark.full) for n in names]


def ran(kernel):
    return metal.stats()["kernels"].get(kernel, 0)


def within_one_rounding(values, expected, dtype):
    close = np.abs(values.astype(np.float64) - expected) <= ROUNDING[dtype] * np.abs(expected)
    assert (close | (values == expected)).all()


# ---- decoding ----


def check_decoding(rng, name, variant, dtype=dt.float32, shape=(3, 512)):
    parts = stored(rng, name, shape)
    before = ran(f"dequantize:{variant}")
    with forced(dequantize=variant):
        result = lbrx.dequantize(weight(name, parts), dtype)
        lbrx.eval(result)
    assert ran(f"dequantize:{variant}") > before
    assert result.dtype is dtype
    within_one_rounding(result.numpy(), reference(name, parts).astype(np.float64), dtype)


@pytest.mark.parametrize("name", SCHEMES)
def test_decoding(name, rng):
    check_decoding(rng, name, "serial")


@pytest.mark.parametrize("name", sampled(SCHEMES, 4))
def test_decoding_of_units(name, rng):
    check_decoding(rng, name, "vector")


@pytest.mark.parametrize("name", sampled([n for n in quant.SCHEMES if n not in SCHEMES], 3))
def test_decoding_of_other_groups(name, rng):
    check_decoding(rng, name, "serial", shape=(2, 3, 384))


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@pytest.mark.parametrize("name", ["q4_1", "mlx:4:64"])
def test_halves_are_rounded_once(name, dtype, rng):
    check_decoding(rng, name, "serial", dtype)


@pytest.mark.parametrize("scales", FLOATS[1:], ids=str)
def test_scales_have_the_type_of_the_values(scales, rng):
    parts = stored(rng, "mlx:4:64", (5, 128), scales)
    within_one_rounding(
        lbrx.dequantize(weight("mlx:4:64", parts)).numpy(), reference("mlx:4:64", parts), dt.float32
    )


def test_a_scale_that_is_no_number(rng):
    parts = stored(rng, "q4_0", (2, 64))
    parts[0].reshape(-1).view(quant.find("q4_0").layout)["d"][2] = np.nan
    values = lbrx.dequantize(weight("q4_0", parts)).numpy()
    np.testing.assert_array_equal(np.isnan(values[1]), np.arange(64) < 32)
    assert np.isfinite(values[0]).all()


# ---- encoding ----

DIRECT = [name for name in SCHEMES if quant.find(name).encoder is quant.Encoder.DIRECT]


def check_encoding(values, name):
    data, info = quant.quantize(values, name)
    before = ran("quantize:block")
    result = lbrx.quantize(lbrx.tensor(values, device="metal"), name)
    lbrx.eval(result)
    assert ran("quantize:block") > before
    parts = result.array.storage.parts
    np.testing.assert_array_equal(parts["data"].numpy(), data)
    for field, expected in info.arrays.items():
        np.testing.assert_array_equal(parts[field].numpy(), expected)
        assert parts[field].numpy().dtype == expected.dtype


@pytest.mark.parametrize("name", sampled(DIRECT, 8))
def test_encoding(name, rng):
    """Every bit as by lbrx.quant, zeros and equal values included."""
    values = rng.standard_normal((3, 256)).astype(np.float32)
    values[0, :64], values[0, 64:128] = 0, values[0, 64]
    check_encoding(values, name)


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@pytest.mark.parametrize("name", ["q8_0", "mlx:4:64"])
def test_encoding_of_halves(name, dtype, rng):
    check_encoding(rng.standard_normal((3, 128)).astype(dtype.numpy), name)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e9])
def test_values_that_a_scheme_cannot_hold(bad):
    values = np.ones((2, 64), np.float32)
    values[1, 40] = bad
    with pytest.raises(lbrx.QuantizationError, match="q4_0 cannot hold elements 96 to 127"):
        lbrx.quantize(lbrx.tensor(values, device="metal"), "q4_0").numpy()


def test_schemes_without_a_kernel_are_encoded_by_the_host(rng):
    values = rng.standard_normal((2, 256)).astype(np.float32)
    result = lbrx.quantize(lbrx.tensor(values, device="metal"), "iq4_nl")
    assert result.device == "metal"
    np.testing.assert_array_equal(
        result.array.storage.parts["data"].numpy(), quant.quantize(values, "iq4_nl").data
    )
    importance = rng.uniform(0, 1, 256)
    weighted = lbrx.quantize(lbrx.tensor(values), "q4_0", importance)
    np.testing.assert_array_equal(
        weighted.array.storage.parts["data"].numpy(),
        quant.quantize(values, "q4_0", importance).data,
    )


# ---- products ----


def half_steps(x, values, width=32):
    """What rounding x to sixteen bits, with a scale for 32 of them, can move a product by."""
    step = np.abs(x).reshape(len(x), -1, width).max(axis=2) / 32767
    return 0.5 * np.repeat(step, width, axis=1) @ np.abs(values).T


def check_product(rng, name, variant, m, n=37, k=512, dtype=dt.float32):
    parts = stored(rng, name, (n, k))
    x = rng.standard_normal((m, k)).astype(dtype.numpy)
    before = ran(f"quantized_matmul:{variant}")
    with forced(quantized_matmul=variant):
        result = lbrx.linear(lbrx.tensor(x, device="metal"), weight(name, parts))
        lbrx.eval(result)
    assert ran(f"quantized_matmul:{variant}") > before
    assert (result.dtype, result.shape) == (dtype, (m, n))
    wide, values = x.astype(np.float64), reference(name, parts).astype(np.float64)
    expected, size = wide @ values.T, np.abs(wide) @ np.abs(values).T
    # Tiles of halves round the weight too, and so do panels on a GPU.
    rounding = 2**-10 if variant == "tiles" and dtype is dt.float16 else 2**-20
    if variant == "panels" and metal.context().info.simd_hardware:
        rounding = max(rounding, 2 * ROUNDING[dtype])
    allowed = rounding * size + 2 * ROUNDING[dtype] * np.abs(expected)
    if variant in (*INTEGERS, "lines"):  # the lines of q4_k have 32 of 64
        allowed += half_steps(wide, values, 64 if variant == "lines" else 32)
    assert (np.abs(result.numpy().astype(np.float64) - expected) <= allowed).all()


def cases():
    for variant in VARIANTS:
        for i, name in enumerate(COMMON):
            m = (1, 3, 8, 19)[i % 4]
            default = variant in INTEGERS or i % 3 == 0
            marks = () if default else pytest.mark.full
            yield pytest.param(name, variant, m, marks=marks, id=f"{variant}-{name}-{m}")


@pytest.mark.parametrize(("name", "variant", "m"), list(cases()))
def test_product(name, variant, m, rng):
    check_product(rng, name, variant, m)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", sampled([n for n in SCHEMES if n not in COMMON], 2))
def test_product_of_other_schemes(name, variant, rng):
    if variant in INTEGERS and name in NOT_IN_INTEGERS:
        problem = QuantizedProduct(quant.find(name), 2, 37, 512, dt.float32)
        assert not family.variants[variant].can(metal.context().info, problem)
    else:
        check_product(rng, name, variant, 2)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "floats"])
@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_product_of_halves(variant, dtype, rng):
    check_product(rng, "q4_1", variant, 3, dtype=dtype)


@pytest.mark.parametrize("variant", INTEGERS)
@pytest.mark.parametrize("name", ["q8_0", "q8:64", "mlx:8:64"])
def test_sums_of_the_largest_codes_do_not_overflow(name, variant):
    scheme = quant.find(name)
    blocks = np.full(scheme.blocks((1, 64)), 0, scheme.layout)
    blocks.view(np.uint8)[:] = 0x81 if name == "q8_0" else 0xFF
    for field in scheme.fields[0 if name == "q8_0" else 1 :]:
        if scheme.layout[field].base.kind == "f":
            blocks[field] = 1
    if "zero_points" in scheme.fields:
        blocks["zero_points"] = 0
    parts = (
        [
            np.ascontiguousarray(blocks[f]).reshape(scheme.part_shape(f, (1, 64)))
            for f in scheme.fields
        ]
        if scheme.planar
        else [blocks.view(np.uint8).reshape(1, -1)]
    )
    x = np.full((5, 64), 3.0, np.float32)
    with forced(quantized_matmul=variant):
        result = lbrx.linear(lbrx.tensor(x, device="metal"), weight(name, parts)).numpy()
    np.testing.assert_allclose(result, x @ reference(name, parts).T, rtol=1e-6)


def test_numbers_that_are_none_stay_in_their_row(rng):
    parts = stored(rng, "q8_0", (5, 64))
    x = rng.standard_normal((4, 64)).astype(np.float32)
    x[1, 3], x[2, 40], x[3] = np.nan, np.inf, 0
    for variant in (*INTEGERS, "panels"):
        with forced(quantized_matmul=variant):
            result = lbrx.linear(lbrx.tensor(x, device="metal"), weight("q8_0", parts)).numpy()
        assert np.isfinite(result[0]).all()
        assert not np.isfinite(result[1:3]).any()
        assert (result[3] == 0).all()


@pytest.mark.parametrize("name", ["q4_0", "q4_k"])
def test_a_row_has_the_same_bits_in_any_batch(name, rng):
    parts = stored(rng, name, (33, 512))
    x = lbrx.tensor(rng.standard_normal((11, 512)).astype(np.float32), device="metal")
    with deterministic():
        whole = lbrx.linear(x, weight(name, parts)).numpy()
        for rows in (slice(0, 1), slice(7, 9), slice(10, 11)):
            few = lbrx.linear(x[rows], weight(name, parts)).numpy()
            np.testing.assert_array_equal(whole[rows], few)


@on_processors
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("name", ["q4_0", "q4_1"])
def test_an_odd_number_of_blocks(name, m, rng):
    check_product(rng, name, "serial", m, n=6, k=96)


@pytest.mark.parametrize("variant", VARIANTS)
def test_several_weights_at_a_time(variant, rng):
    """More than one launch takes; one of them without rows."""
    parts = [stored(rng, "q4_0", (n, 64)) for n in (5, 70, 33, 1)]
    parts.insert(1, [np.zeros((0, 36), np.uint8)])
    x = rng.standard_normal((2, 64)).astype(np.float32)
    before = ran(f"quantized_matmul:{variant}")
    with forced(quantized_matmul=variant):
        given = lbrx.tensor(x, device="metal")
        results = [r.numpy() for r in linears(given, [weight("q4_0", each) for each in parts])]
    assert ran(f"quantized_matmul:{variant}") > before
    for result, each in zip(results, parts, strict=True):
        np.testing.assert_allclose(result, x @ reference("q4_0", each).T, atol=0.01)


# ---- one row ----

# Columns: few, of which the last lanes have none, and as many as threadgroup memory has room for.
ONE_ROW = {
    "q4_0": (64, 1088, 9280),
    "q8_0": (64, 1088, 9280),
    "q4_k": (256, 1280, 9472),
    "mlx:4:64": (64, 1088, 9280),
}
IN_LINES = [
    pytest.param(name, k, dtype, marks=() if i == j else pytest.mark.full, id=f"{name}-{k}-{dtype}")
    for name, sizes in ONE_ROW.items()
    for i, k in enumerate(sizes)
    for j, dtype in enumerate(FLOATS)
]


@pytest.mark.parametrize(("name", "k", "dtype"), IN_LINES)
def test_one_row(name, k, dtype, rng):
    check_product(rng, name, "lines", 1, n=21, k=k, dtype=dtype)


@pytest.mark.parametrize("name", ONE_ROW)
def test_one_row_reads_no_more_than_the_weight(name, rng):
    with softmetal.checking("bounds", "race"):
        check_product(rng, name, "lines", 1, n=5, k=ONE_ROW[name][1])


@pytest.mark.parametrize("name", ONE_ROW)
def test_one_row_with_weights_that_are_read_first(name, rng, monkeypatch):
    monkeypatch.setattr(Builder, "is_settled", lambda self, buffers: True)
    with softmetal.checking("bounds", "race"):
        check_product(rng, name, "lines", 1, n=21, k=ONE_ROW[name][1])


@pytest.mark.parametrize("name", ONE_ROW)
def test_one_row_with_several_weights(name, rng):
    """More than one launch takes; one of them without rows."""
    k = 2 * ONE_ROW[name][0]
    parts = [stored(rng, name, (n, k)) for n in (5, 70, 3, 1)]
    empty = [part[:0] for part in parts[0]]
    x = rng.standard_normal((1, k)).astype(np.float32)
    weights = [weight(name, each) for each in (*parts, empty)]
    with forced(quantized_matmul="lines"):
        before = ran("quantized_matmul:lines")
        results = [r.numpy() for r in linears(lbrx.tensor(x, device="metal"), weights)]
        assert ran("quantized_matmul:lines") == before + 2
    wide = x.astype(np.float64)
    for result, each in zip(results, (*parts, empty), strict=True):
        values = reference(name, each).astype(np.float64)
        allowed = half_steps(wide, values, 64) + 2**-20 * (np.abs(wide) @ np.abs(values).T)
        assert (np.abs(result - wide @ values.T) <= allowed).all()


def test_one_row_with_a_weight_between_vectors(rng):
    (codes,) = stored(rng, "q4_k", (5, 256))
    shifted = lbrx.tensor(np.concatenate([codes[0, :4], codes.ravel()]), device="metal")[4:]
    x = rng.standard_normal((1, 256)).astype(np.float32)
    before = ran("quantized_matmul:simd")
    with forced(quantized_matmul="lines"):
        given = pack("q4_k", data=shifted.reshape(codes.shape))
        result = lbrx.linear(lbrx.tensor(x, device="metal"), given).numpy()
    assert ran("quantized_matmul:simd") == before + 1
    np.testing.assert_allclose(result, x @ reference("q4_k", [codes]).T, rtol=1e-5, atol=0.01)


def test_a_scale_that_is_no_number_stays_in_its_row(rng):
    parts = stored(rng, "q4_0", (3, 128))
    parts[0].reshape(-1).view(quant.find("q4_0").layout)["d"][5] = np.nan
    x = rng.standard_normal((1, 128)).astype(np.float32)
    with forced(quantized_matmul="lines"):
        result = lbrx.linear(lbrx.tensor(x, device="metal"), weight("q4_0", parts)).numpy()
    np.testing.assert_array_equal(np.isnan(result), [[False, True, False]])


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_weights_of_several_schemes(device, rng):
    x = rng.standard_normal((2, 64)).astype(np.float32)
    names = ("q4_0", "q8_0", None)
    values = [rng.standard_normal((n, 64)).astype(np.float32) for n in (5, 7, 9)]
    tensors = [lbrx.tensor(each, device=device) for each in values]
    weights = [t if n is None else lbrx.quantize(t, n) for t, n in zip(tensors, names, strict=True)]
    for kept in (weights, weights[:1], weights[2:], [weights[0], weights[0]], []):
        results = linears(lbrx.tensor(x, device=device), kept)
        for result, each in zip(results, kept, strict=True):
            np.testing.assert_allclose(result.numpy(), x @ each.numpy().T, atol=1e-3)


@pytest.mark.parametrize("kinds", [("f4", "f2"), ("f2", "f4"), ("i4", "i4"), ("f2", "i1")])
def test_scales_and_biases_of_other_types(kinds, rng):
    codes, *_ = stored(rng, "mlx:4:64", (3, 128))
    beside = [rng.integers(-9, 9, (3, 2)).astype(kind) for kind in kinds]
    result = lbrx.dequantize(weight("mlx:4:64", [codes, *beside])).numpy()
    np.testing.assert_array_equal(result, reference("mlx:4:64", [codes, *beside]))


@pytest.mark.parametrize(("variant", "m"), [*((v, 2) for v in (*INTEGERS, "panels")), ("lines", 1)])
def test_weights_with_scales_of_several_types(variant, m, rng):
    """Of one scheme, but a kernel reads scales of one type."""
    x = rng.standard_normal((m, 128)).astype(np.float32)
    parts = [stored(rng, "mlx:4:64", (9, 128), scales) for scales in (*FLOATS, *FLOATS[2:] * 3)]
    with forced(quantized_matmul=variant):
        results = linears(
            lbrx.tensor(x, device="metal"), [weight("mlx:4:64", each) for each in parts]
        )
        for result, each in zip(results, parts, strict=True):
            expected = x @ reference("mlx:4:64", each).astype(np.float32).T
            np.testing.assert_allclose(result.numpy(), expected, atol=0.05)


@on_processors
def test_several_panels_of_integers(rng, monkeypatch):
    """Panels of 64 rows; the last one is shorter."""
    monkeypatch.setattr(quantized_integers, "PANEL", 6 * 2 * 512)
    check_product(rng, "q4_1", "serial_tiles", 9, n=150)
    check_product(rng, "mlx:4:64", "serial_tiles", 3, n=150, dtype=dt.float16)


@pytest.mark.parametrize("way", quantized_matmul.TIMES_ROWS)
def test_several_panels(way, rng, monkeypatch):
    """Panels of 6 rows; the last one is shorter."""
    ways = {way: quantized_matmul.TIMES_ROWS[way]}
    monkeypatch.setattr(quantized_matmul, "TIMES_ROWS", ways)
    monkeypatch.setattr(quantized_matmul, "PANELS", (6 * 4 * 512, 6 * 2 * 512))
    check_product(rng, "q4_1", "panels", 9, n=20)
    check_product(rng, "q4:64", "panels", 9, n=20)
    check_product(rng, "mlx:4:64", "panels", 9, n=20)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_faults(variant, rng):
    with softmetal.checking("bounds", "race"):
        check_product(rng, "q4_0", variant, 3, n=9, k=64)
        check_product(rng, "q3:32", variant, 1, n=3, k=32)


def test_no_faults_in_encoding(rng):
    with softmetal.checking("bounds", "race"):
        check_encoding(rng.standard_normal((3, 64)).astype(np.float32), "q5_1")
        check_decoding(rng, "iq3_s", "serial", shape=(3, 256))


def test_nothing_to_multiply():
    for shape, rows, columns in (((0, 64), 3, 64), ((2, 64), 0, 64), ((2, 0), 3, 0)):
        empty = weight("q4_0", [np.zeros((rows, columns // 32 * 18), np.uint8)])
        result = lbrx.linear(lbrx.zeros(shape, device="metal"), empty)
        np.testing.assert_array_equal(result.numpy(), np.zeros((shape[0], rows)))


# ---- which variant ----

CHOICES = [
    pytest.param(None, "q4_1", 1, "serial", marks=on_processors),
    pytest.param(None, "q4_1", 8, "serial", marks=on_processors),
    pytest.param(None, "q4_1", 64, "serial_tiles", marks=on_processors),
    pytest.param(None, "mlx:mxfp8", 1, "panels", marks=on_processors),
    ("m1", "q4_1", 1, "simd"),
    ("m1", "q4_1", 8, "simd"),
    ("m1", "q4_1", 512, "tiles"),
    ("m4-max", "q4_k", 1, "simd"),
    ("m4-max", "q4_k", 512, "tiles"),
]


@pytest.mark.parametrize(("chip", "name", "m", "variant"), CHOICES)
def test_choice(chip, name, m, variant, on_chip):
    from dataclasses import replace

    problem = QuantizedProduct(quant.find(name), m, 4096, 4096, dt.float16)
    if chip is None:
        assert family.choose(metal.context().info, problem).name == variant
        return
    with on_chip(chip) as context:
        info = replace(context.info, simd_hardware=True)
        assert family.choose(info, problem).name == variant


def test_on_a_chip(on_chip, rng):
    with on_chip("m1"):
        check_product(rng, "q4_0", "simd", 2, n=9, k=64)
        check_product(rng, "q4_0", "tiles", 2, n=9, k=64)


# ---- tensors ----


@pytest.fixture
def matrix(rng):
    return rng.standard_normal((40, 256)).astype(np.float32)


@pytest.mark.parametrize("name", ["q4_0", "q4:32", "mlx:4:32"])
@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (2, 0, 64)])
def test_quantizing_nothing_keeps_the_shape(shape, name, place):
    tensor = lbrx.quantize(lbrx.zeros(shape, device=place), name)
    assert tensor.shape == lbrx.dequantize(tensor).shape == shape


@pytest.mark.parametrize("name", ["q6_k", "q4:64", "mlx:4:64"])
def test_what_travels_with_a_tensor(name, matrix, place):
    tensor = lbrx.quantize(lbrx.tensor(matrix, device=place), name)
    data, info = quant.quantize(matrix, name)
    expected = quant.dequantize(data, info)
    assert (tensor.shape, tensor.dtype, tensor.device) == ((40, 256), dt.float32, place)
    assert tensor.metadata.quantization == name
    for view, rows in [(tensor, slice(None)), (tensor[3:9], slice(3, 9)), (tensor[7], 7)]:
        pickled = pickle.loads(pickle.dumps(view))
        assert (pickled.device, pickled.metadata) == (place, view.metadata)
        for there in (view, view.to_device("cpu"), view.to_device("metal"), pickled):
            own = there.quantization
            assert own is not None
            assert (own.scheme, own.bits, own.group_size) == (name, info.bits, info.group_size)
            for field, array in info.arrays.items():
                np.testing.assert_array_equal(getattr(own, field).numpy(), array[rows])
            np.testing.assert_array_equal(there.numpy(), expected[rows])


def test_views_that_are_no_rows_are_computed_with(matrix, place):
    tensor = lbrx.quantize(lbrx.tensor(matrix, device=place), "q8_0")
    values = tensor.numpy()
    for view, expected in [
        (tensor.T, values.T),
        (tensor[:, 3:7], values[:, 3:7]),
        (tensor[::2], values[::2]),
    ]:
        assert view.quantization is None
        np.testing.assert_array_equal((view * 2).numpy(), expected * 2)
        np.testing.assert_array_equal(view.to_device("cpu").numpy(), expected)
    np.testing.assert_array_equal((tensor[2:4] + 1).numpy(), values[2:4] + 1)


def test_linear_takes_any_weight(matrix, place, rng):
    x = rng.standard_normal((2, 3, 256)).astype(np.float32)
    bias = rng.standard_normal(40).astype(np.float32)
    given, added = (lbrx.tensor(a, device=place) for a in (x, bias))
    for tensor in (
        lbrx.tensor(matrix, device=place),
        lbrx.quantize(lbrx.tensor(matrix, device=place), "q4_1"),
        lbrx.quantize(lbrx.tensor(matrix, device=place), "q4_1")[4:],
    ):
        product = x @ tensor.numpy().T + bias[-len(tensor) :]
        for activation, expected in ((None, product), ("relu", np.maximum(product, 0))):
            result = lbrx.linear(given, tensor, added[-len(tensor) :], activation)
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-3)


def test_embedding_expands_the_rows_that_it_takes(matrix, place):
    indices = np.array([[3, 39], [0, 3]])
    for tensor in (
        lbrx.tensor(matrix, device=place),
        lbrx.quantize(lbrx.tensor(matrix, device=place), "mlx:4:64"),
    ):
        rows = lbrx.embedding(tensor, lbrx.tensor(indices, device=place), "float16")
        assert rows.dtype is dt.float16
        np.testing.assert_array_equal(rows.numpy(), tensor.numpy()[indices].astype(np.float16))


def test_evaluation_leaves_values_packed(matrix):
    tensor = lbrx.quantize(lbrx.tensor(matrix, device="metal"), "q4_0")
    lbrx.eval({"weight": [tensor]})
    assert not tensor.array.storage.is_made


def test_compiled_functions_use_packed_weights(matrix, rng):
    tensor = lbrx.quantize(lbrx.tensor(matrix, device="metal"), "q4_0")
    compiled = lbrx.compile(lambda x: lbrx.linear(x, tensor) * 2)
    for _ in range(2):
        x = lbrx.tensor(rng.standard_normal((1, 256)).astype(np.float32), device="metal")
        np.testing.assert_array_equal(compiled(x).numpy(), (lbrx.linear(x, tensor) * 2).numpy())
    with pytest.raises(lbrx.TraceError, match="takes no quantized tensors"):
        lbrx.compile(lambda x, w: lbrx.linear(x, w))(x, tensor)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda w: lbrx.linear(lbrx.zeros((2, 64)), w),
            lbrx.ShapeError,
            r"last axes of x \(2, 64\) and of the weight \(40, 256\) differ: give equal",
        ),
        (
            lambda w: lbrx.linear(lbrx.zeros((2, 256), dtype="int32"), w),
            lbrx.DtypeError,
            "quantized values are floating, not int32: cast",
        ),
        (
            lambda w: pack("q4_0", lbrx.zeros((2, 19), dtype="uint8")),
            lbrx.ShapeError,
            "complete blocks: give a last axis that is a multiple of 18",
        ),
        (
            lambda w: pack("q4:64", lbrx.zeros((2, 8), dtype="uint32")),
            lbrx.QuantizationError,
            "q4:64 is stored as data, scales, zero_points: give these",
        ),
        (
            lambda w: lbrx.zeros((2, 8), dtype="uint32").decode_blocks(scheme="mlx:4:64"),
            lbrx.QuantizationError,
            "mlx:4:64 is stored as data, scales, biases: give all of them",
        ),
        (
            lambda w: lbrx.zeros((2, 18), dtype="uint8").decode_blocks(
                scheme="q4_0", dtype="int32"
            ),
            lbrx.DtypeError,
            "quantized values are floating, not int32: cast",
        ),
        (lambda w: lbrx.quantize(w, "q9_0"), lbrx.QuantizationError, "not a quantization scheme"),
    ],
)
@pytest.mark.usefixtures("cpu_default")
def test_refusals(call, error, message, matrix):
    with pytest.raises(error, match=message):
        call(lbrx.quantize(lbrx.tensor(matrix, device="cpu"), "q4_0"))
