"""Single operations against plain loops: arithmetic, types, shapes, sorting, boxes and randomness."""

from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest
from mil_run import call, close
from seeds import generator

from softcoreml.operations import attention
from softcoreml.operations.registry import find, operation
from softcoreml.operations.widening import Widened, widen_weight

Array = np.ndarray
X = generator(50).standard_normal((2, 3, 4)).astype(np.float32)


def test_error_function_over_its_whole_range() -> None:
    x = np.concatenate([np.linspace(-7, 7, 4001), [1e-30, -1e-7, 0.46875, 4]]).astype(np.float32)
    expected = np.array([math.erf(float(one)) for one in x])
    np.testing.assert_allclose(call("erf", x=x), expected, rtol=1.2e-7, atol=0)
    limits = call("erf", x=np.array([np.inf, -np.inf, np.nan], np.float32))
    assert limits[:2].tolist() == [1, -1]
    assert np.isnan(limits[2])


def test_defaults_of_epsilon_have_the_type_of_x() -> None:
    """1e-12 and 1e-45 are zero in float16, where rsqrt and log of zero are infinite."""
    zero = np.zeros(1, np.float16)
    assert np.isposinf(call("rsqrt", x=zero)[0])
    assert np.isneginf(call("log", x=zero)[0])
    close(call("rsqrt", x=zero.astype(np.float32)), np.array([1e6]))
    close(call("log", x=zero.astype(np.float32)), np.array([math.log(2**-149)]))
    close(call("inverse", x=zero), np.array([1 / np.float16(1e-4).astype(np.float64)]))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int8", [-128, -2, 0, 2, 127, 0]),
        ("uint8", [0, 0, 0, 2, 255, 0]),
        ("int16", [-32768, -2, 0, 2, 32767, 0]),
        ("int32", [-(2**31), -2, 0, 2, 2**31 - 1, 0]),
        ("bool", [True, True, False, True, True, True]),
    ],
)
def test_casts_truncate_and_saturate(dtype: str, expected: list[Any]) -> None:
    x = np.array([-1e20, -2.9, 0.0, 2.9, np.inf, np.nan], np.float32)
    actual = call("cast", x=x, dtype=dtype)
    assert actual.dtype == (np.bool_ if dtype == "bool" else np.dtype(dtype))
    assert actual.tolist() == expected


@pytest.mark.parametrize(
    ("name", "x", "y", "expected"),
    [
        ("floor_div", [7, -7, 7, -7], [2, 2, -2, -2], [3, -4, -4, 3]),
        ("mod", [7, -7, 7, -7], [2, 2, -2, -2], [1, 1, -1, -1]),
        ("real_div", [7, -7, 8, 1], [2, 2, -2, 4], [3, -3, -4, 0]),
        ("pow", [2, -3, 5, 2], [10, 3, 0, -1], [1024, -27, 1, 0]),
        ("add", [2**31 - 1], [1], [-(2**31)]),
    ],
)
def test_integer_arithmetic(name: str, x: list[int], y: list[int], expected: list[int]) -> None:
    actual = call(name, x=np.array(x, np.int32), y=np.array(y, np.int32))
    assert actual.dtype == np.int32
    assert actual.tolist() == expected


def test_integers_divided_by_zero_do_not_fail() -> None:
    for name in ("floor_div", "mod"):
        assert call(name, x=np.array([5], np.int32), y=np.array([0], np.int32)).tolist() == [0]


