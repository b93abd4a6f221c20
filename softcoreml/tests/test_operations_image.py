"""Resizing and sampling: values that Core ML gives on a Mac, and interpolation in float64.

The tables marked "Core ML" are the expected values of coremltools' tests, which run on a Mac.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from mil_run import call, close
from seeds import generator

Array = np.ndarray
RAMP = np.array([0, 1], np.float32).reshape(1, 1, 2)
GRID = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
SQUARE = np.array([11.0, 22.0, 33.0, 44.0], np.float32).reshape(1, 1, 2, 2)


@pytest.mark.parametrize(
    ("mode", "count", "expected"),
    [
        ("STRICT_ALIGN_CORNERS", 5, [0, 0.25, 0.5, 0.75, 1]),
        ("DEFAULT", 5, [0, 0.4, 0.8, 1, 1]),
        ("OFFSET_CORNERS", 5, [0.1, 0.3, 0.5, 0.7, 0.9]),
        ("UNALIGN_CORNERS", 5, [0.0, 0.1, 0.5, 0.9, 1.0]),
        ("UNALIGN_CORNERS", 6, [0, 0, 1 / 3, 2 / 3, 1, 1]),
        ("STRICT_ALIGN_CORNERS", 6, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ("DEFAULT", 6, [0, 1 / 3, 2 / 3, 1, 1, 1]),
        ("OFFSET_CORNERS", 6, [1 / 12, 3 / 12, 5 / 12, 7 / 12, 9 / 12, 11 / 12]),
        ("ALIGN_CORNERS", 1, [0.5]),
        ("STRICT_ALIGN_CORNERS", 1, [0]),
    ],
)
def test_sampling_modes(mode: str, count: int, expected: list[float]) -> None:
    """The grid points that MIL documents, on an image whose values are its coordinates."""
    expected_array = np.array(expected).reshape(1, 1, count)
    sizes = {"target_size_height": 1, "target_size_width": count}
    close(call("resize_bilinear", x=RAMP, sampling_mode=mode, **sizes), expected_array)
    shape = {"shape": np.array([1, count]), "resized_dims": np.uint32(2)}
    close(call("resize", x=RAMP, sampling_mode=mode, **shape), expected_array)


@pytest.mark.parametrize(
    ("align", "half", "expected"),
    [
        (True, False, [1.0, 1.2, 1.4, 1.6, 1.8, 2.0]),
        (True, None, [1.0, 1.2, 1.4, 1.6, 1.8, 2.0]),
        (False, True, [1.0, 1.0, 4 / 3, 5 / 3, 2.0, 2.0]),
        (False, None, [1.0, 1.0, 4 / 3, 5 / 3, 2.0, 2.0]),
        (False, False, [1.0, 4 / 3, 5 / 3, 2.0, 2.0, 2.0]),
    ],
)
def test_upsample_bilinear(align: bool, half: bool | None, expected: list[float]) -> None:
    """Core ML."""
    given = {} if half is None else {"half_pixel_centers": half}
    x = np.array([1, 2], np.float32).reshape(1, 1, 1, 2)
    factors = {"scale_factor_height": np.int32(2), "scale_factor_width": np.int32(3)}
    actual = call("upsample_bilinear", "ios16", x=x, align_corners=align, **factors, **given)
    close(actual, np.array([expected, expected])[None, None])


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (np.float32(1), np.float32(1), [[1.5, -2.5, 3.5]]),
        (np.float32(3.17), np.float32(0.67), [[1.5, -2.5]] * 3),
        (np.float32(2), np.float32(1.12), [[1.5, -2.5, 3.5]] * 2),
        (np.int32(1), np.int32(2), [[1.5, 1.5, -2.5, -2.5, 3.5, 3.5]]),
    ],
)
def test_upsample_nearest(height: Any, width: Any, expected: list[list[float]]) -> None:
    """Core ML."""
    x = np.array([1.5, -2.5, 3.5], np.float32).reshape(1, 1, 1, 3)
    factors = {"scale_factor_height": height, "scale_factor_width": width}
    close(call("upsample_nearest_neighbor", x=x, **factors), np.array(expected)[None, None])


def test_resize_nearest() -> None:
    """Core ML."""
    x = np.array([-6.174, 9.371], np.float32).reshape(1, 1, 1, 2, 1)
    shape = {"shape": np.array([1, 1, 3, 2]), "resized_dims": np.uint32(2)}
    actual = call("resize", x=x, interpolation_mode="NEAREST_NEIGHBOR", **shape)
    rows = [[-6.174, -6.174], [9.371, 9.371], [9.371, 9.371]]
    close(actual, np.array(rows).reshape(1, 1, 1, 3, 2))


@pytest.mark.parametrize("mode", ["ALIGN_CORNERS", "OFFSET_CORNERS"])
def test_resize_nearest_takes_the_element_next_to_the_point(mode: str) -> None:
    x = generator(40).integers(-9, 9, (2, 7, 5)).astype(np.int32)
    shape = {"shape": np.array([4, 0]), "resized_dims": np.uint32(2), "sampling_mode": mode}
    actual = call("resize", x=x, interpolation_mode="NEAREST_NEIGHBOR", **shape)
    points = np.linspace(0, 6, 4) if mode == "ALIGN_CORNERS" else (np.arange(4) + 0.5) * 6 / 4
    assert actual.dtype == np.int32
    np.testing.assert_array_equal(actual[:, :, 0], x[:, np.floor(points + 0.5).astype(int), 0])


ROI = np.array([[1, 1, 2, 2]], np.float32)
THREE = np.array([[0.1, 0.3, 1.3, 1.0], [0.5, 1.8, 1.0, 0.3], [0.0, 0.4, 0.6, 0.7]], np.float32)
THIRDS = [
    [6, 19 / 3, 20 / 3, 7],
    [22 / 3, 23 / 3, 8, 25 / 3],
    [26 / 3, 9, 28 / 3, 29 / 3],
    [10, 31 / 3, 32 / 3, 11],
]


@pytest.mark.parametrize(
    ("roi", "size", "normalized", "expected"),
    [
        (ROI, 2, False, [[6, 7], [10, 11]]),
        (ROI, 4, False, THIRDS),
        (ROI, 1, False, [[8.5]]),
        (np.array([[0, 0, 0, 1 / 3, 1 / 3]], np.float32), 2, True, [[1, 2], [5, 6]]),
        (np.array([[2, 2, 1, 1]], np.float32), 2, False, [[11, 10], [7, 6]]),
    ],
)
def test_crop_resize(roi: Array, size: int, normalized: bool, expected: Any) -> None:
    """Core ML."""
    actual = call(
        "crop_resize",
        "ios15",
        x=GRID,
        roi=roi.reshape(1, 1, -1, 1, 1),
        target_height=size,
        target_width=size,
        normalized_coordinates=normalized,
        sampling_mode="ALIGN_CORNERS",
    )
    close(actual, np.array(expected)[None, None, None])


@pytest.mark.parametrize("pad", [0.0, 10.0])
def test_crop_resize_beyond_the_image(pad: float) -> None:
    """Core ML."""
    how = {
        "target_height": 2,
        "target_width": 2,
        "normalized_coordinates": True,
        "sampling_mode": "ALIGN_CORNERS",
        "pad_value": np.float32(pad),
    }
    expected = [[[3.1, 5.2], [pad, pad]], [[pad, 7.9], [pad, 13.9]], [[2.2, 3.1], [9.4, 10.3]]]
    roi = np.concatenate([np.zeros((3, 1), np.float32), THREE], axis=1).reshape(3, 1, 5, 1, 1)
    close(call("crop_resize", "ios16", x=GRID, roi=roi, **how), np.array(expected)[:, None, None])
    indices = np.zeros(3, np.int32)
    actual = call("crop_resize", "ios17", x=GRID, boxes=THREE, box_indices=indices, **how)
    close(actual, np.array(expected)[:, None])


@pytest.mark.parametrize(
    ("mode", "box"),
    [
        ("CORNERS_HEIGHT_FIRST", [0.5, 1, 2.5, 2]),
        ("CORNERS_WIDTH_FIRST", [1, 0.5, 2, 2.5]),
        ("CENTER_SIZE_HEIGHT_FIRST", [1.5, 1.5, 2, 1]),
        ("CENTER_SIZE_WIDTH_FIRST", [1.5, 1.5, 1, 2]),
    ],
)
def test_forms_of_boxes(mode: str, box: list[float]) -> None:
    """Every form of one box: rows 0.5 to 2.5, columns 1 to 2."""
    how = {"target_height": 3, "target_width": 2, "sampling_mode": "ALIGN_CORNERS"}
    boxes = np.array([box], np.float32) * 2
    actual = call(
        "crop_resize", x=GRID, boxes=boxes, box_coordinate_mode=mode, spatial_scale=0.5, **how
    )
    rows, columns = np.array([0.5, 1.5, 2.5])[:, None], np.array([1.0, 2.0])
    close(actual[0, 0], 1 + 4 * rows + columns)


COORDINATES = np.array([-1.0, -2.0, -3.7, -1.0, 0.0, 0.0, 3.5, 1.2], np.float32).reshape(1, 2, 2, 2)


@pytest.mark.parametrize(
    ("sampling", "padding", "value", "mode", "align", "expected"),
    [
        (
            "bilinear",
            "constant",
            6.17,
            "normalized_minus_one_to_one",
            True,
            [8.585, 6.17, 27.5, 6.17],
        ),
        ("nearest", "border", -1.0, "unnormalized", False, [11.0, 11.0, 11.0, 44.0]),
        ("bilinear", "reflection", -1.0, "normalized_zero_to_one", True, [22.0, 36.3, 11.0, 34.1]),
        ("nearest", "symmetric", -1.0, "normalized_zero_to_one", False, [22.0, 33.0, 11.0, 33.0]),
    ],
)
def test_resample(
    sampling: str, padding: str, value: float, mode: str, align: bool, expected: list[float]
) -> None:
    """Core ML."""
    actual = call(
        "resample",
        x=SQUARE,
        coordinates=COORDINATES,
        sampling_mode=sampling,
        padding_mode=padding,
        padding_value=np.float32(value),
        coordinates_mode=mode,
        align_corners=align,
    )
    close(actual, np.array(expected).reshape(1, 1, 2, 2), 2e-5)


def test_coordinates_that_are_not_numbers_are_outside() -> None:
    points = np.array([np.nan, 0, np.inf, 0, -np.inf, 0, 0, np.nan], np.float32)
    actual = call(
        "resample",
        x=SQUARE,
        coordinates=points.reshape(1, 2, 2, 2),
        sampling_mode="bilinear",
        padding_mode="constant",
        padding_value=np.float32(5),
        coordinates_mode="unnormalized",
        align_corners=True,
    )
    close(actual, np.full((1, 1, 2, 2), 5), 0)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (3, 3, [10.752501, 2.5025, 0.0, 1.9799997, 0.0, 0.0, 0.0, 0.0, 0.0]),
        (2, 5, [10.752501, 5.94, 2.5025, 0.44000006, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_affine(height: int, width: int, expected: list[float]) -> None:
    """Core ML."""
    actual = call(
        "affine",
        x=SQUARE,
        transform_matrix=np.array([[-1.0, -2.0, -3.7, -1.0, 3.5, 1.2]], np.float32),
        output_height=height,
        output_width=width,
        sampling_mode="bilinear",
        padding_mode="constant",
        padding_value=np.float32(0),
        coordinates_mode="normalized_minus_one_to_one",
        align_corners=True,
    )
    close(actual, np.array(expected).reshape(1, 1, height, width), 1e-5)


def naive_bilinear(image: Array, rows: list[float], columns: list[float]) -> Array:
    """Each pixel by itself, from the four around it."""
    last = image.shape[0] - 1, image.shape[1] - 1
    result = np.zeros((len(rows), len(columns)))
    for (i, y), (j, x) in ((a, b) for a in enumerate(rows) for b in enumerate(columns)):
        y, x = min(max(y, 0), last[0]), min(max(x, 0), last[1])
        for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
            r, c = math.floor(y) + row, math.floor(x) + column
            if r <= last[0] and c <= last[1]:
                result[i, j] += (1 - abs(y - r)) * (1 - abs(x - c)) * float(image[r, c])
    return result


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("size", [(3, 4), (5, 7), (11, 2), (1, 9)])
def test_resize_bilinear(dtype: type, size: tuple[int, int]) -> None:
    x = generator(41).standard_normal((2, 1, 5, 7)).astype(dtype)
    rows = [(i + 0.5) * 5 / size[0] - 0.5 for i in range(size[0])]
    columns = [(i + 0.5) * 7 / size[1] - 0.5 for i in range(size[1])]
    sizes = {"target_size_height": size[0], "target_size_width": size[1]}
    actual = call("resize_bilinear", x=x, sampling_mode="UNALIGN_CORNERS", **sizes)
    assert actual.dtype == np.float32
    for image, found in zip(x[:, 0], actual[:, 0], strict=True):
        close(found, naive_bilinear(image, rows, columns))
