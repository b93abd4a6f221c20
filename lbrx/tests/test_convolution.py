"""Convolutions and pooling, every variant, against loops over windows in float64."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from op_oracle import FLOATS, chosen, close, pair

import lbrx
from lbrx.arrays import dtype as dt
from lbrx.kernels import forced
from lbrx.tensors import functions as fn


def pairs_of(padding, lengths, reach, stride):
    """The padding of both axes, written apart from lbrx."""
    if padding == "valid":
        return [(0, 0), (0, 0)]
    if padding == "same":
        total = [
            max((math.ceil(n / s) - 1) * s + r - n, 0)
            for n, r, s in zip(lengths, reach, stride, strict=True)
        ]
        return [(t // 2, t - t // 2) for t in total]
    return np.broadcast_to(
        np.reshape(padding, (-1, 1)) if np.ndim(padding) == 1 else padding, (2, 2)
    )


def windows(x, size, stride, padding, dilation, fill):
    """Each place of the window, and what it covers of all images and channels."""
    stride, dilation = np.broadcast_to(stride, 2), np.broadcast_to(dilation, 2)
    reach = [(n - 1) * d + 1 for n, d in zip(size, dilation, strict=True)]
    pads = pairs_of(padding, x.shape[2:], reach, stride)
    x = np.pad(x, [(0, 0), (0, 0), *map(tuple, pads)], constant_values=fill)
    counts = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, stride, strict=True)]
    for i, j in itertools.product(*map(range, counts)):
        top, left = i * stride[0], j * stride[1]
        seen = x[:, :, top : top + reach[0] : dilation[0], left : left + reach[1] : dilation[1]]
        yield (i, j), counts, seen


def conv(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    each, channels = w.shape[0] // groups, w.shape[1]
    result = None
    for (i, j), counts, seen in windows(x, w.shape[2:], stride, padding, dilation, 0):
        if result is None:
            result = np.zeros((x.shape[0], w.shape[0], *counts))
        for o in range(w.shape[0]):
            first = o // each * channels
            result[:, o, i, j] = (seen[:, first : first + channels] * w[o]).sum((1, 2, 3))
    return result if bias is None else result + bias[:, None, None]


def pool(x, size, stride=None, padding=0, mean=False, with_padding=True):
    size = tuple(np.broadcast_to(size, 2))
    fill = 0 if mean and with_padding else math.nan
    result = None
    for (i, j), counts, seen in windows(
        x, size, size if stride is None else stride, padding, 1, fill
    ):
        if result is None:
            result = np.zeros((*x.shape[:2], *counts))
        result[:, :, i, j] = (np.nanmean if mean else np.nanmax)(seen, (2, 3))
    return result


# Shapes of x and the weight, and the attributes.
CONVOLUTIONS = [
    ((1, 1, 5, 5), (1, 1, 3, 3), {}),
    ((2, 3, 7, 9), (4, 3, 3, 3), {"padding": 1}),
    ((2, 3, 8, 37), (17, 3, 3, 5), {"stride": (2, 3), "padding": (1, 2)}),
    ((1, 4, 9, 70), (6, 2, 2, 3), {"groups": 2, "dilation": (2, 3), "padding": ((0, 1), (2, 0))}),
    ((1, 5, 6, 6), (5, 1, 3, 3), {"groups": 5, "padding": "same"}),
    ((2, 3, 8, 7), (4, 3, 4, 2), {"stride": 3, "padding": "same"}),
    ((3, 4, 5, 6), (2, 4, 1, 1), {}),
    ((1, 4, 5, 6), (2, 4, 1, 1), {"stride": 2, "padding": "valid"}),
    ((1, 2, 1, 1), (3, 2, 3, 3), {"padding": 4}),
    ((1, 2, 4, 4), (3, 2, 4, 4), {}),
    ((1, 0, 4, 4), (3, 0, 2, 2), {}),
    ((0, 2, 4, 4), (3, 2, 2, 2), {}),
]
VARIANTS = ("serial", "serial_row", "threads", "product")


@pytest.mark.parametrize(("shape", "weight", "rule"), CONVOLUTIONS, ids=str)
def test_conv2d(shape, weight, rule, place, rng):
    for dtype in chosen(FLOATS, place, str(shape)):
        (a, x), (b, w), (c, z) = (
            pair(rng, s, dtype, place, low=-1, high=1) for s in (shape, weight, weight[:1])
        )
        # The oracle has no result to take the shape of without images.
        expected = conv(x, w, **rule) if shape[0] else np.zeros((0, 3, 3, 3))
        close(a.conv2d(b, **rule), expected, dtype, scale=8)
        close(a.conv2d(b, c, **rule), expected + z[:, None, None], dtype, scale=8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant, rng):
    dtypes = (dt.float32, dt.float16, dt.bfloat16)
    for i, (shape, weight, rule) in enumerate(CONVOLUTIONS[1:-2]):
        dtype = dtypes[i % 3]
        (a, x), (b, w), (c, z) = (
            pair(rng, s, dtype, "metal", low=-1, high=1) for s in (shape, weight, weight[:1])
        )
        with forced(convolution=variant):
            close(a.conv2d(b, c, **rule), conv(x, w, z, **rule), dtype, scale=8)
            close(a.conv2d(b, **rule), conv(x, w, **rule), dtype, scale=8)


def test_many_images_are_multiplied_in_steps(rng, monkeypatch):
    from lbrx.kernels.convolution import convolution

    monkeypatch.setattr(convolution, "COLUMN_BYTES", 5000)
    (a, x), (b, w) = (
        pair(rng, s, dt.float32, "metal", low=-1, high=1) for s in [(5, 2, 6, 6), (3, 2, 3, 3)]
    )
    with forced(convolution="product"):
        close(a.conv2d(b), conv(x, w), dt.float32, scale=8)


def test_types_meet_and_views_are_read(place, rng):
    a, x = pair(rng, (2, 6, 5, 4), dt.float32, place, "transposed", -1, 1)
    b, w = pair(rng, (4, 6, 3, 2), dt.float16, place, "strided", -1, 1)
    close(a.conv2d(b), conv(x, w), dt.float32, scale=8)
    # 300 * 300 is beyond float16, but the bias brings it back before it is rounded.
    big = lbrx.full((1, 1, 1, 1), 300, "float16", place)
    assert big.conv2d(big, lbrx.full((1,), -6e4, "float16", place)).item() == 30000.0


@pytest.mark.parametrize(
    "rule",
    [{}, {"stride": 2, "padding": (2, 1)}, {"padding": "same", "dilation": 2}, {"groups": 2}],
)
def test_conv1d(rule, place, rng):
    groups = rule.get("groups", 1)
    for dtype in chosen(FLOATS, place, str(rule)):
        (a, x), (b, w), (c, z) = (
            pair(rng, s, dtype, place, low=-1, high=1)
            for s in [(2, 4, 9), (6, 4 // groups, 3), (6,)]
        )
        wide = {k: (1, v) for k, v in rule.items() if k in ("stride", "dilation")}
        if not isinstance(pads := rule.get("padding", 0), str):
            pads = ((0, 0), np.broadcast_to(pads, 2))
        expected = conv(x[:, :, None], w[:, :, None], z, padding=pads, groups=groups, **wide)
        close(fn.conv1d(a, b, c, **rule), expected[:, :, 0], dtype, scale=8)


POOLS = [
    ((2, 3, 6, 8), 2, {}),
    ((1, 2, 7, 40), 3, {"stride": 2, "padding": 1}),
    ((1, 2, 5, 35), (2, 4), {"stride": (1, 3), "padding": ((0, 1), (3, 0))}),
    ((2, 1, 5, 5), 3, {"stride": 2, "padding": "same"}),
    ((1, 1, 1, 1), 1, {}),
]


@pytest.mark.parametrize("variant", ["serial", "threads"])
@pytest.mark.parametrize(("shape", "size", "rule"), POOLS, ids=str)
def test_pooling(shape, size, rule, variant, place, rng):
    if place == "cpu" and variant == "threads":
        return  # variants are metal's
    for dtype in chosen(FLOATS, place, f"{shape}{variant}"):
        a, x = pair(rng, shape, dtype, place)
        with forced(pooling=variant):
            close(a.max_pool2d(size, **rule), pool(x, size, **rule), dtype)
            mean = pool(x, size, mean=True, **rule)
            close(a.avg_pool2d(size, **rule), mean, dtype, scale=2)
            mean = pool(x, size, mean=True, with_padding=False, **rule)
            close(a.avg_pool2d(size, count_include_pad=False, **rule), mean, dtype, scale=2)


def test_pooling_of_rows_and_nan(place, rng):
    a, x = pair(rng, (2, 3, 9), dt.float32, place)
    rule = {"stride": 2, "padding": (1, 0)}
    wide = {"stride": (1, 2), "padding": ((0, 0), (1, 0))}
    close(fn.max_pool1d(a, 3, **rule), pool(x[:, :, None], (1, 3), **wide)[:, :, 0], dt.float32)
    mean = pool(x[:, :, None], (1, 3), mean=True, **wide)[:, :, 0]
    close(fn.avg_pool1d(a, 3, **rule), mean, dt.float32)
    close(fn.max_pool1d(a, 3), pool(x[:, :, None], (1, 3))[:, :, 0], dt.float32)
    spoiled = lbrx.tensor([[[1, math.nan, 2, -math.inf, -math.inf, -math.inf]]], device=place)
    np.testing.assert_array_equal(fn.max_pool1d(spoiled, 3).numpy(), [[[math.nan, -math.inf]]])


def ones(*shape, dtype="float32"):
    return lbrx.ones(shape, dtype, "cpu")


IMAGES, FILTERS = ones(1, 4, 5, 5), ones(2, 4, 3, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ones(4, 5, 5).conv2d(FILTERS),
            lbrx.ShapeError,
            r"x has shape \(4, 5, 5\): give \(images",
        ),
        (
            lambda: IMAGES.conv2d(ones(3, 3)),
            lbrx.ShapeError,
            r"the weight has shape \(3, 3\): give",
        ),
        (lambda: IMAGES.conv2d(ones(2, 4, 3, 0)), lbrx.ShapeError, "covers nothing: give sizes"),
        (lambda: IMAGES.conv2d(ones(2, 3, 3, 3)), lbrx.ShapeError, "has 3 channels: give 4"),
        (
            lambda: IMAGES.conv2d(FILTERS, groups=3),
            lbrx.ShapeError,
            "groups=3 do not divide 4 .* and 2",
        ),
        (lambda: IMAGES.conv2d(FILTERS, groups=0), lbrx.ShapeError, "groups=0 do not divide"),
        (
            lambda: IMAGES.conv2d(FILTERS, ones(3)),
            lbrx.ShapeError,
            r"bias has shape \(3,\): .*\(2,\)",
        ),
        (
            lambda: IMAGES.conv2d(FILTERS, dilation=3),
            lbrx.ShapeError,
            "does not fit .*: give more padding",
        ),
        (
            lambda: IMAGES.conv2d(FILTERS, stride=0),
            lbrx.ShapeError,
            "stride=0: give one integer from 1",
        ),
        (
            lambda: IMAGES.conv2d(FILTERS, padding=-1),
            lbrx.ShapeError,
            "padding=-1: give one integer from 0",
        ),
        (
            lambda: IMAGES.conv2d(FILTERS, padding="full"),
            ValueError,
            "'full': give 'same', 'valid' or",
        ),
        (lambda: IMAGES.conv2d(FILTERS, stride=(1, 2, 3)), lbrx.ShapeError, "or two"),
        (lambda: IMAGES.conv2d(FILTERS, stride=1.5), TypeError, "as an integer"),
        (
            lambda: ones(1, 4, 5, 5, dtype="int8").conv2d(ones(2, 4, 3, 3, dtype="int8")),
            lbrx.DtypeError,
            r"conv2d\(int8.*: int8 values: cast to a floating type",
        ),
        (
            lambda: fn.conv1d(IMAGES, FILTERS),
            lbrx.ShapeError,
            r"give \(sequences, channels, length\)",
        ),
        (lambda: IMAGES.max_pool2d(6), lbrx.ShapeError, "does not fit"),
        (lambda: IMAGES.max_pool2d(2, padding=2), lbrx.ShapeError, "give less than the window"),
        (lambda: fn.avg_pool1d(IMAGES, 2), lbrx.ShapeError, r"give \(sequences"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