@pytest.mark.parametrize(
    ("name", "inputs", "x", "expected"),
    [
        ("round", {}, [0.5, 1.5, -0.5, 2.5], [0, 2, 0, 2]),
        ("clamped_relu", {"alpha": 0.5, "beta": 1.0}, [-4.0, 0.5, 3.0], [-2, 0.5, 1]),
        ("clamped_relu", {"alpha": -2.0, "beta": 3.0}, [-4.0, 5.0], [3, 3]),
        ("thresholded_relu", {"alpha": 1.0}, [0.5, 1.0, 2.0], [0, 1, 2]),
        ("leaky_relu", {"alpha": 0.1}, [-1.0, 2.0], [-0.1, 2]),
        ("silu", {}, [-200.0, 0.0, 200.0], [0, 0, 200]),
        ("sigmoid", {}, [-200.0, 0.0, 200.0], [0, 0.5, 1]),
        ("softplus", {}, [-200.0, 0.0, 200.0], [0, math.log(2), 200]),
        ("elu", {"alpha": 2.0}, [-1e-4, 3.0], [2 * math.expm1(-1e-4), 3]),
        ("softmax", {}, [1000.0, 1000.0, -1000.0], [0.5, 0.5, 0]),
    ],
)
def test_edges_of_activations(
    name: str, inputs: dict[str, Any], x: list[float], expected: list[float]
) -> None:
    given = {key: np.float32(one) for key, one in inputs.items()}
    close(call(name, x=np.array(x, np.float32), **given), np.array(expected), 1e-6)


def test_sums_of_float16_do_not_overflow() -> None:
    x = np.full((1, 4096), 60000, np.float16)
    assert float(call("reduce_sum", x=x)) == 4096 * float(np.float16(60000))
    assert float(call("reduce_mean", x=x)) == float(np.float16(60000))
    product = call("matmul", x=x, y=np.ones((4096, 1), np.float16))
    assert float(product[0, 0]) == 4096 * float(np.float16(60000))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum(reverse: bool, exclusive: bool, axis: int) -> None:
    moved = np.moveaxis(X.astype(np.float64), axis, 0)
    moved = moved[::-1] if reverse else moved
    rows = [moved[: place if exclusive else place + 1].sum(axis=0) for place in range(len(moved))]
    expected = np.stack(rows[::-1] if reverse else rows)
    actual = call("cumsum", x=X, axis=axis, exclusive=exclusive, reverse=reverse)
    close(actual, np.moveaxis(expected, 0, axis))


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_one_hot(axis: int) -> None:
    indices = np.array([[0, 3], [-1, 9]], np.int32)
    on, off = np.float32(5), np.float32(-1)
    actual = call(
        "one_hot",
        indices=indices,
        one_hot_vector_size=np.int32(4),
        axis=axis,
        on_value=on,
        off_value=off,
    )
    expected = np.full((2, 2, 4), -1.0)
    expected[0, 0, 0] = expected[0, 1, 3] = 5
    close(actual, np.moveaxis(expected, -1, axis), 0)


def test_concat_element_by_element() -> None:
    """MIL's example."""
    one, two = np.arange(1, 7).reshape(3, 2), np.arange(7, 13).reshape(3, 2)
    actual = call("concat", values=(one, two), axis=0, interleave=True)
    assert actual.tolist() == [[1, 2], [7, 8], [3, 4], [9, 10], [5, 6], [11, 12]]
    assert call("concat", values=(np.int32(1), np.int32(2)), axis=0).tolist() == [1, 2]


def test_blocks_of_space() -> None:
    """Every element goes where the definitions say."""
    x = generator(51).standard_normal((2, 8, 3, 5)).astype(np.float32)
    deep = call("depth_to_space", x=x, block_size=np.int32(2))
    shuffled = call("pixel_shuffle", x=x, upscale_factor=np.int32(2))
    for channel, row, column in np.ndindex(2, 6, 10):
        block = row % 2 * 2 + column % 2
        source = x[:, :, row // 2, column // 2]
        np.testing.assert_array_equal(deep[:, channel, row, column], source[:, block * 2 + channel])
        np.testing.assert_array_equal(
            shuffled[:, channel, row, column], source[:, channel * 4 + block]
        )
    close(call("space_to_depth", x=deep, block_size=np.int32(2)), x, 0)
    close(call("pixel_unshuffle", x=shuffled, downscale_factor=np.uint32(2)), x, 0)


def test_space_to_batch_and_back() -> None:
    x = generator(52).standard_normal((2, 3, 3, 4)).astype(np.float32)
    blocks, pads = np.array([2, 3]), np.array([[1, 0], [0, 2]])
    batches = call("space_to_batch", x=x, block_shape=blocks, paddings=pads)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (0, 2)))
    assert batches.shape == (12, 3, 2, 2)
    for row, column, image in np.ndindex(2, 3, 2):
        found = batches[(row * 3 + column) * 2 + image]
        np.testing.assert_array_equal(found, padded[image, :, row::2, column::3])
    close(call("batch_to_space", x=batches, block_shape=blocks, crops=pads), x, 0)


