"""Operations on damaged inputs: a result or a named error, never another exception or a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mil_cases import CASES, IMAGE, X, as_arrays, real
from mil_run import call
from seeds import derived

from softcoreml.errors import ModelError
from softcoreml.operations import arguments
from softcoreml.operations.registry import names

BYTES = np.arange(4, dtype=np.uint8)
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("dequantize", "ios17", {"input": BYTES, "scale": np.float32(0.5), "zero_point": np.uint8(3)}),
    ("classify", "ios15", {"probabilities": real(3), "classes": ("a", "b", "c")}),
    (
        "conv_quantized",
        "ios15",
        {
            "x": real(1, 2, 5),
            "weight": BYTES.reshape(2, 2, 1),
            "quantization_type": "linear",
            "quant_scale": real(2),
            "quant_bias": real(2),
        },
    ),
    (
        "resample",
        "ios15",
        {
            "x": IMAGE,
            "coordinates": real(2, 3, 3, 2),
            "sampling_mode": "bilinear",
            "padding_mode": "reflection",
            "padding_value": np.float32(0),
            "coordinates_mode": "normalized_zero_to_one",
            "align_corners": True,
        },
    ),
    (
        "affine",
        "ios15",
        {
            "x": IMAGE,
            "transform_matrix": real(2, 6),
            "output_height": 3,
            "output_width": 4,
            "sampling_mode": "bilinear",
            "padding_mode": "constant",
            "padding_value": np.float32(0),
            "coordinates_mode": "normalized_minus_one_to_one",
            "align_corners": True,
        },
    ),
    (
        "constexpr_affine_dequantize",
        "ios16",
        {"quantized_data": BYTES, "zero_point": np.uint8(1), "scale": real(4), "axis": 0},
    ),
    ("constexpr_cast", "ios16", {"source_val": real(3).astype(np.float16), "output_dtype": "fp32"}),
    ("constexpr_lut_to_dense", "ios16", {"indices": BYTES, "lut": real(16), "shape": [2, 4]}),
    ("constexpr_lut_to_dense", "ios18", {"indices": BYTES.reshape(2, 2), "lut": real(1, 2, 4, 1)}),
    (
        "constexpr_lut_to_sparse",
        "ios18",
        {
            "indices_mask": np.eye(2, dtype=np.uint8),
            "indices_nonzero_data": BYTES[:2],
            "lut": real(1, 1, 4, 2),
            "vector_axis": 1,
        },
    ),
    (
        "constexpr_sparse_to_dense",
        "ios16",
        {"nonzero_data": real(2), "mask": BYTES[3:], "shape": [8]},
    ),
    ("constexpr_sparse_to_dense", "ios18", {"nonzero_data": real(3), "mask": BYTES}),
    (
        "constexpr_blockwise_shift_scale",
        "ios18",
        {"data": BYTES.reshape(2, 2), "scale": real(2, 1), "offset": BYTES[:2].reshape(2, 1)},
    ),
    (
        "constexpr_sparse_blockwise_shift_scale",
        "ios18",
        {"data_mask": BYTES, "nonzero_data": BYTES[:3], "scale": real(2)},
    ),
]
ALL = CASES + OTHERS
NUMBERS = [-1, 0, 1, 2, 7, -(2**31), 2**31 - 1, 2**31 - 2, 65536]
SHAPES = [(), (0,), (1,), (3,), (2, 2), (0, 3), (1, 2, 3), (2, 3, 5), (1, 1, 1, 1), (1,) * 6]
DTYPES = [np.float32, np.float16, np.int32, np.int8, np.uint8, np.uint16, np.bool_]


def damaged(value: Any, rng: np.random.Generator) -> Any:
    """Something else in the place of an input, most often of the same kind."""
    kind = int(rng.integers(0, 6))
    if isinstance(value, str) or kind == 0:
        return ["", "nonsense", "DEFAULT", "custom", "int32", True][int(rng.integers(0, 6))]
    number = NUMBERS[int(rng.integers(0, len(NUMBERS)))]
    if kind == 1 or not isinstance(value, np.ndarray):
        return np.int32(number) if rng.integers(0, 2) else np.float32(number)
    if kind == 2:
        shape = SHAPES[int(rng.integers(0, len(SHAPES)))]
        return rng.integers(0, 3, shape).astype(DTYPES[int(rng.integers(0, len(DTYPES)))])
    changed = np.array(value)
    if kind == 3 and changed.size and changed.dtype.kind != "b":
        limits = (np.nan, np.inf, -np.inf, 1e38)
        odd = limits[int(rng.integers(0, 4))] if changed.dtype.kind == "f" else number
        with np.errstate(all="ignore"):
            place = int(rng.integers(0, changed.size))
            changed.reshape(-1)[place] = np.array(odd).astype(changed.dtype)
        return changed
    if kind == 4:
        return changed.reshape(-1) if rng.integers(0, 2) else changed[None]
    return changed[:-1] if changed.ndim else changed[None]


def test_every_operation_is_here() -> None:
    assert {name for name, _, _ in ALL} == set(names())


@pytest.mark.parametrize(
    ("name", "opset", "inputs"), ALL, ids=[f"{n}-{o}-{i}" for i, (n, o, _) in enumerate(ALL)]
)
def test_damaged_inputs(
    name: str, opset: str, inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each input in turn is damaged in several ways, or left out."""
    monkeypatch.setattr(arguments, "LARGEST_RESULT", 1 << 22)
    rng = np.random.default_rng(derived(f"{name} {opset} {len(inputs)}"))
    whole = as_arrays(inputs)
    call(name, opset, **whole)
    refused = []
    for key in whole:
        attempts = [{**whole, key: damaged(whole[key], rng)} for _ in range(8)]
        attempts.append({one: value for one, value in whole.items() if one != key})
        for given in attempts:
            try:
                call(name, opset, **given)
            except ModelError as error:
                refused.append(str(error))
    assert refused
    assert all(one.startswith(f"{name}: ") for one in refused)


def test_inputs_are_not_changed() -> None:
    for name, opset, inputs in ALL:
        given = as_arrays(inputs)
        copies = {key: np.copy(one) for key, one in given.items() if isinstance(one, np.ndarray)}
        for one in given.values():
            if isinstance(one, np.ndarray):
                one.flags.writeable = False
        call(name, opset, **given)
        for key, one in copies.items():
            np.testing.assert_array_equal(given[key], one)
            given[key].flags.writeable = True
    assert X.flags.writeable
