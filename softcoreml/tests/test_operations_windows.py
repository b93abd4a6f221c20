"""Convolutions and poolings against sums over single elements in float64."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from mil_run import call, close
from seeds import generator

from softcoreml.errors import ModelError
from softcoreml.operations import convolution

Array = np.ndarray


def pads_of(
    kind: str, length: int, size: int, stride: int, given: tuple[int, int]
) -> tuple[int, int]:
    """MIL's padding of one axis, by its formula for output sizes."""
    if kind == "custom":
        return given
    if kind == "valid":
        return 0, 0
    total = max(0, (math.ceil(length / stride) - 1) * stride + size - length)
    return (total // 2, total - total // 2) if kind == "same" else (total - total // 2, total // 2)


def naive_conv(
    x: Array, weight: Array, strides: Any, dilations: Any, pads: Any, groups: int
) -> Array:
    n, _, *spatial = x.shape
    out, per_group, *kernel = weight.shape
    counts = [
        (length + sum(pad) - (size - 1) * by - 1) // step + 1
        for length, pad, size, by, step in zip(
            spatial, pads, kernel, dilations, strides, strict=True
        )
    ]
    result = np.zeros((n, out, *counts))
    for image, channel, *place in itertools.product(*map(range, result.shape)):
        first = channel // (out // groups) * per_group
        for inner, *tap in itertools.product(range(per_group), *map(range, kernel)):
            at = [
                p * step + t * by - pad[0]
                for p, step, t, by, pad in zip(place, strides, tap, dilations, pads, strict=True)
            ]
            if all(0 <= one < length for one, length in zip(at, spatial, strict=True)):
                pixel = float(x[(image, first + inner, *at)])
                result[(image, channel, *place)] += pixel * float(weight[(channel, inner, *tap)])
    return result


CONVOLUTIONS = [
    ((7,), (3,), 1, 2, 1),
    ((9,), (4,), 3, 1, 2),
    ((5, 6), (3, 2), 2, 1, 1),
    ((6, 5), (2, 3), 1, 2, 2),
    ((4, 5), (1, 1), 1, 1, 1),
    ((3, 4, 5), (2, 1, 3), 2, 1, 3),
]


@pytest.mark.parametrize("kind", ["valid", "same", "same_lower", "custom"])
@pytest.mark.parametrize(("spatial", "kernel", "stride", "dilation", "groups"), CONVOLUTIONS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_conv(
    kind: str,
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: int,
    dilation: int,
    groups: int,
    dtype: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, rank = generator(1), len(spatial)
    x = rng.standard_normal((2, 2 * groups, *spatial)).astype(dtype)
    weight = rng.standard_normal((3 * groups, 2, *kernel)).astype(dtype)
    bias = rng.standard_normal(3 * groups).astype(dtype)
    given = [(place % 3, (place + 1) % 2) for place in range(rank)]
    sizes = [(size - 1) * dilation + 1 for size in kernel]
    pads = [
        pads_of(kind, length, size, stride, pad)
        for length, size, pad in zip(spatial, sizes, given, strict=True)
    ]
    expected = naive_conv(x, weight, [stride] * rank, [dilation] * rank, pads, groups)
    expected += bias.astype(np.float64).reshape(1, -1, *[1] * rank)
    monkeypatch.setattr(convolution, "COLUMN_BYTES", 200)  # several blocks of rows
    actual = call(
        "conv",
        x=x,
        weight=weight,
        bias=bias,
        strides=np.full(rank, stride),
        dilations=np.full(rank, dilation),
        pad_type=kind,
        pad=np.array(given).reshape(-1),
        groups=np.int32(groups),
    )
    assert actual.dtype == np.float32
    close(actual, expected)


def test_quantized_weights_of_a_convolution() -> None:
    rng = generator(2)
    x, codes = rng.standard_normal((1, 2, 6)).astype(np.float32), rng.integers(0, 16, (3, 2, 2))
    scale, shift = rng.random(3).astype(np.float32), rng.random(3).astype(np.float32)
    weight = (
        codes * scale.astype(np.float64)[:, None, None] + shift.astype(np.float64)[:, None, None]
    )
    actual = call(
        "conv_quantized",
        x=x,
        weight=codes.astype(np.uint8),
        quantization_type="linear",
        nbits=np.int32(4),
        quant_scale=scale,
        quant_bias=shift,
        pad_type="custom",
        pad=np.array([1, 0]),
    )
    close(actual, naive_conv(x, weight, [1], [1], [(1, 0)], 1))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [1, 3])
def test_a_transposed_convolution_is_the_adjoint_of_a_convolution(groups: int, stride: int) -> None:
    """<conv(x), y> = <x, conv_transpose(y)> for every x and y, with the same padding."""
    rng = generator(3)
    weight = rng.standard_normal((4, 3, 3, 2)).astype(np.float32)
    x = rng.standard_normal((2, 3 * groups, 10, 8)).astype(np.float32)
    how = {"strides": np.full(2, stride), "dilations": np.array([1, 2]), "groups": groups}
    pad = {"pad_type": "custom", "pad": np.array([1, 0, 2, 1])}
    forward = call("conv", x=x, weight=weight, **how, **pad)
    y = rng.standard_normal(forward.shape).astype(np.float32)
    shape = {"output_shape": np.array(x.shape)}
    back = call("conv_transpose", x=y, weight=weight, **how, **pad, **shape)
    left = np.vdot(forward.astype(np.float64), y)
    np.testing.assert_allclose(np.vdot(x.astype(np.float64), back), left, rtol=1e-5)


@pytest.mark.parametrize("wanted", [None, 11, 12])
def test_a_transposed_convolution_of_same_size(wanted: int | None) -> None:
    """Its output is the input of a convolution of type same."""
    rng = generator(4)
    weight, y = rng.standard_normal((2, 3, 5)), rng.standard_normal((1, 2, 6))
    weight, y = weight.astype(np.float32), y.astype(np.float32)
    how: dict[str, Any] = {"strides": np.array([2]), "pad_type": "same"}
    shape = {} if wanted is None else {"output_shape": np.array([1, 3, wanted])}
    back = call("conv_transpose", x=y, weight=weight, **how, **shape)
    assert back.shape == (1, 3, wanted or 12)
    x = rng.standard_normal(back.shape).astype(np.float32)
    forward = call("conv", x=x, weight=weight, **how)
    np.testing.assert_allclose(
        np.vdot(forward.astype(np.float64), y), np.vdot(x.astype(np.float64), back), rtol=1e-5
    )


def naive_pool(
    x: Array, kernel: Any, strides: Any, pads: Any, ceil: bool, name: str, excluded: bool
) -> Array:
    n, c, *spatial = x.shape
    counts = []
    for length, size, step, (before, after) in zip(spatial, kernel, strides, pads, strict=True):
        room = (length + before + after - size) / step
        count = (math.ceil(room) if ceil else math.floor(room)) + 1
        if ceil and before + after and (count - 1) * step >= length + before:
            count -= 1
        counts.append(count)
    result = np.zeros((n, c, *counts))
    for image, channel, *place in itertools.product(*map(range, result.shape)):
        inside, padded = [], 0
        for tap in itertools.product(*map(range, kernel)):
            at = [
                p * s + t - pad[0] for p, s, t, pad in zip(place, strides, tap, pads, strict=True)
            ]
            if all(0 <= one < length for one, length in zip(at, spatial, strict=True)):
                inside.append(float(x[(image, channel, *at)]))
            elif all(
                one < length + pad[1] for one, length, pad in zip(at, spatial, pads, strict=True)
            ):
                padded += 1
        values, count = np.array(inside), len(inside) + (0 if excluded else padded)
        result[(image, channel, *place)] = {
            "max_pool": values.max(),
            "avg_pool": values.sum() / count,
            "l2_pool": math.sqrt((values * values).sum()),
        }[name]
    return result


@pytest.mark.parametrize("name", ["max_pool", "avg_pool", "l2_pool"])
@pytest.mark.parametrize("kind", ["valid", "same", "same_lower", "custom"])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("excluded", [False, True])
@pytest.mark.parametrize(
    ("spatial", "kernel", "strides"),
    [((9,), (4,), (3,)), ((6, 7), (3, 2), (2, 2)), ((4, 5, 3), (2, 3, 1), (2, 1, 1))],
)
def test_pool(
    name: str,
    kind: str,
    ceil: bool,
    excluded: bool,
    spatial: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
) -> None:
    x = generator(5).standard_normal((2, 3, *spatial)).astype(np.float32)
    given = [(size // 2, size // 2) for size in kernel]
    pads = [
        pads_of(kind, length, size, step, pad)
        for length, size, step, pad in zip(spatial, kernel, strides, given, strict=True)
    ]
    inputs: dict[str, Any] = {
        "x": x,
        "kernel_sizes": np.array(kernel),
        "strides": np.array(strides),
        "pad_type": kind,
        "pad": np.array(given).reshape(-1),
        "ceil_mode": ceil,
    }
    if name == "avg_pool":
        inputs["exclude_padding_from_average"] = excluded
    if ceil and kind.startswith("same"):
        with pytest.raises(ModelError, match="ceil_mode"):
            call(name, **inputs)
        return
    close(call(name, **inputs), naive_pool(x, kernel, strides, pads, ceil, name, excluded))


@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
def test_long_windows(name: str) -> None:
    x = generator(6).standard_normal((1, 2, 300)).astype(np.float16)
    actual = call(name, x=x, kernel_sizes=np.array([100]), strides=np.array([7]), pad_type="valid")
    close(actual, naive_pool(x, [100], [7], [(0, 0)], False, name, False))