@pytest.mark.parametrize(("along", "batch"), [(2, 0), (0, 2), (1, -1)])
def test_reverse_sequence(along: int, batch: int) -> None:
    x = generator(53).standard_normal((3, 4, 5)).astype(np.float32)
    lengths = generator(54).integers(0, x.shape[along] + 1, x.shape[batch]).astype(np.int32)
    actual = call("reverse_sequence", x=x, lengths=lengths, seq_axis=along, batch_axis=batch)
    given, found = (np.moveaxis(one, (batch, along), (0, 1)) for one in (x, actual))
    for row, result, length in zip(given, found, lengths, strict=True):
        np.testing.assert_array_equal(result[:length], row[:length][::-1])
        np.testing.assert_array_equal(result[length:], row[length:])


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint8, np.uint16, np.int32])
@pytest.mark.parametrize("ascending", [False, True])
def test_topk_of_every_type(dtype: type, ascending: bool) -> None:
    """Of equal values the first comes first."""
    low = 0 if np.dtype(dtype).kind == "u" else np.iinfo(np.int8).min
    x = generator(55).integers(low, 100, (3, 9)).astype(dtype)
    x[0] = x[0, 0]
    x[1, 4] = low
    values, indices = call(
        "topk", x=x, k=np.int8(4), ascending=ascending, output_indices_dtype="uint16"
    )
    assert values.dtype == dtype
    assert indices.dtype == np.uint16
    for row, found, where in zip(x.tolist(), values.tolist(), indices.tolist(), strict=True):
        order = sorted(range(9), key=lambda one: ((1 if ascending else -1) * row[one], one))[:4]
        assert where == order
        assert found == [row[one] for one in order]
    assert call("topk", "ios17", x=x, k=np.int32(-1), return_indices=False).shape == (3, 9)


def test_nan_sorts_last() -> None:
    x = np.array([1, np.nan, 3], np.float32)
    assert call("argsort", x=x).tolist() == [2, 0, 1]
    assert call("argsort", x=x, ascending=True).tolist() == [0, 2, 1]


