"""Calls of operations that coremltools can judge: every operation with constant inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from seeds import SEED

RNG = np.random.default_rng(SEED)


def real(*shape: int, low: float = -3, high: float = 3) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


def whole(*shape: int, low: int = -9, high: int = 9) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(np.int32)


def flags(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2, shape).astype(np.bool_)


X = real(2, 3, 5)
UNIT = real(3, 4, low=-0.9, high=0.9)
IMAGE = real(2, 3, 5, 7)
ONE = np.float32(0.7)
Cases = list[tuple[str, dict[str, Any]]]

UNARY: Cases = [
    (name, {"x": X})
    for name in "abs atan ceil cos cosh erf exp exp2 floor round sign sin sinh square tan tanh".split()
]
UNARY += [(name, {"x": UNIT}) for name in ("acos", "asin", "atanh")]
UNARY += [(name, {"x": real(4, 3, low=0.01)}) for name in ("sqrt", "log", "rsqrt", "inverse")]
UNARY += [(name, {"x": whole(3, 5, low=0)}) for name in ("abs", "exp2", "sign", "square")]
UNARY += [
    ("logical_not", {"x": flags(3, 4)}),
    ("clip", {"x": X, "alpha": np.float32(-1), "beta": np.float32(0.5)}),
    ("threshold", {"x": X, "alpha": ONE}),
    ("threshold", {"x": whole(4), "alpha": np.int32(2)}),
    ("inverse", {"x": X, "epsilon": np.float32(0.25)}),
    ("log", {"x": real(4, low=0.1), "epsilon": np.float32(0.5)}),
    ("rsqrt", {"x": real(4, low=0.1), "epsilon": np.float32(0.5)}),
    *(("cast", {"x": X * 9, "dtype": name}) for name in ("int32", "fp16", "fp32", "bool")),
    *(("cast", {"x": whole(5), "dtype": name}) for name in ("int32", "fp16", "fp32", "bool")),
    ("cast", {"x": flags(5), "dtype": "int32"}),
    *(
        ("cast", {"x": np.abs(X) * 9, "dtype": name})
        for name in ("int8", "uint8", "int16", "uint16")
    ),
]
ARITHMETIC = "add sub mul maximum minimum real_div floor_div mod".split()
COMPARED = "equal not_equal greater greater_equal less less_equal".split()
BINARY: Cases = [(name, {"x": X, "y": real(3, 1)}) for name in ARITHMETIC + COMPARED]
BINARY += [
    (name, {"x": whole(2, 3, low=-9), "y": whole(3, low=1)})
    for name in ARITHMETIC + COMPARED
    if name != "real_div"
]
BINARY += [
    *(
        (name, {"x": flags(2, 3), "y": flags(3)})
        for name in ("logical_and", "logical_or", "logical_xor")
    ),
    ("pow", {"x": real(4, low=0.1), "y": real(3, 1)}),
    ("pow", {"x": whole(4), "y": whole(4, low=0, high=4)}),
    ("select", {"cond": flags(2, 3), "a": real(2, 3), "b": real(2, 3)}),
    ("select", {"cond": flags(2, 3), "a": whole(2, 3), "b": whole(2, 3)}),
]
ACTIVATION: Cases = [
    (name, {"x": X}) for name in "relu relu6 sigmoid softplus softsign gelu softmax silu".split()
]
ACTIVATION += [(name, {"x": X, "alpha": ONE}) for name in ("elu", "leaky_relu", "thresholded_relu")]
ACTIVATION += [
    (name, {"x": X, "alpha": ONE, "beta": np.float32(1.5)})
    for name in ("clamped_relu", "linear_activation", "scaled_tanh", "sigmoid_hard")
]
ACTIVATION += [
    *(("gelu", {"x": X, "mode": f"{name}_APPROXIMATION"}) for name in ("TANH", "SIGMOID")),
    *(("softmax", {"x": X, "axis": axis}) for axis in (0, 1, -2)),
    ("prelu", {"x": IMAGE, "alpha": real(3)}),
    ("softplus_parametric", {"x": IMAGE, "alpha": real(3), "beta": real(3)}),
]
REDUCED = "l1_norm l2_norm log_sum log_sum_exp max mean min prod sum sum_square".split()
REDUCTION: Cases = [
    (f"reduce_{name}", {"x": np.abs(X), **how})
    for name in REDUCED
    for how in (
        {},
        {"axes": [1]},
        {"axes": [-1, 0], "keep_dims": True},
        {"axes": [0, 2], "keep_dims": False},
    )
]
REDUCTION += [
    (f"reduce_{name}", {"x": whole(3, 4, low=1, high=5), "axes": [1]})
    for name in ("l1_norm", "max", "min", "prod", "sum", "sum_square")
]
REDUCTION += [
    (f"reduce_arg{name}", {"x": X, "axis": axis, "keep_dims": keep})
    for name in ("max", "min")
    for axis in (0, -1)
    for keep in (False, True)
]
SHAPE: Cases = [
    ("identity", {"x": X}),
    ("shape", {"x": X}),
    ("reshape", {"x": X, "shape": [5, -1]}),
    ("reshape", {"x": X, "shape": [0, -1, 0]}),
    ("expand_dims", {"x": X, "axes": [0, -1]}),
    ("squeeze", {"x": real(1, 3, 1), "axes": [0]}),
    ("squeeze", {"x": real(1, 3, 1)}),
    ("flatten2d", {"x": X, "axis": -1}),
    ("flatten2d", {"x": X}),
    ("transpose", {"x": X, "perm": [2, 0, 1]}),
    ("transpose", {"x": X, "perm": [-1, 0, 1]}),
    ("reverse", {"x": X, "axes": [0, -1]}),
    ("reverse", {"x": X}),
    ("slice_by_index", {"x": X, "begin": [0, 1, 4], "end": [2, 3, 0], "stride": [1, 1, -2]}),
    (
        "slice_by_index",
        {
            "x": X,
            "begin": [1, -2, 1],
            "end": [0, 0, -1],
            "begin_mask": [False, False, True],
            "end_mask": [False, True, False],
            "squeeze_mask": [True, False, False],
        },
    ),
    ("slice_by_size", {"x": X, "begin": [0, -2, 1], "size": [-1, 2, 3]}),
    ("sliding_windows", {"x": X, "axis": 1, "size": 2}),
    ("sliding_windows", {"x": X, "axis": -1, "size": 3, "stride": 2}),
    ("concat", {"values": (X, real(2, 1, 5)), "axis": 1}),
    ("concat", {"values": (whole(2), whole(3)), "axis": -1}),
    ("stack", {"values": (X, X + 1), "axis": -1}),
    ("stack", {"values": (X, X + 1), "axis": 1}),
    ("split", {"x": X, "axis": -1, "split_sizes": [1, 4]}),
    ("split", {"x": X, "axis": 1, "num_splits": 3}),
    ("tile", {"x": X, "reps": [2, 1, 3]}),
    ("pad", {"x": X, "pad": [1, 0, 2, 3], "constant_val": ONE}),
    ("pad", {"x": X, "pad": [1, 2, 0, 4], "mode": "reflect"}),
    ("pad", {"x": X, "pad": [1, 1, 0, 2, 3, 1], "mode": "replicate"}),
    ("depth_to_space", {"x": real(1, 8, 2, 3), "block_size": 2}),
    ("space_to_depth", {"x": real(1, 2, 4, 6), "block_size": 2}),
    ("pixel_shuffle", {"x": real(1, 8, 2, 3), "upscale_factor": 2}),
    (
        "space_to_batch",
        {"x": real(2, 3, 3, 4), "block_shape": [2, 2], "paddings": [[1, 0], [0, 2]]},
    ),
    ("batch_to_space", {"x": real(8, 3, 2, 4), "block_shape": [2, 2], "crops": [[1, 0], [0, 2]]}),
    ("reverse_sequence", {"x": X, "lengths": [2, 4], "seq_axis": 2, "batch_axis": 0}),
]
CREATION: Cases = [
    ("fill", {"shape": [2, 3], "value": np.int32(7)}),
    ("fill", {"shape": [2, 3], "value": ONE}),
    ("range_1d", {"start": np.int32(9), "end": np.int32(-3), "step": np.int32(-2)}),
    ("range_1d", {"start": np.float32(0), "end": np.float32(1), "step": np.float32(0.25)}),
    (
        "one_hot",
        {"indices": whole(2, 3, low=0, high=4), "one_hot_vector_size": np.int32(4), "axis": 1},
    ),
    *(
        ("band_part", {"x": real(2, 4, 5), "lower": a, "upper": b})
        for a in (-1, 0, 2)
        for b in (-1, 1)
    ),
    ("cumsum", {"x": X, "axis": 1}),
    ("cumsum", {"x": X, "axis": 2, "reverse": True}),
    ("cumsum", {"x": whole(3, 4)}),
    ("argsort", {"x": X, "axis": 1}),
    ("argsort", {"x": X, "ascending": True}),
    ("topk", {"x": X, "k": 2}),
    ("topk", {"x": X, "k": 2, "axis": 1, "ascending": True}),
    ("non_zero", {"x": whole(3, 4, low=0, high=2)}),
    ("random_bernoulli", {"shape": [2, 3]}),
    ("random_normal", {"shape": [2, 3]}),
    ("random_uniform", {"shape": [2, 3]}),
    ("random_categorical", {"x": X, "size": 4}),
]
PRODUCTS: Cases = [
    ("linear", {"x": X, "weight": real(4, 5)}),
    ("linear", {"x": X, "weight": real(4, 5), "bias": real(4)}),
    ("matmul", {"x": real(2, 1, 4, 3), "y": real(5, 3, 2)}),
    ("matmul", {"x": real(4, 3), "y": real(5, 4), "transpose_x": True, "transpose_y": True}),
    ("matmul", {"x": whole(4, 3), "y": whole(3, 5)}),
    ("matmul", {"x": real(3), "y": real(3, 5)}),
    ("einsum", {"values": (real(2, 3, 1, 5), real(1, 5, 4, 6)), "equation": "nchw,nwhu->nchu"}),
    ("einsum", {"values": (real(3, 4, 5), real(5, 1, 6)), "equation": "abc,cbd->abd"}),
    ("l2_norm", {"x": X}),
    ("l2_norm", {"x": real(2, 2, 3, 4, 5), "epsilon": ONE}),
    ("layer_norm", {"x": X, "axes": [-1], "gamma": real(5), "beta": real(5)}),
    (
        "layer_norm",
        {"x": X, "axes": [0, 2], "gamma": real(2, 5), "beta": real(2, 5), "epsilon": ONE},
    ),
    ("batch_norm", {"x": IMAGE, "mean": real(3), "variance": real(3, low=0.1)}),
    ("instance_norm", {"x": IMAGE, "gamma": real(3), "beta": real(3)}),
    ("local_response_norm", {"x": IMAGE, "size": 3}),
    ("gather", {"x": X, "indices": [[4, 0], [-1, 2]], "axis": 2}),
    ("gather", {"x": X, "indices": np.int32(1), "axis": 1}),
    ("gather_along_axis", {"x": X, "indices": whole(2, 3, 4, low=0, high=5), "axis": -1}),
    ("gather_nd", {"x": X, "indices": [[0, 1], [1, 2]]}),
    ("scatter", {"data": X, "indices": [0, 2], "updates": real(2, 2, 5), "axis": 1}),
    (
        "scatter_along_axis",
        {
            "data": X,
            "indices": [[[0] * 5]] * 2,
            "updates": real(2, 1, 5),
            "axis": 1,
            "mode": "update",
        },
    ),
    ("scatter_nd", {"data": X, "indices": [[0, 1], [1, 2]], "updates": real(2, 5)}),
]
CONV = {"x": real(2, 4, 7, 6), "weight": real(6, 2, 3, 2), "groups": 2}
POOL = {"x": IMAGE, "kernel_sizes": [3, 2]}
WINDOWED: Cases = [
    (
        "conv",
        {**CONV, "pad_type": "custom", "pad": [1, 2, 0, 1], "strides": [2, 1], "dilations": [1, 2]},
    ),
    *(("conv", {**CONV, "pad_type": kind, "strides": [2, 3]}) for kind in ("same", "valid")),
    ("conv", {"x": real(1, 2, 9), "weight": real(3, 2, 4), "bias": real(3)}),
    ("conv", {"x": real(1, 2, 5, 6, 4), "weight": real(3, 2, 2, 3, 1), "strides": [1, 2, 3]}),
    (
        "conv_transpose",
        {"x": real(2, 4, 3, 4), "weight": real(4, 3, 3, 2), "groups": 2, "strides": [2, 3]},
    ),
    (
        "conv_transpose",
        {"x": real(2, 4, 5), "weight": real(4, 3, 3), "pad_type": "same", "strides": [2]},
    ),
    (
        "conv_transpose",
        {
            "x": real(1, 2, 3, 4),
            "weight": real(2, 3, 3, 3),
            "pad_type": "custom",
            "pad": [1, 1, 0, 1],
            "dilations": [2, 1],
        },
    ),
    *(
        (name, {**POOL, "strides": [2, 2], **how})
        for name in ("avg_pool", "max_pool", "l2_pool")
        for how in (
            {"pad_type": "valid"},
            {"pad_type": "same"},
            {"pad_type": "custom", "pad": [1, 1, 1, 0]},
            {"pad_type": "custom", "pad": [1, 1, 1, 1], "ceil_mode": True},
        )
    ),
    (
        "lstm",
        {
            "x": real(5, 2, 3),
            "initial_h": real(2, 8),
            "initial_c": real(2, 8),
            "weight_ih": real(16, 3),
            "weight_hh": real(16, 4),
            "weight_ih_back": real(16, 3),
            "weight_hh_back": real(16, 4),
            "direction": "bidirectional",
        },
    ),
    *(
        (
            name,
            {
                "x": real(5, 2, 3),
                "initial_h": real(2, 4),
                "weight_ih": real(4 * gates, 3),
                "weight_hh": real(4 * gates, 4),
                "output_sequence": sequence,
            },
        )
        for name, gates in (("gru", 3), ("rnn", 1))
        for sequence in (True, False)
    ),
    (
        "upsample_nearest_neighbor",
        {"x": IMAGE, "scale_factor_height": 2.0, "scale_factor_width": 1.5},
    ),
    (
        "upsample_bilinear",
        {"x": IMAGE, "scale_factor_height": 0.7, "scale_factor_width": 2.0},
    ),
    ("resize_nearest_neighbor", {"x": IMAGE, "target_size_height": 3, "target_size_width": 11}),
    ("resize_bilinear", {"x": IMAGE, "target_size_height": 3, "target_size_width": 11}),
    ("crop", {"x": IMAGE, "crop_height": [1, 2], "crop_width": [0, 3]}),
    (
        "crop_resize",
        {"x": IMAGE, "roi": real(3, 1, 4, 1, 1), "target_height": 2, "target_width": 3},
    ),
    (
        "non_maximum_suppression",
        {
            "boxes": real(2, 6, 4),
            "scores": real(2, 6, 3),
            "iou_threshold": ONE,
            "score_threshold": np.float32(0.1),
            "max_boxes": 4,
        },
    ),
]
NEWER: list[tuple[str, str, dict[str, Any]]] = [
    ("fill_like", "ios16", {"ref_tensor": X, "value": np.int32(3)}),
    ("pixel_unshuffle", "ios16", {"x": real(1, 2, 4, 6), "downscale_factor": np.uint32(2)}),
    (
        "reshape_like",
        "ios16",
        {
            "x": X,
            "ref_tensors": (X, real(1, 5)),
            "begins": (0, 1),
            "ends": (2, 0),
            "end_masks": (False, True),
        },
    ),
    (
        "gather",
        "ios16",
        {"x": X, "indices": whole(2, 3, low=0, high=5), "axis": 2, "batch_dims": 1},
    ),
    ("gather", "ios16", {"x": X, "indices": np.array([1, 0], np.uint16), "axis": 1}),
    ("gather_nd", "ios16", {"x": X, "indices": whole(2, 4, 1, low=0, high=3), "batch_dims": 1}),
    ("topk", "ios16", {"x": X, "k": 3, "return_indices": False}),
    ("gather", "ios17", {"x": whole(4, 5), "indices": [3, 1], "validate_indices": True}),
    ("topk", "ios17", {"x": X, "k": 3, "output_indices_dtype": "uint16"}),
    ("reduce_argmax", "ios17", {"x": X, "output_dtype": "uint16"}),
    ("reshape", "ios17", {"x": real(2, 50), "shape": [1, 0, -1, 0]}),
    ("reshape", "ios17", {"x": X, "shape": [-1, 0]}),
    ("cast", "ios17", {"x": np.abs(X) * 9, "dtype": "uint8"}),
    ("cast", "ios17", {"x": X * 9, "dtype": "int16"}),
    ("clip", "ios17", {"x": X, "alpha": np.float32(-1), "beta": np.float32(0.5)}),
    ("resize", "ios17", {"x": IMAGE, "shape": [4, 0], "resized_dims": np.uint32(2)}),
    ("crop_resize", "ios17", {"x": IMAGE, "boxes": real(2, 4), "target_height": 3}),
    ("quantize", "ios17", {"input": X, "scale": np.float32(0.02), "output_dtype": "int8"}),
    (
        "quantize",
        "ios17",
        {
            "input": X,
            "scale": real(3, low=0.01, high=0.05),
            "zero_point": np.array([3, 128, 200], np.uint8),
            "axis": 1,
            "output_dtype": "uint8",
        },
    ),
    (
        "non_maximum_suppression",
        "ios17",
        {"boxes": real(2, 4, 6), "scores": real(2, 3, 6), "iou_threshold": ONE, "max_boxes": 4},
    ),
    (
        "slice_update",
        "ios18",
        {
            "x": X,
            "update": real(1, 2, 5),
            "begin": [1, 0, 0],
            "end": [2, 3, 0],
            "stride": [1, 2, 1],
            "end_mask": [False, False, True],
        },
    ),
    *(
        (
            "scaled_dot_product_attention",
            "ios18",
            {"query": real(2, 3, 4, 5), "key": real(2, 3, 6, 5), "value": real(2, 3, 6, 7), **mask},
        )
        for mask in ({}, {"attn_mask": real(4, 6)}, {"attn_mask": np.tri(4, 6, 1, dtype=np.bool_)})
    ),
]
OLDER = UNARY + BINARY + ACTIVATION + REDUCTION + SHAPE + CREATION + PRODUCTS + WINDOWED
SINCE_17 = {("cast", name) for name in ("int8", "uint8", "int16", "uint16")}
RANDOM = {"random_bernoulli", "random_normal", "random_uniform", "random_categorical"}


def _opset(name: str, inputs: dict[str, Any]) -> str:
    return "ios17" if (name, inputs.get("dtype")) in SINCE_17 else "ios15"


CASES = [(name, _opset(name, inputs), inputs) for name, inputs in OLDER] + NEWER


def as_arrays(inputs: dict[str, Any]) -> dict[str, Any]:
    """Lists as the arrays that a program holds."""
    return {key: np.array(one) if isinstance(one, list) else one for key, one in inputs.items()}
