"""Every operation over dtypes and shapes, against the oracle."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from op_oracle import (
    ACTIVATIONS,
    ALONG_AXIS,
    ELEMENTWISE,
    FLOATS,
    NUMBERS,
    OTHERS,
    REDUCTIONS,
    VIEWS,
    chosen,
    close,
    has,
    layer_norm,
    pair,
    rms_norm,
    wide,
)

import lbrx
from lbrx import ops
from lbrx.arrays import dtype as dt

SHAPES = [(), (1,), (7,), (3, 0), (5, 3), (2, 3, 5)]


@pytest.fixture(autouse=True)
def _quiet():
    """Without numpy's warnings: the oracle divides by zero too."""
    with np.errstate(all="ignore"):
        yield


def test_every_operation_has_an_oracle():
    covered = [*ELEMENTWISE, *REDUCTIONS, *ALONG_AXIS, *OTHERS]
    later = {"video_frames", "video_planes", "custom_kernel"}  # once their modules are imported
    assert sorted(covered) == sorted(set(ops.TABLE) - later)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name, place, rng):
    row = ELEMENTWISE[name]
    dtypes = chosen(row.dtypes, place, name)
    for dtype, shape, attributes in itertools.product(dtypes, SHAPES, row.attributes):
        args = [
            pair(rng, shape, dtype, place, "contiguous", row.low, row.high)
            for _ in range(row.operands)
        ]
        result = getattr(args[0][0], name)(*(t for t, _ in args[1:]), **attributes)
        close(result, row.oracle(*(x for _, x in args), **attributes), row.result(dtype))