def overlap(one: Array, two: Array) -> float:
    """Intersection over union of boxes (centre x, centre y, width, height)."""
    size = [
        max(
            0.0,
            min(one[a] + one[a + 2] / 2, two[a] + two[a + 2] / 2)
            - max(one[a] - one[a + 2] / 2, two[a] - two[a + 2] / 2),
        )
        for a in range(2)
    ]
    common = size[0] * size[1]
    return common / (one[2] * one[3] + two[2] * two[3] - common)


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("least", [-10.0, 0.5, 10.0])
@pytest.mark.parametrize("limit", [1, 5, 30])
def test_non_maximum_suppression(per_class: bool, least: float, limit: int) -> None:
    rng = generator(56)
    boxes = np.concatenate([rng.uniform(0, 3, (2, 12, 2)), rng.uniform(0.5, 2, (2, 12, 2))], axis=2)
    boxes, scores = boxes.astype(np.float32), rng.standard_normal((2, 12, 3)).astype(np.float32)
    found = call(
        "non_maximum_suppression",
        "ios15",
        boxes=boxes,
        scores=scores,
        iou_threshold=np.float32(0.3),
        score_threshold=np.float32(least),
        max_boxes=np.int32(limit),
        per_class_suppression=per_class,
    )
    for image in range(2):
        best, classes = scores[image].max(axis=1), scores[image].argmax(axis=1)
        kept: list[int] = []
        for one in np.argsort(-best):
            rivals = [two for two in kept if not per_class or classes[two] == classes[one]]
            free = all(overlap(boxes[image, one], boxes[image, two]) <= 0.3 for two in rivals)
            if best[one] >= least and free:
                kept.append(int(one))
        kept = (kept or [int(best.argmax())])[:limit]
        padding = limit - len(kept)
        assert found[3][image] == len(kept)
        assert found[2][image].tolist() == kept + [-1] * padding
        close(found[0][image], np.concatenate([boxes[image, kept], np.zeros((padding, 4))]), 0)
        close(found[1][image], np.concatenate([scores[image, kept], np.zeros((padding, 3))]), 0)
    if least < -9:
        newer = call(
            "non_maximum_suppression",
            "ios17",
            boxes=boxes.transpose(0, 2, 1),
            scores=scores.transpose(0, 2, 1),
            iou_threshold=np.float32(0.3),
            max_boxes=np.int32(limit),
            per_class_suppression=per_class,
        )
        close(newer[0], found[0].transpose(0, 2, 1), 0)
        close(newer[1], found[1].transpose(0, 2, 1), 0)
        np.testing.assert_array_equal(newer[2], found[2])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_local_response_norm(size: int) -> None:
    x = generator(57).standard_normal((2, 5, 3)).astype(np.float32)
    wide = x.astype(np.float64)
    expected = np.zeros(x.shape)
    for channel in range(5):
        near = wide[:, max(0, channel - size // 2) : channel + (size - 1) // 2 + 1]
        total = (near**2).sum(axis=1)
        expected[:, channel] = wide[:, channel] / (1.5 + 0.2 / size * total) ** 0.6
    how = {"alpha": np.float32(0.2), "beta": np.float32(0.6), "k": np.float32(1.5)}
    close(call("local_response_norm", x=x, size=np.int32(size), **how), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_quantize_and_dequantize(dtype: type, axis: int | None) -> None:
    rng, limits = generator(58), np.iinfo(dtype)
    x = rng.uniform(-40, 40, (3, 5)).astype(np.float16)
    count = 1 if axis is None else x.shape[axis]
    scale = rng.uniform(0.05, 0.3, count).astype(np.float16)
    zero = rng.integers(limits.min, limits.max + 1, count).astype(dtype)
    how = {} if axis is None else {"axis": np.int32(axis)}
    given = (
        {"scale": scale[0], "zero_point": zero[0]}
        if axis is None
        else {"scale": scale, "zero_point": zero}
    )
    codes = call("quantize", input=x, output_dtype=np.dtype(dtype).name, **given, **how)
    assert codes.dtype == dtype
    back = call("dequantize", input=codes, **given, **how)
    for place in np.ndindex(x.shape):
        one = 0 if axis is None else place[axis]
        step, shift = float(scale[one]), int(zero[one])
        exact = float(np.float32(x[place]) / np.float32(scale[one]))
        assert codes[place] == min(max(round(exact) + shift, limits.min), limits.max)
        assert back[place] == np.float32(step * (int(codes[place]) - shift))


def test_random_numbers() -> None:
    """Their distribution, and that a seed repeats them."""
    shape, seed = np.array([40000]), np.int32(3)
    normal = call("random_normal", shape=shape, mean=np.float32(2), stddev=np.float32(3), seed=seed)
    assert abs(normal.mean() - 2) < 0.1
    assert abs(normal.std() - 3) < 0.1
    uniform = call("random_uniform", shape=shape, low=np.float32(-1), high=np.float32(3), seed=seed)
    assert uniform.min() >= -1
    assert uniform.max() < 3
    assert abs(uniform.mean() - 1) < 0.05
    coins = call("random_bernoulli", shape=shape, prob=np.float32(0.25), seed=seed)
    assert set(np.unique(coins)) == {0, 1}
    assert abs(coins.mean() - 0.25) < 0.02
    x = np.log(np.array([[0.1, 0.6, 0.3], [1e-30, 1.0, 1e-30]], np.float32))
    draws = call("random_categorical", x=x, size=np.int32(20000), seed=seed)
    assert np.all(np.abs(np.bincount(draws[0].astype(int)) / 20000 - [0.1, 0.6, 0.3]) < 0.02)
    assert np.all(draws[1] == 1)
    again = call("random_normal", shape=shape, mean=np.float32(2), stddev=np.float32(3), seed=seed)
    np.testing.assert_array_equal(again, normal)
    free = [call("random_uniform", shape=np.array([8])) for _ in range(2)]
    assert free[0].tolist() != free[1].tolist()


def test_classify() -> None:
    values = np.array([[0.2, 0.7, 0.1]], np.float32)
    label, scores = call("classify", probabilities=values, classes=("cat", "dog", "owl"))
    assert label == "dog"
    assert scores == {
        "cat": float(values[0, 0]),
        "dog": float(values[0, 1]),
        "owl": float(values[0, 2]),
    }
    assert call("classify", probabilities=values, classes=np.array([5, 7, 9]))[0] == 7


def test_slices_of_scalars_and_reversed_axes() -> None:
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    how = {"begin": np.array([1, 2, -1]), "end": np.zeros(3, int), "squeeze_mask": np.ones(3, bool)}
    assert call("slice_by_index", x=x, **how) == x[1, 2, -1]
    mask = np.ones(3, bool)
    back = {"begin_mask": mask, "end_mask": mask, "stride": np.array([-1, -2, 1])}
    actual = call("slice_by_index", x=x, begin=np.zeros(3, int), end=np.zeros(3, int), **back)
    np.testing.assert_array_equal(actual, x[::-1, ::-2])


def test_an_operation_is_defined_once_for_an_opset() -> None:
    with pytest.raises(ValueError, match="add of ios15"):
        operation("add")(lambda: None)
    assert find("resize", "ios16") is None
    assert find("crop_resize", "ios18") is find("crop_resize", "ios17")
    assert find("crop_resize", "ios16") is not find("crop_resize", "ios17")


def test_copies_of_weights() -> None:
    """One copy for a weight that never changes, none for others, and none beyond the limit."""
    weight = generator(59).standard_normal((64, 128)).astype(np.float16)
    assert widen_weight(weight) is not widen_weight(weight)
    view = weight.view()
    view.flags.writeable = False
    assert widen_weight(view) is not widen_weight(view)  # its base can be written
    constant = np.frombuffer(weight.tobytes(), np.float16).reshape(64, 128)
    assert widen_weight(constant) is widen_weight(constant)
    close(widen_weight(constant), weight, 0)
    kept = Widened(limit=constant.size * 4)
    assert kept.get(constant) is kept.get(constant)
    other = np.frombuffer(weight.tobytes(), np.float16)
    assert kept.get(other) is not kept.get(other)
    assert kept.nbytes == constant.size * 4
    del constant
    gc.collect()
    assert kept.nbytes == 0


@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("limit", [0, 1 << 27])
def test_attention(mask: str | None, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All heads at once and one by one, against sums in float64."""
    monkeypatch.setattr(attention, "SCORE_BYTES", limit)
    rng = generator(60)
    q, k, v = (
        rng.standard_normal((2, 3, *one)).astype(np.float16) for one in ((4, 5), (6, 5), (6, 7))
    )
    given: dict[str, Any] = {}
    added = np.zeros((2, 3, 4, 6))
    if mask == "bool":
        given["attn_mask"] = np.tri(4, 6, 1, dtype=np.bool_)
        added = added + np.where(given["attn_mask"], 0, -np.inf)
    elif mask == "float":
        given["attn_mask"] = rng.standard_normal((2, 1, 1, 6)).astype(np.float16)
        added = added + given["attn_mask"]
    scores = np.einsum("bhqe,bhke->bhqk", q.astype(float), k.astype(float)) / math.sqrt(5) + added
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    expected = np.einsum("bhqk,bhkv->bhqv", weights, v.astype(float))
    close(call("scaled_dot_product_attention", query=q, key=k, value=v, **given), expected)
