"""`lbrx.compile(f, unit="neural-engine")` against the same function on the cpu."""

from __future__ import annotations

import math

import numpy as np
import pytest

import lbrx
from lbrx.errors import DeviceError, TraceError
from lbrx.neural_engine.operation_refusals import REFUSED, refusal
from lbrx.neural_engine.operation_table import EMIT
from lbrx.ops import TABLE, Spec


def values(*shape, seed=0, low=0.25, high=2.0):
    """Values whose logarithms and roots exist, away from where functions jump, exact in fp16."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.uniform(low, high, shape).astype(np.float16) + np.float16(1e-3)).astype(np.float32)


def signed(*shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(shape).astype(np.float16).astype(np.float32)


def tree(value, prefix=""):
    """Tensors by their path in a result."""
    if isinstance(value, dict):
        return {k: v for key, one in value.items() for k, v in tree(one, f"{prefix}{key}.").items()}
    if isinstance(value, list | tuple):
        return {k: v for i, one in enumerate(value) for k, v in tree(one, f"{prefix}{i}.").items()}
    return {prefix: value.numpy()}


def check(function, *arrays, tolerance=1e-2):
    """Everything that a function returns, computed as a program and by numpy."""
    given = [lbrx.tensor(array, device="metal") for array in arrays]
    made = tree(lbrx.compile(function, unit="neural-engine")(*given))
    wanted = tree(function(*(lbrx.tensor(array, device="cpu") for array in arrays)))
    assert made.keys() == wanted.keys()
    for name, want in wanted.items():
        got = made[name]
        assert (got.shape, got.dtype) == (want.shape, want.dtype), name
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0)
        assert error <= tolerance * scale, f"{name} differs by {error:.3g}"


UNARY = """abs floor ceil trunc round exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos
atan erf square sign negative relu leaky_relu sigmoid tanh gelu silu softplus isnan isinf
isfinite logical_not""".split()
BINARY = """add multiply maximum minimum subtract floor_divide remainder pow divide hypot logaddexp
equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor swiglu
geglu""".split()


def test_elementwise():
    def function(x, y):
        z = x - 1.1
        return {
            "unary": {name: getattr(lbrx, name)(x) for name in UNARY},
            "signed": {n: getattr(lbrx, n)(z) for n in ("sign", "trunc", "gelu", "silu", "leaky_relu", "tanh", "erf")},
            "binary": {name: getattr(lbrx, name)(x, y[0]) for name in BINARY},
            "ternary": [lbrx.where(x > y, x, y), lbrx.fma(x, y, z), lbrx.clip(x, 0.5, 1.5)],
            "casts": [(x > 1).astype("float32"), z.astype("float16").astype("float32")],
            "gelu": lbrx.gelu(z, approximate="tanh"),
        }  # fmt: skip

    check(function, values(3, 5), values(3, 5, seed=1))


def test_reductions_and_norms():
    def function(x, weight, bias):
        total = [
            getattr(x, name)(axis=axis, keepdims=keep)
            for name in ("sum", "mean", "max", "min")
            for axis, keep in ((None, False), (1, True), ((0, -1), False))
        ]
        return {
            "plain": total,
            "var": [x.var(axis=-1), x.var(axis=(0, 2), correction=1, keepdims=True)],
            "norm": [x.norm(axis=1, ord=order) for order in (1, 2, math.inf)],
            "truth": [(x > 1).any(axis=0), (x > -1).all(axis=-1)],
            "softmax": [x.softmax(axis=1), x.log_softmax()],
            "norms": [x.layer_norm(weight, bias), x.layer_norm(), x.rms_norm(weight)],
            "sums": [x.add_rms_norm(x, weight), x.add_layer_norm(x, weight, bias)],
        }

    check(function, signed(2, 3, 8), values(8), signed(8, seed=1))


def test_views_and_movement():
    places = np.array([[2, 0], [-1, 1]])

    def function(x):
        return {
            "reshape": x.reshape(6, 20),
            "transpose": [x.transpose(0, 2), x.mT, x.transpose(0, 1).reshape(2, 60)],
            "slices": [x[1], x[:, 2], x[..., 1:5:2], x[:, ::3], x[:, 1:3, 2:4], x[0, 1, 2]],
            "backwards": x[..., ::-1],
            "broadcast": [x[:, :1].expand(3, 4, 10), x[0, 0].maximum(x)],
            "heads": x.reshape(3, 4, 2, 5).transpose(1, 2)[:, 1],
            "concat": lbrx.concat([x, x[:, :2] * 2], axis=1),
            "pad": x.pad([(0, 1), (2, 0), (0, 0)], constant_values=0.5),
            "take": [x.take(places, axis=0), x.take([7, 1], axis=1, beyond="zeros")],
            "gather": x.gather(np.argsort(signed(3, 4, 10), axis=-1)),
            "sort": [x.sort(), x.sort(axis=0, descending=True), x.topk(3)[0]],
        }  # fmt: skip

    check(function, signed(3, 4, 10), tolerance=1e-6)


def test_products_and_attention():
    weight = signed(6, 32) / 8
    filters = signed(4, 2, 3, 3) / 4

    def function(x, image, query, key):
        on = x.device
        dense, conv = lbrx.tensor(weight, device=on), lbrx.tensor(filters, device=on)
        packed = lbrx.quantize(dense, "q8_0")
        half = key.shape[1] // 2
        attention = {
            "plain": query.attention(key, key),
            "causal": query.attention(key, key, causal=True),
            "window": query.attention(key, key, causal=True, window=2, scale=0.2),
            "masked": query.attention(key, key, query[..., :6] * 0.5),
            "grouped": query.attention(key[:, :half], key[:, :half], causal=True),
        }
        positions = lbrx.arange(query.shape[2], device=on)
        return {
            "matmul": [x @ dense.mT, x.matmul(dense.mT, dense[:, 0], activation="gelu"), x[0] @ dense.mT, x @ dense[0]],
            "quantized": lbrx.linear(x, packed),
            "conv": [image.conv2d(conv, conv[:, 0, 0, 0]), image.conv2d(conv, stride=2, padding="same")],
            "pools": [image.max_pool2d(kernel_size=2), image.avg_pool2d(kernel_size=3, stride=2, padding=1, count_include_pad=False)],
            "attention": attention,
            "rope": [query.rope(positions), query.rope(positions, interleaved=True, dims=4, base=100.0)],
        }  # fmt: skip

    check(
        function, signed(5, 32), signed(1, 2, 8, 7), signed(2, 4, 5, 8), signed(2, 4, 6, 8, seed=1)
    )


def test_every_operation_is_translated_or_refused():
    spec = Spec((2, 2), lbrx.float32)
    for name, op in TABLE.items():
        if name in EMIT or name == "decode_blocks":  # decoding depends on constants alone
            continue
        assert refusal(name, [spec], [spec], op.attributes, [False]), name
    assert not set(EMIT) & set(REFUSED)
    assert set(EMIT) <= set(TABLE)


def test_all_refusals_at_once():
    def function(x):
        index = (x > 0).astype("int32")
        return x.tan().argmax(), x.cumsum(), index, x.take(index[0], axis=0), x.norm(ord=3)

    with pytest.raises(TraceError) as problem:
        lbrx.compile(function, unit="neural-engine")(lbrx.ones((2, 2), device="metal"))
    text = str(problem.value)
    assert text.startswith("function cannot run on the Neural Engine:")
    for part in (
        "tan: write sin(x) / cos(x)",
        "argmax: the Neural Engine has no integers",
        "cumsum: multiply with a triangular matrix of ones",
        "cast: its result is int32",
        "take: its indices depend on the arguments",
        "norm: ord=3: give 1, 2 or inf",
    ):
        assert part in text


def test_programs_are_kept_by_shape_and_value():
    traced = []

    def function(x, scale, name="y"):
        traced.append(1)
        return {name: x * scale}

    compiled = lbrx.compile(function, unit="neural-engine")
    x = lbrx.tensor([1.0, 2.0], device="cpu")
    assert compiled(x, 2.0)["y"].tolist() == [2.0, 4.0]
    assert compiled(x + 1, 2.0)["y"].tolist() == [4.0, 6.0]
    assert len(traced) == 1
    assert compiled(x, 3.0, name="z")["z"].tolist() == [3.0, 6.0]
    result = compiled(lbrx.tensor([1.0], device="metal"), 2.0)["y"]
    assert (len(traced), result.device, result.dtype) == (3, "metal", lbrx.float32)
    assert (compiled.package(x, 2.0) / "Manifest.json").exists()
    with pytest.raises(TraceError, match="no program for such arguments: call the function first"):
        compiled.package(x, 5.0)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (np.array([1, 2]), "argument 0 is int64: cast it to float16"),
        (np.float32(2.0), "argument 0 has the shape"),
        (np.ones((1,) * 6, np.float32), "argument 0 has the shape"),
    ],
)
def test_bad_arguments(argument, message):
    compiled = lbrx.compile(lambda x: x * 2, unit="neural-engine")
    with pytest.raises(TraceError, match=message):
        compiled(lbrx.tensor(argument, device="metal"))


def test_functions_without_tensors():
    with pytest.raises(TraceError, match="needs a tensor to compute on"):
        lbrx.compile(lambda: 1, unit="neural-engine")()
    with pytest.raises(TraceError, match="returns no tensor"):
        lbrx.compile(lambda x: 1, unit="neural-engine")(lbrx.ones(2, device="metal"))


def test_values_cannot_be_read():
    with pytest.raises(TraceError, match="reads the value"):
        lbrx.compile(lambda x: x * x.sum().item(), unit="neural-engine")(
            lbrx.ones(2, device="metal")
        )


def test_an_unknown_unit():
    with pytest.raises(DeviceError, match="'tpu' is not a unit: give 'gpu' or 'neural-engine'"):
        lbrx.compile(lambda x: x, unit="tpu")


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_constant_beyond_float16_is_infinite():
    masked = lbrx.compile(lambda x: lbrx.where(x > 0, x, -1e9).softmax(), unit="neural-engine")
    made = masked(lbrx.tensor([[1.0, -1.0, 1.0]], device="metal"))
    np.testing.assert_allclose(made.numpy(), [[0.5, 0, 0.5]], atol=1e-3)
