"""Operations against torch at random sizes: convolutions, poolings, norms, recurrence, sampling."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seeds import generator

sys.path.insert(0, str(Path(__file__).parents[1]))
from mil_run import call, close

torch = pytest.importorskip("torch", reason="the peer: make test-peers")
F = torch.nn.functional
ROUNDS = range(6)
ARRAY = np.ndarray


def tensor(x: ARRAY | None) -> Any:
    return None if x is None else torch.from_numpy(np.array(x, order="C"))


class Draw:
    """Random sizes and values of one case."""

    def __init__(self, key: int) -> None:
        self.rng = generator(key)

    def size(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def sizes(self, count: int, low: int, high: int) -> list[int]:
        return [self.size(low, high) for _ in range(count)]

    def real(self, *shape: int) -> ARRAY:
        return self.rng.standard_normal(shape).astype(np.float32)

    def whole(self, high: int, *shape: int) -> ARRAY:
        return self.rng.integers(0, high, shape).astype(np.int32)

    def flag(self) -> bool:
        return bool(self.rng.integers(0, 2))


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("round_", ROUNDS)
def test_conv(spatial: int, round_: int) -> None:
    draw = Draw(100 * spatial + round_)
    groups, kernel = draw.size(1, 3), draw.sizes(spatial, 1, 4)
    strides, dilations = draw.sizes(spatial, 1, 3), draw.sizes(spatial, 1, 2)
    pads = draw.sizes(2 * spatial, 0, 3)
    x = draw.real(draw.size(1, 3), groups * draw.size(1, 4), *draw.sizes(spatial, 7, 12))
    weight = draw.real(groups * draw.size(1, 4), x.shape[1] // groups, *kernel)
    bias = draw.real(len(weight)) if draw.flag() else None
    torch_pads = [one for pair in zip(pads[-2::-2], pads[::-2], strict=True) for one in pair]
    function = getattr(F, f"conv{spatial}d")
    expected = function(
        F.pad(tensor(x), torch_pads), tensor(weight), tensor(bias), strides, 0, dilations, groups
    )
    actual = call(
        "conv",
        x=x,
        weight=weight,
        pad_type="custom",
        pad=np.array(pads),
        strides=np.array(strides),
        dilations=np.array(dilations),
        groups=np.int32(groups),
        **({} if bias is None else {"bias": bias}),
    )
    close(actual, expected)


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("round_", ROUNDS)
def test_conv_transpose(spatial: int, round_: int) -> None:
    draw = Draw(200 * spatial + round_)
    groups, kernel = draw.size(1, 3), draw.sizes(spatial, 1, 4)
    strides, dilations = draw.sizes(spatial, 1, 3), draw.sizes(spatial, 1, 2)
    pads = [draw.size(0, (size - 1) * by) for size, by in zip(kernel, dilations, strict=True)]
    extra = [draw.size(0, max(step, by) - 1) for step, by in zip(strides, dilations, strict=True)]
    x = draw.real(draw.size(1, 2), groups * draw.size(1, 3), *draw.sizes(spatial, 7, 8))
    weight = draw.real(x.shape[1], draw.size(1, 3), *kernel)
    bias = draw.real(weight.shape[1] * groups)
    function = getattr(F, f"conv_transpose{spatial}d")
    expected = function(
        tensor(x), tensor(weight), tensor(bias), strides, pads, extra, groups, dilations
    ).numpy()
    actual = call(
        "conv_transpose",
        x=x,
        weight=weight,
        bias=bias,
        pad_type="custom",
        pad=np.repeat(pads, 2),
        strides=np.array(strides),
        dilations=np.array(dilations),
        groups=np.int32(groups),
        **({"output_shape": np.array(expected.shape)} if any(extra) else {}),
    )
    close(actual, expected)


@pytest.mark.parametrize("pad_type", ["same", "same_lower"])
@pytest.mark.parametrize("round_", ROUNDS)
def test_conv_same(pad_type: str, round_: int) -> None:
    """torch has stride 1 only; an odd padding goes behind, so same_lower is its mirror image."""
    draw = Draw(700 + round_)
    x, weight = draw.real(2, 3, 8, 9), draw.real(4, 3, *draw.sizes(2, 1, 5))
    if pad_type == "same":
        expected = F.conv2d(tensor(x), tensor(weight), padding="same").numpy()
    else:
        flipped = tensor(x[:, :, ::-1, ::-1]), tensor(weight[:, :, ::-1, ::-1])
        expected = F.conv2d(*flipped, padding="same").numpy()[:, :, ::-1, ::-1]
    close(call("conv", x=x, weight=weight, pad_type=pad_type), expected)


def _pool_case(draw: Draw, spatial: int) -> tuple[ARRAY, dict[str, Any], tuple[Any, ...]]:
    kernel = draw.sizes(spatial, 1, 4)
    strides = [draw.size(1, min(size, 3)) for size in kernel]
    pads = [draw.size(0, size // 2) for size in kernel]
    ceil = draw.flag()
    x = draw.real(draw.size(1, 2), draw.size(1, 4), *draw.sizes(spatial, 5, 12))
    inputs = {
        "x": x,
        "kernel_sizes": np.array(kernel),
        "strides": np.array(strides),
        "pad_type": "custom",
        "pad": np.repeat(pads, 2),
        "ceil_mode": ceil,
    }
    return x, inputs, (kernel, strides, pads, ceil)


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("round_", range(12))
def test_max_and_average_pool(spatial: int, round_: int) -> None:
    draw = Draw(300 * spatial + round_)
    x, inputs, (kernel, strides, pads, ceil) = _pool_case(draw, spatial)
    largest = getattr(F, f"max_pool{spatial}d")(tensor(x), kernel, strides, pads, ceil_mode=ceil)
    close(call("max_pool", **inputs), largest)
    for excluded in (False, True):
        mean = getattr(F, f"avg_pool{spatial}d")(
            tensor(x), kernel, strides, pads, ceil_mode=ceil, count_include_pad=not excluded
        )
        close(call("avg_pool", exclude_padding_from_average=excluded, **inputs), mean)


@pytest.mark.parametrize("round_", ROUNDS)
def test_l2_pool(round_: int) -> None:
    draw = Draw(1300 + round_)
    x, inputs, (kernel, strides, _, ceil) = _pool_case(draw, 2)
    inputs["pad_type"] = "valid"
    expected = F.lp_pool2d(tensor(x), 2.0, kernel, strides, ceil_mode=ceil)
    if not ceil:  # torch scales a window that reaches beyond the end
        close(call("l2_pool", **inputs), expected)


@pytest.mark.parametrize("round_", ROUNDS)
def test_norms(round_: int) -> None:
    draw = Draw(1400 + round_)
    x = draw.real(draw.size(1, 3), draw.size(2, 6), *draw.sizes(2, 3, 6))
    channels = x.shape[1]
    gamma, beta, mean = draw.real(channels), draw.real(channels), draw.real(channels)
    variance = np.abs(draw.real(channels)) + np.float32(0.1)
    common = {"gamma": gamma, "beta": beta, "epsilon": np.float32(1e-3)}
    close(
        call("batch_norm", x=x, mean=mean, variance=variance, **common),
        F.batch_norm(
            tensor(x), tensor(mean), tensor(variance), tensor(gamma), tensor(beta), eps=1e-3
        ),
    )
    close(
        call("instance_norm", x=x, **common),
        F.instance_norm(tensor(x), weight=tensor(gamma), bias=tensor(beta), eps=1e-3),
    )
    size = draw.size(1, channels + 2)
    close(
        call("local_response_norm", x=x, size=np.int32(size), alpha=0.3, beta=0.6, k=1.2),
        F.local_response_norm(tensor(x), size, 0.3, 0.6, 1.2),
    )
    weight, shift = draw.real(*x.shape[2:]), draw.real(*x.shape[2:])
    close(
        call("layer_norm", x=x, axes=np.array([2, 3]), gamma=weight, beta=shift),
        F.layer_norm(tensor(x), x.shape[2:], tensor(weight), tensor(shift)),
    )


def _gates(layer: Any, name: str, order: list[int], suffix: str = "") -> ARRAY:
    """A layer's weights with its gates in MIL's order."""
    parts = np.split(layer.state_dict()[f"{name}_l0{suffix}"].numpy(), len(order))
    return np.concatenate([parts[one] for one in order])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("round_", ROUNDS)
def test_lstm(bidirectional: bool, round_: int) -> None:
    draw = Draw(1500 + round_)
    inputs, hidden, batch, steps = draw.sizes(4, 1, 6)
    torch.manual_seed(round_)
    layer = torch.nn.LSTM(inputs, hidden, bidirectional=bidirectional).eval()
    x = draw.real(steps, batch, inputs)
    ways = 2 if bidirectional else 1
    h, c = draw.real(ways, batch, hidden), draw.real(ways, batch, hidden)
    with torch.no_grad():
        sequence, (last_h, last_c) = layer(tensor(x), (tensor(h), tensor(c)))
    order = [0, 1, 3, 2]
    sides = [("", "")] + ([("_back", "_reverse")] if bidirectional else [])
    weights = {}
    for ours, theirs in sides:
        weights[f"weight_ih{ours}"] = _gates(layer, "weight_ih", order, theirs)
        weights[f"weight_hh{ours}"] = _gates(layer, "weight_hh", order, theirs)
        both = [_gates(layer, f"bias_{one}", order, theirs) for one in ("ih", "hh")]
        weights[f"bias{ours}"] = both[0] + both[1]
    found = call(
        "lstm",
        x=x,
        initial_h=np.concatenate(list(h), axis=-1),
        initial_c=np.concatenate(list(c), axis=-1),
        direction="bidirectional" if bidirectional else "forward",
        output_sequence=True,
        **weights,
    )
    close(found[0], sequence)
    close(found[1], np.concatenate(list(last_h.numpy()), axis=-1))
    close(found[2], np.concatenate(list(last_c.numpy()), axis=-1))


@pytest.mark.parametrize("kind", ["RNN", "GRU"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("round_", ROUNDS)
def test_rnn_and_gru(kind: str, direction: str, round_: int) -> None:
    """A GRU of torch is that of iOS 18 with reset_after and two biases."""
    draw = Draw(1600 + round_)
    inputs, hidden, batch, steps = draw.sizes(4, 1, 6)
    torch.manual_seed(round_)
    layer = getattr(torch.nn, kind)(inputs, hidden).eval()
    x, h = draw.real(steps, batch, inputs), draw.real(1, batch, hidden)
    given = x if direction == "forward" else x[::-1]
    with torch.no_grad():
        sequence, last = layer(tensor(given), tensor(h))
    order = [0] if kind == "RNN" else [0, 2, 1]
    weights = {name: _gates(layer, name, order) for name in ("weight_ih", "weight_hh")}
    biases = [_gates(layer, name, order) for name in ("bias_ih", "bias_hh")]
    if kind == "RNN":
        weights["bias"] = biases[0] + biases[1]
    else:
        weights |= {"input_bias": biases[0], "bias": biases[1], "reset_after": True}
    how = {"direction": direction, "output_sequence": True}
    found = call(kind.lower(), x=x, initial_h=h[0], **how, **weights)
    close(found[0], sequence)
    close(found[1], last[0])


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("round_", ROUNDS)
def test_bilinear_and_nearest_sizes(align: bool, round_: int) -> None:
    draw = Draw(1700 + round_)
    x = draw.real(draw.size(1, 2), draw.size(1, 3), *draw.sizes(2, 2, 9))
    height, width = draw.sizes(2, 2, 20)
    expected = F.interpolate(tensor(x), (height, width), mode="bilinear", align_corners=align)
    sizes = {"target_size_height": np.int32(height), "target_size_width": np.int32(width)}
    mode = "STRICT_ALIGN_CORNERS" if align else "UNALIGN_CORNERS"
    close(call("resize_bilinear", x=x, sampling_mode=mode, **sizes), expected)
    shape = {"shape": np.array([height, width]), "resized_dims": np.uint32(2)}
    close(call("resize", x=x, sampling_mode=mode, **shape), expected)
    centred = F.interpolate(tensor(x), (height, width), mode="nearest-exact")
    close(call("resize_nearest_neighbor", x=x, **sizes), centred)
    close(call("resize", x=x, interpolation_mode="NEAREST_NEIGHBOR", **shape), centred)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("factors", [(2, 3), (1, 1), (2.5, 0.5), (1.3, 3.7)])
def test_scale_factors(align: bool, factors: tuple[float, float]) -> None:
    x = Draw(1800).real(2, 3, 6, 10)
    scale = {
        "scale_factor_height": np.float32(factors[0]),
        "scale_factor_width": np.float32(factors[1]),
    }
    how = {"scale_factor": factors, "recompute_scale_factor": True}
    bilinear = F.interpolate(tensor(x), mode="bilinear", align_corners=align, **how)
    close(call("upsample_bilinear", x=x, align_corners=align, **scale), bilinear)
    close(call("upsample_nearest_neighbor", x=x, **scale), F.interpolate(tensor(x), **how))


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
def test_resample(mode: str, padding: str, align: bool) -> None:
    """torch reflects at the centres of the outer pixels if corners are aligned, else at their edges."""
    draw = Draw(1900)
    x, grid = draw.real(2, 3, 5, 7), draw.real(2, 4, 6, 2) * np.float32(1.7)
    expected = F.grid_sample(tensor(x), tensor(grid), mode, padding, align_corners=align)
    reflected = "reflection" if align else "symmetric"
    ours = {"zeros": "constant", "border": "border", "reflection": reflected}[padding]
    for scaled, coordinates in (
        ("normalized_minus_one_to_one", grid),
        ("normalized_zero_to_one", (grid + 1) / 2),
    ):
        actual = call(
            "resample",
            x=x,
            coordinates=coordinates,
            sampling_mode=mode,
            padding_mode=ours,
            padding_value=np.float32(0),
            coordinates_mode=scaled,
            align_corners=align,
        )
        close(actual, expected, 3e-5)


@pytest.mark.parametrize("align", [False, True])
def test_affine(align: bool) -> None:
    draw = Draw(2000)
    x, matrix = draw.real(2, 3, 5, 7), draw.real(2, 2, 3)
    grid = F.affine_grid(tensor(matrix), [2, 3, 4, 6], align_corners=align)
    actual = call(
        "affine",
        x=x,
        transform_matrix=matrix.reshape(2, 6),
        output_height=np.int32(4),
        output_width=np.int32(6),
        sampling_mode="bilinear",
        padding_mode="constant",
        padding_value=np.float32(0),
        coordinates_mode="normalized_minus_one_to_one",
        align_corners=align,
    )
    close(actual, F.grid_sample(tensor(x), grid, align_corners=align), 3e-5)


@pytest.mark.parametrize("round_", ROUNDS)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_gather_and_scatter(round_: int, axis: int) -> None:
    draw = Draw(2100 + round_)
    x = draw.real(*draw.sizes(3, 2, 5))
    shape = list(x.shape)
    shape[axis] = draw.size(1, 6)
    indices = draw.whole(x.shape[axis], *shape)
    updates, longs = draw.real(*shape), tensor(indices.astype(np.int64))
    close(call("gather_along_axis", x=x, indices=indices, axis=axis), tensor(x).gather(axis, longs))
    for mode, theirs in (("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin")):
        expected = tensor(x).clone().scatter_reduce(axis, longs, tensor(updates), theirs)
        given = {"data": x, "indices": indices, "updates": updates, "axis": axis, "mode": mode}
        close(call("scatter_along_axis", **given), expected)
    rows = draw.whole(x.shape[axis], draw.size(1, 4))
    long_rows = tensor(rows.astype(np.int64))
    close(call("gather", x=x, indices=rows, axis=axis), tensor(x).index_select(axis, long_rows))
    shape[axis] = len(rows)
    added = draw.real(*shape)
    expected = tensor(x).clone().index_add_(axis, long_rows, tensor(added))
    close(call("scatter", data=x, indices=rows, updates=added, axis=axis, mode="add"), expected)


@pytest.mark.parametrize("round_", ROUNDS)
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_attention(round_: int, mask: str | None) -> None:
    draw = Draw(2200 + round_)
    batch, heads, queries, keys, size, values = draw.sizes(6, 1, 6)
    q, k = draw.real(batch, heads, queries, size), draw.real(batch, heads, keys, size)
    v = draw.real(batch, heads, keys, values)
    given: dict[str, Any] = {}
    if mask == "bool":
        given["attn_mask"] = draw.rng.integers(0, 2, (queries, keys)).astype(np.bool_)
        given["attn_mask"][:, 0] = True
    elif mask == "float":
        given["attn_mask"] = draw.real(batch, 1, queries, keys)
    expected = F.scaled_dot_product_attention(
        tensor(q), tensor(k), tensor(v), tensor(given.get("attn_mask"))
    )
    close(call("scaled_dot_product_attention", query=q, key=k, value=v, **given), expected)


@pytest.mark.parametrize(
    ("name", "inputs", "function"),
    [
        ("gelu", {}, F.gelu),
        ("gelu", {"mode": "TANH_APPROXIMATION"}, lambda x: F.gelu(x, approximate="tanh")),
        ("silu", {}, F.silu),
        ("elu", {"alpha": np.float32(0.8)}, lambda x: F.elu(x, 0.8)),
        ("erf", {}, torch.erf),
        ("softplus", {}, F.softplus),
        ("sigmoid_hard", {"alpha": np.float32(1 / 6), "beta": np.float32(0.5)}, F.hardsigmoid),
        ("reduce_log_sum_exp", {"axes": np.array([1])}, lambda x: x.logsumexp(1)),
        ("cumsum", {"axis": 1, "exclusive": True}, lambda x: x.cumsum(1) - x),
        ("pixel_shuffle", {"upscale_factor": 2}, lambda x: F.pixel_shuffle(x, 2)),
        ("pixel_unshuffle", {"downscale_factor": 2}, lambda x: F.pixel_unshuffle(x, 2)),
    ],
)
def test_elementwise(name: str, inputs: dict[str, Any], function: Any) -> None:
    x = Draw(2300).real(2, 8, 4, 6) * np.float32(4)
    close(call(name, x=x, **inputs), function(tensor(x)))