@pytest.mark.parametrize("view", [v for v in VIEWS if v != "contiguous"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_on_views(name, view, place, rng):
    row = ELEMENTWISE[name]
    dtype = chosen(row.dtypes, place, name)[-1]
    args = [pair(rng, (4, 5), dtype, place, view, row.low, row.high) for _ in range(row.operands)]
    result = getattr(args[0][0], name)(*(t for t, _ in args[1:]))
    close(result, row.oracle(*(x for _, x in args)), row.result(dtype))
    assert result.is_contiguous


@pytest.mark.parametrize(
    "shapes", [((4, 1, 3), (5, 1)), ((), (2, 3)), ((3,), (2, 0, 3)), ((1,), (1, 1))]
)
@pytest.mark.parametrize("name", [n for n, row in ELEMENTWISE.items() if row.operands == 2])
def test_binary_broadcasts(name, shapes, place, rng):
    row = ELEMENTWISE[name]
    dtype = chosen(row.dtypes, place, name)[-1]
    (a, x), (b, y) = (
        pair(rng, shape, dtype, place, low=row.low, high=row.high) for shape in shapes
    )
    close(getattr(a, name)(b), row.oracle(x, y), row.result(dtype))


@pytest.mark.parametrize("dtype", dt.ALL, ids=str)
def test_mixed_types_meet_in_the_promoted_one(dtype, place, rng):
    for other in chosen(dt.ALL, place, str(dtype)):
        (a, x), (b, y) = (pair(rng, (5,), d, place, low=0) for d in (dtype, other))
        expected = dt.promote(dtype, other)
        if expected is not lbrx.bool_:
            close(a + b, x + y, expected)
        close(a < b, x < y, lbrx.bool_)
        close(lbrx.where(a > b, a, b), np.maximum(x, y), expected)


AXES = [None, 0, -1, (0, 2), (1,), (0, 1, 2), ()]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, axis, keepdims, place, rng):
    row = REDUCTIONS[name]
    view = "transposed" if keepdims else "contiguous"
    for dtype, more in itertools.product(chosen(row.dtypes, place, name), row.attributes):
        a, x = pair(rng, (3, 4, 5), dtype, place, view, row.low, row.high)
        if name == "var" and more and axis == ():
            continue  # 0 / 0
        result = getattr(a, name)(axis=axis, keepdims=keepdims, **more)
        close(
            result, row.oracle(x, axis=axis, keepdims=keepdims, **more), row.result(dtype), scale=4
        )


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_scalars_and_of_nothing(name, place):
    row = REDUCTIONS[name]
    scalar = lbrx.tensor(2.0, device=place)
    close(getattr(scalar, name)(), row.oracle(np.array(2.0)), row.result(dt.float32))
    empty = lbrx.zeros((2, 0), device=place)
    assert getattr(empty, name)(axis=0).shape == (0,)
    if name in ("max", "min", "argmax", "argmin"):
        with pytest.raises(lbrx.ShapeError, match=rf"{name}\(float32\[2, 0\]\): .* are empty"):
            getattr(empty, name)(axis=1)
    else:
        expected = {"mean": math.nan, "var": math.nan, "prod": 1, "all": 1}.get(name, 0)
        np.testing.assert_array_equal(getattr(empty, name)(axis=1).numpy(), [expected] * 2)


@pytest.mark.parametrize("name", ALONG_AXIS)
def test_along_axis(name, place, rng):
    row = ALONG_AXIS[name]
    dtypes = chosen(row.dtypes, place, name)
    for dtype, axis, more in itertools.product(dtypes, (0, 1, -1), row.attributes):
        a, x = pair(rng, (4, 1, 6), dtype, place)
        close(
            getattr(a, name)(axis=axis, **more),
            row.oracle(x, axis=axis, **more),
            row.result(dtype),
            scale=4,
        )
    assert getattr(lbrx.zeros((3, 0), device=place), name)(axis=-1).shape == (3, 0)
    with pytest.raises(lbrx.ShapeError, match="axis -1 does not exist"):
        getattr(lbrx.tensor(1.0, device=place), name)(axis=-1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms(dtype, place, rng):
    for shape in [(7,), (3, 5), (2, 1, 33), (0, 4)]:
        a, x = pair(rng, shape, dtype, place)
        weight, w = pair(rng, shape[-1:], dtype, place)
        bias, b = pair(rng, shape[-1:], dtype, place)
        rms, layer = rms_norm(x, 1e-5), layer_norm(x, 0.1)
        close(a.rms_norm(), rms, dtype)
        close(a.rms_norm(weight), rms * w, dtype)
        close(a.layer_norm(eps=0.1), layer, dtype, scale=2)
        close(a.layer_norm(weight, bias, eps=0.1), layer * w + b, dtype, scale=2)
        close(a.layer_norm(bias=bias, eps=0.1), layer + b, dtype, scale=2)
    assert a[:, :0].layer_norm().shape == a[:, :0].rms_norm().shape == (0, 0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_a_sum(dtype, place, rng):
    for shape in [(7,), (3, 5), (2, 1, 33), (0, 4), (4, 0)]:
        (a, x), (r, y) = (pair(rng, shape, dtype, place) for _ in range(2))
        (weight, w), (bias, b) = (pair(rng, shape[-1:], dtype, place) for _ in range(2))
        rms, layer = rms_norm(x + y, 1e-5), layer_norm(x + y, 0.1)
        for (normal, total), expected in [
            (a.add_rms_norm(r), rms),
            (a.add_rms_norm(r, weight), rms * w),
            (a.add_layer_norm(r, eps=0.1), layer),
            (a.add_layer_norm(r, weight, bias, eps=0.1), layer * w + b),
            (a.add_layer_norm(r, bias=bias, eps=0.1), layer + b),
        ]:
            close(normal, expected, dtype, scale=4)
            close(total, x + y, dtype)


def test_norms_of_a_sum_use_the_unrounded_sum(place):
    # 1 + 2^-9 rounds to 1 in bfloat16: the norm of the rounded sum would be zero.
    one, small = lbrx.ones(2, "bfloat16", device=place), [2.0**-9, 0.0]
    residual = lbrx.tensor(small, dtype="bfloat16", device=place)
    normal, total = one.add_layer_norm(residual, eps=0.0)
    assert (normal.tolist(), total.tolist()) == ([1, -1], [1, 1])


PRODUCTS = [
    *(((1, 1), (1, 1)), ((3, 4), (4, 5)), ((17, 33), (33, 9)), ((4,), (4, 5)), ((3, 4), (4,))),
    *(
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((5, 1, 3, 4), (2, 4, 2)),
        ((3, 0), (0, 2)),
        ((0, 3), (3, 2)),
    ),
]


@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
def test_matmul(shapes, place, rng):
    for dtype in chosen((*FLOATS, dt.int32, dt.uint8), place, str(shapes)):
        (a, x), (b, y) = (pair(rng, shape, dtype, place, high=2) for shape in shapes)
        expected = x @ y
        close(
            a @ b, expected.astype(dtype.numpy) if dtype is dt.uint8 else expected, dtype, scale=8
        )
    (a, x), (b, y) = (pair(rng, shape, dt.float32, place, "transposed") for shape in shapes)
    close(a @ b, x @ y, dt.float32, scale=8)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_matmul_with_bias_and_activation(activation, place, rng):
    follow = ACTIVATIONS[activation]
    for dtype, shapes in itertools.product(chosen(FLOATS, place, str(activation)), PRODUCTS):
        (a, x), (b, y) = (pair(rng, s, dtype, place, low=-1, high=1) for s in shapes)
        close(a.matmul(b, activation=activation), follow(x @ y), dtype, scale=8)
        if y.ndim > 1:
            bias, c = pair(rng, y.shape[-1:], dtype, place)
            close(a.matmul(b, bias, activation=activation), follow(x @ y + c), dtype, scale=8)


def test_bias_is_promoted_and_rounded_once(place, rng):
    (a, x), (b, y), (c, z) = (pair(rng, s, dt.int32, place) for s in [(3, 4), (4, 5), (5,)])
    close(a.matmul(b, c), x @ y + z, dt.int32)
    close(a.matmul(b, c.astype("float32"), "relu"), np.maximum(x @ y + z, 0), dt.float32)
    close(a.astype("float16").matmul(b, c), x @ y + z, dt.float16)
    # 300 * 300 overflows float16, but the sum with the bias, which is rounded, does not.
    big, bias = (
        lbrx.full(s, v, dtype="float16", device=place) for s, v in [((1, 1), 300), (1, -6e4)]
    )
    assert big.matmul(big, bias).item() == 30000.0


def test_cast_between_all_types(place, rng):
    for source, target in itertools.product(dt.ALL, repeat=2):
        if target not in chosen(dt.ALL, place, str(source)) or not has(place, source):
            continue
        a, x = pair(rng, (3, 4), source, place, low=0)
        expected = x != 0 if target is dt.bool_ else (x if target.is_float else np.trunc(x))
        close(a.astype(target), expected, target)


def test_integers_accumulate_in_64_bits(place):
    t = lbrx.tensor(np.uint8([200, 3, 100]), device=place)
    assert (t.sum().item(), t.sum().dtype) == (303, lbrx.uint64)
    assert (t.prod().item(), t.cumsum().tolist()) == (60000, [200, 203, 303])
    assert lbrx.ones(300, "bool", device=place).sum().item() == 300


def test_halves_are_rounded_once(place):
    # 1 + 2^-8 is halfway between two bfloat16 numbers: a sum in bfloat16 would stay 1.
    small = lbrx.full(256, 2.0**-8, dtype="bfloat16", device=place)
    assert lbrx.concat([lbrx.ones(1, "bfloat16", device=place), small]).sum().item() == 2.0
    a, b, c = (lbrx.tensor(v, dtype="float16", device=place) for v in (300.0, 300.0, -60000.0))
    assert a.fma(b, c).item() == 30000.0


def test_nan_and_infinity_follow_numpy(place):
    x = np.array([1, math.nan, 3, -math.inf], np.float32)
    t = lbrx.tensor(x, device=place)
    for name in ("max", "min", "sum", "mean", "argmax", "argmin", "sort", "any", "all"):
        expected = getattr(np, name)(x)
        np.testing.assert_array_equal(getattr(t, name)().numpy(), expected, err_msg=name)
    np.testing.assert_array_equal(t.maximum(2).numpy(), np.maximum(x, 2))
    np.testing.assert_array_equal((t == t).numpy(), x == x)
    assert np.isnan(t.relu().numpy()[1])
    assert t.sort(descending=True).tolist()[:3] == [3, 1, -math.inf]
    big = lbrx.tensor([1e4, -1e4, math.inf], device=place)
    np.testing.assert_allclose(big.sigmoid().numpy(), [1, 0, 1])
    np.testing.assert_allclose(big[:2].softmax().numpy(), [1, 0])
    np.testing.assert_allclose(big[:2].softplus().numpy(), [1e4, 0])


def test_integers_divide_and_raise_without_trapping(place):
    t = lbrx.tensor([7, -7, 1, -1, 0], device=place)
    assert (t // 0).tolist() == [0] * 5
    assert (t % 0).tolist() == [0] * 5
    assert (t // 2).tolist() == [3, -4, 0, -1, 0]
    assert (t % 3).tolist() == [1, 2, 1, 2, 0]
    assert (t**-1).tolist() == [0, 0, 1, -1, 0]
    assert (t**-2).tolist() == [0, 0, 1, 1, 0]
    assert (lbrx.tensor(np.uint8([2, 3]), device=place) ** 3).tolist() == [8, 27]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_moving_elements(dtype, place, rng):
    a, x = pair(rng, (3, 4, 5), dtype, place, "transposed")
    b, y = pair(rng, (3, 2, 5), dtype, place)
    close(lbrx.concat([a, b, a], axis=1), np.concatenate([x, y, x], 1), dtype)
    close(
        a.pad([(0, 1), (2, 0), (0, 0)], constant_values=3),
        np.pad(x, [(0, 1), (2, 0), (0, 0)], constant_values=3),
        dtype,
    )
    rows = np.array([[2, 0], [-1, 1]])
    close(a.take(rows, axis=0), x[rows], dtype)
    close(a.take(rows, axis=-1), x[:, :, rows], dtype)
    places = rng.integers(-4, 4, (3, 7, 5))
    close(a.gather(places, axis=1), np.take_along_axis(x, places, 1), dtype)
    order = np.argsort(x, axis=1, kind="stable")
    close(a.argsort(axis=1), order, dt.int64)
    values, indices = a.topk(2, axis=1)
    close(values, -np.sort(-x, axis=1)[:, :2], dtype)
    np.testing.assert_array_equal(np.take_along_axis(x, indices.numpy(), 1), wide(values.numpy()))
    values, indices = a.topk(3, axis=1, largest=False)
    close(values, np.sort(x, axis=1)[:, :3], dtype)
    close(indices, order[:, :3], dt.int64)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_scatter(dtype, place, rng):
    a, x = pair(rng, (3, 4), dtype, place)
    places = np.stack([rng.permutation(4)[:3] for _ in range(3)])
    u, v = pair(rng, (3, 3), dtype, place)
    expected = x.copy()
    np.put_along_axis(expected, places, v, 1)
    close(a.scatter(places, u), expected, dtype)
    same = np.zeros((3, 3), np.int64)
    total = x.copy()
    total[:, 0] += v.sum(1)
    close(a.scatter(same, u, axis=-1, reduce="add"), total, dtype, scale=2)
    close(a, x, dtype)


def test_erf_follows_python(rng):
    x = np.concatenate([rng.uniform(-7, 7, 2000), rng.normal(0, 1e-3, 500), [0.46875, 6, 1e-320]])
    expected = np.array([math.erf(v) for v in x])
    error = np.abs(ops.error_function.erf(x) - expected) / np.spacing(np.abs(expected))
    assert error.max() <= 4
    ends = ops.error_function.erf(np.array([math.inf, -math.inf, math.nan, -0.0]))
    np.testing.assert_array_equal(ends, [1, -1, math.nan, 0])
    assert np.signbit(ends[3])
