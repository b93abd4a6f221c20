"""Inputs that an operation cannot use, and sizes that no memory holds, are named errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mil_run import call

from softcoreml.errors import ModelError

X = np.zeros((2, 3, 4), np.float32)
IMAGE = np.zeros((1, 4, 5, 6), np.float32)
WEIGHT = np.zeros((6, 4, 3, 3), np.float32)
HUGE = np.int32(2**31 - 1)
MANY = np.array([HUGE, HUGE], np.int32)
COLUMN, ROW = np.zeros((1 << 18, 1), np.float32), np.zeros((1, 1 << 18), np.float32)
LSTM = {
    "x": np.zeros((2, 1, 3), np.float32),
    "initial_h": np.zeros((1, 4), np.float32),
    "initial_c": np.zeros((1, 4), np.float32),
    "weight_ih": np.zeros((16, 3), np.float32),
    "weight_hh": np.zeros((16, 4), np.float32),
}
POOL = {"x": IMAGE, "kernel_sizes": np.array([2, 2]), "pad_type": "valid"}
SAMPLE = {
    "x": IMAGE,
    "coordinates": np.zeros((1, 2, 2, 2), np.float32),
    "sampling_mode": "bilinear",
    "padding_mode": "constant",
    "padding_value": 0,
    "coordinates_mode": "unnormalized",
    "align_corners": True,
}
BOXES = {"x": IMAGE, "boxes": np.zeros((1, 4), np.float32)}
NMS = {"boxes": np.zeros((1, 4, 6)), "scores": np.zeros((1, 2, 6)), "iou_threshold": 0.5}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # sizes that no memory holds
    ("fill", {"shape": MANY}, "shape"),
    ("fill", {"shape": np.array([-1, 2])}, "shape.*negative"),
    ("random_normal", {"shape": MANY}, "shape"),
    ("random_uniform", {"shape": MANY}, "shape"),
    ("random_bernoulli", {"shape": np.array([-5])}, "shape"),
    ("random_categorical", {"x": X, "size": HUGE}, "size"),
    ("tile", {"x": X, "reps": np.array([HUGE, HUGE, 2])}, "reps"),
    ("tile", {"x": X, "reps": np.array([0, 1, 1])}, "reps"),
    ("pad", {"x": X, "pad": np.array([0, HUGE, HUGE, 0])}, "pad"),
    ("pad", {"x": X, "pad": np.array([0, -1])}, "pad"),
    (
        "one_hot",
        {"indices": np.zeros((9, 9), np.int32), "one_hot_vector_size": HUGE},
        "one_hot_vector_size",
    ),
    (
        "one_hot",
        {"indices": np.zeros(3, np.int32), "one_hot_vector_size": np.int32(-1)},
        "one_hot_vector_size",
    ),
    (
        "range_1d",
        {"start": np.float32(0), "end": np.float32(1e30), "step": np.float32(1e-3)},
        "end",
    ),
    ("range_1d", {"start": np.int32(0), "end": np.int32(5), "step": np.int32(0)}, "step 0"),
    (
        "range_1d",
        {"start": np.float32(0), "end": np.float32(np.nan), "step": np.float32(1)},
        "end nan",
    ),
    ("add", {"x": COLUMN, "y": ROW}, "x and y"),
    ("select", {"cond": COLUMN > 0, "a": ROW, "b": ROW}, "cond, a and b"),
    ("matmul", {"x": COLUMN, "y": ROW}, "x and y"),
    ("linear", {"x": COLUMN, "weight": ROW.T}, "weight"),
    ("gather", {"x": ROW, "indices": np.zeros(1 << 20, np.int32)}, "indices"),
    (
        "conv",
        {"x": IMAGE, "weight": WEIGHT, "pad_type": "custom", "pad": np.full(4, HUGE)},
        "x and weight",
    ),
    ("conv_transpose", {"x": IMAGE, "weight": np.zeros((4, 1, 2, 2)), "strides": MANY}, "strides"),
    (
        "conv_transpose",
        {
            "x": IMAGE,
            "weight": np.zeros((4, 1, 2, 2)),
            "output_shape": np.array([1, 1, HUGE, HUGE]),
        },
        "output_shape",
    ),
    ("max_pool", {**POOL, "pad_type": "custom", "pad": np.full(4, HUGE)}, "x gives"),
    (
        "resize_bilinear",
        {"x": IMAGE, "target_size_height": HUGE, "target_size_width": HUGE},
        "target size",
    ),
    (
        "resize_nearest_neighbor",
        {"x": IMAGE, "target_size_height": HUGE, "target_size_width": HUGE},
        "target size",
    ),
    ("upsample_bilinear", {"x": IMAGE, "scale_factor_height": np.float32(np.inf)}, "scale factor"),
    ("upsample_nearest_neighbor", {"x": IMAGE, "scale_factor_height": HUGE}, "scale factor"),
    ("resize", {"x": IMAGE, "shape": MANY, "resized_dims": np.uint32(2)}, "target size"),
    ("crop_resize", {**BOXES, "target_height": HUGE, "target_width": HUGE}, "target_height"),
    ("non_maximum_suppression", {**NMS, "max_boxes": HUGE}, "max_boxes"),
    ("non_maximum_suppression", {**NMS, "max_boxes": np.int32(-1)}, "max_boxes"),
    (
        "space_to_batch",
        {"x": IMAGE, "block_shape": np.array([1, 1]), "paddings": np.full((2, 2), HUGE)},
        "paddings",
    ),
    ("sliding_windows", {"x": np.zeros(1 << 18, np.float32), "axis": 0, "size": 1 << 17}, "size"),
    # shapes and axes
    ("add", {"x": X, "y": np.zeros((2, 2), np.float32)}, "x and y have shapes"),
    ("softmax", {"x": X, "axis": 3}, "axis 3"),
    ("reduce_sum", {"x": X, "axes": np.array([0, 5])}, "axes 5"),
    ("reduce_sum", {"x": X, "axes": np.array([0, -3])}, "axes.*twice"),
    ("reduce_argmax", {"x": X, "output_dtype": "fp32"}, "output_dtype"),
    ("reshape", {"x": X, "shape": np.array([5, -1])}, "shape"),
    ("reshape", {"x": X, "shape": np.array([-1, -1])}, "shape"),
    ("reshape", {"x": X, "shape": np.array([-2, 12])}, "shape"),
    (
        "reshape_like",
        {"x": X, "ref_tensors": (X, X), "begins": (0,), "ends": (1,), "end_masks": (True,)},
        "reshape_like",
    ),
    ("transpose", {"x": X, "perm": np.array([0, 1])}, "perm"),
    ("transpose", {"x": X, "perm": np.array([0, 1, 1])}, "perm"),
    ("expand_dims", {"x": X, "axes": np.array([7])}, "axes 7"),
    ("flatten2d", {"x": X, "axis": 9}, "axis 9"),
    (
        "slice_by_index",
        {"x": X, "begin": np.zeros(2, int), "end": np.ones(3, int)},
        "begin needs 3",
    ),
    (
        "slice_by_index",
        {"x": X, "begin": np.zeros(3, int), "end": np.ones(3, int), "stride": np.zeros(3, int)},
        "stride",
    ),
    (
        "slice_by_index",
        {"x": X, "begin": np.full(3, 9), "end": np.ones(3, int), "squeeze_mask": np.ones(3, bool)},
        "slice_by_index",
    ),
    ("slice_by_size", {"x": X, "begin": np.zeros(3, int), "size": np.array([2, 9, 1])}, "size 9"),
    ("slice_by_size", {"x": X, "begin": np.array([0, -9, 0]), "size": np.ones(3, int)}, "begin -9"),
    (
        "slice_update",
        {"x": X, "update": X, "begin": np.zeros(3, int), "end": np.ones(3, int)},
        "update",
    ),
    ("split", {"x": X, "axis": 1, "split_sizes": np.array([1, 1])}, "split_sizes"),
    ("split", {"x": X, "axis": 1, "split_sizes": np.array([4, -1])}, "split_sizes"),
    ("split", {"x": X, "axis": 1, "num_splits": 2}, "split"),
    ("split", {"x": X, "axis": 1}, "num_splits or split_sizes"),
    ("concat", {"values": (), "axis": 0}, "values"),
    ("concat", {"values": (X, X[:1]), "axis": 1}, "concat"),
    ("pad", {"x": X, "pad": np.array([9, 0]), "mode": "reflect"}, "pad"),
    ("pad", {"x": X, "pad": np.array([1, 0, 1])}, "pad needs pairs"),
    ("pad", {"x": X, "pad": np.array([1, 0]), "mode": "wrap"}, "mode 'wrap'"),
    ("topk", {"x": X, "k": 9}, "k 9"),
    ("topk", {"x": X, "k": -7}, "k -7"),
    ("band_part", {"x": np.zeros(3)}, "x must have rank 2"),
    ("reverse_sequence", {"x": X, "lengths": np.array([9, 1]), "seq_axis": 1}, "lengths"),
    ("reverse_sequence", {"x": X, "lengths": np.array([1, 1])}, "seq_axis and batch_axis"),
    ("depth_to_space", {"x": IMAGE, "block_size": 3}, "block_size"),
    ("depth_to_space", {"x": IMAGE, "block_size": 0}, "block_size"),
    ("space_to_depth", {"x": IMAGE, "block_size": 4}, "block_size"),
    ("pixel_shuffle", {"x": IMAGE, "upscale_factor": -3}, "upscale_factor"),
    (
        "batch_to_space",
        {"x": IMAGE, "block_shape": np.array([2, 2]), "crops": np.zeros((2, 2), int)},
        "block_shape",
    ),
    (
        "batch_to_space",
        {"x": IMAGE, "block_shape": np.array([1, 1]), "crops": np.full((2, 2), 4)},
        "crops",
    ),
    ("sliding_windows", {"x": X, "axis": 0, "size": 5}, "size 5"),
    ("sliding_windows", {"x": X, "axis": 0, "size": 1, "stride": 0}, "stride"),
    # products and windows
    ("linear", {"x": X, "weight": np.zeros((5, 3), np.float32)}, "weight"),
    ("linear", {"x": X, "weight": np.zeros((5, 4)), "bias": np.zeros(4)}, "bias"),
    ("matmul", {"x": X, "y": X}, "matmul"),
    ("einsum", {"values": (X, X), "equation": "ab,bc->ac"}, "equation"),
    ("einsum", {"values": (X, X), "equation": "a" * 100000}, "equation"),
    ("einsum", {"values": (X,), "equation": "chw,whr->chr"}, "values"),
    ("einsum", {"values": (X[0], X[0]), "equation": "chw,whr->chr"}, "values"),
    ("conv", {"x": IMAGE, "weight": WEIGHT, "groups": 3}, "groups 3"),
    ("conv", {"x": IMAGE, "weight": WEIGHT, "groups": 0}, "groups 0"),
    ("conv", {"x": IMAGE, "weight": WEIGHT[:, :, 0]}, "weight must have rank 4"),
    ("conv", {"x": IMAGE, "weight": WEIGHT, "strides": np.array([0, 1])}, "strides"),
    ("conv", {"x": IMAGE, "weight": WEIGHT, "dilations": np.array([-1, 1])}, "dilations"),
    ("conv", {"x": IMAGE, "weight": WEIGHT, "dilations": MANY}, "a window of"),
    ("conv", {"x": IMAGE, "weight": WEIGHT, "pad_type": "circular"}, "pad_type"),
    ("conv", {"x": IMAGE, "weight": WEIGHT, "bias": np.zeros(2)}, "bias"),
    ("conv", {"x": IMAGE, "weight": np.zeros((6, 4, 0, 3), np.float32)}, "kernel"),
    (
        "conv_transpose",
        {"x": IMAGE, "weight": np.zeros((4, 1, 2, 2)), "pad_type": "custom", "pad": np.full(4, 9)},
        "pad",
    ),
    ("conv_transpose", {"x": IMAGE, "weight": np.zeros((5, 1, 2, 2))}, "weight"),
    (
        "conv_transpose",
        {"x": IMAGE, "weight": np.zeros((4, 1, 2, 2)), "pad_type": "same_lower"},
        "pad_type",
    ),
    (
        "conv_quantized",
        {
            "x": IMAGE,
            "weight": WEIGHT,
            "quantization_type": "lut",
            "quant_scale": 1,
            "quant_bias": 0,
        },
        "quantization_type",
    ),
    ("avg_pool", {**POOL, "kernel_sizes": np.array([9, 9])}, "a window of 9"),
    ("avg_pool", {**POOL, "kernel_sizes": np.array([0, 1])}, "kernel"),
    ("max_pool", {**POOL, "pad_type": "custom", "pad": np.array([1, 1])}, "pad needs 4"),
    ("batch_norm", {"x": IMAGE, "mean": np.zeros(3), "variance": np.zeros(4)}, "mean"),
    ("layer_norm", {"x": X, "axes": np.array([2]), "gamma": np.zeros(3)}, "gamma"),
    ("l2_norm", {"x": X[0]}, "x must have rank 3"),
    ("local_response_norm", {"x": IMAGE, "size": 0}, "size 0"),
    ("prelu", {"x": IMAGE, "alpha": np.zeros(3)}, "alpha"),
    ("gelu", {"x": X, "mode": "FAST"}, "mode 'FAST'"),
    ("clip", {"x": X, "alpha": np.float32(2), "beta": np.float32(1)}, "alpha 2.0 must be below"),
    ("cast", {"x": X, "dtype": "complex64"}, "dtype 'complex64'"),
    # recurrence, attention, images
    ("lstm", {**LSTM, "weight_hh": np.zeros((16, 3))}, "weight_ih.*weight_hh"),
    ("lstm", {**LSTM, "initial_c": np.zeros((1, 5))}, "initial_c"),
    ("lstm", {**LSTM, "direction": "bidirectional"}, "weight_ih_back"),
    ("lstm", {**LSTM, "direction": "sideways"}, "direction 'sideways'"),
    ("lstm", {**LSTM, "activation": "step"}, "activation 'step'"),
    ("scaled_dot_product_attention", {"query": X, "key": X[:, :, :2], "value": X}, "query"),
    (
        "scaled_dot_product_attention",
        {"query": X, "key": X, "value": X, "attn_mask": np.zeros((5, 5))},
        "scaled_dot",
    ),
    (
        "scaled_dot_product_attention",
        {"query": X, "key": X, "value": X, "attn_mask": np.zeros((7, 2, 3, 3))},
        "attn_mask",
    ),
    ("resize", {"x": IMAGE, "shape": np.array([2]), "resized_dims": np.uint32(2)}, "shape"),
    (
        "resize",
        {"x": IMAGE, "shape": np.array([2]), "resized_dims": 1, "sampling_mode": "X"},
        "sampling_mode",
    ),
    (
        "resize",
        {"x": IMAGE, "shape": np.array([2]), "resized_dims": 1, "interpolation_mode": "X"},
        "interpolation_mode",
    ),
    (
        "resize_bilinear",
        {"x": IMAGE, "target_size_height": 0, "target_size_width": 2},
        "target size",
    ),
    (
        "upsample_bilinear",
        {"x": IMAGE, "align_corners": True, "half_pixel_centers": True},
        "half_pixel_centers",
    ),
    (
        "crop",
        {"x": IMAGE, "crop_height": np.array([3, 3]), "crop_width": np.array([0, 0])},
        "crop_height",
    ),
    ("crop_resize", {**BOXES, "box_indices": np.array([5])}, "box_indices"),
    ("crop_resize", {**BOXES, "box_coordinate_mode": "X"}, "box_coordinate_mode"),
    ("resample", {**SAMPLE, "coordinates": np.zeros((1, 2, 2, 3))}, "coordinates"),
    ("resample", {**SAMPLE, "padding_mode": "wrap"}, "padding_mode"),
    ("resample", {**SAMPLE, "sampling_mode": "cubic"}, "sampling_mode"),
    ("resample", {**SAMPLE, "coordinates_mode": "polar"}, "coordinates_mode"),
    ("quantize", {"input": X, "scale": np.float32(1), "output_dtype": "int32"}, "output_dtype"),
    ("quantize", {"input": X, "scale": np.ones(3), "output_dtype": "int8"}, "scale"),
    ("dequantize", {"input": X, "scale": np.float32(1)}, "input must be integers"),
    ("gather", {"x": X, "indices": np.zeros(2, np.float32)}, "indices must be integers"),
    ("gather", {"x": X[:0], "indices": np.array([0])}, "indices point into an axis without"),
    ("gather_along_axis", {"x": X, "indices": np.zeros((2, 2, 2), int)}, "indices"),
    ("gather_nd", {"x": X, "indices": np.zeros((2, 4), int)}, "indices"),
    ("scatter", {"data": X, "indices": np.array([0]), "updates": X}, "updates"),
    (
        "scatter",
        {"data": X, "indices": np.array([0]), "updates": X[:1], "mode": "xor"},
        "mode 'xor'",
    ),
    ("classify", {"probabilities": X, "classes": ("a",)}, "classes"),
    # calls that no program can have meant
    ("add", {"x": X}, "add: .*missing"),
    ("relu", {"x": X, "alpha": 1}, "relu: .*unexpected"),
]


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    REFUSED,
    ids=[f"{name}-{place}" for place, (name, *_) in enumerate(REFUSED)],
)
def test_refused_by_name(name: str, inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"^{name}: ") as caught:
        call(name, **inputs)
    assert caught.match(message)
