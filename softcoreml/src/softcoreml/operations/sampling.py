"""Images sampled at coordinates that a program computes: boxes, grids and affine maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import Array, define, require_rank, require_size, widen
from softcoreml.operations.image import sampling_of

_BOXES = {
    "CORNERS_HEIGHT_FIRST": (False, (0, 1)),
    "CORNERS_WIDTH_FIRST": (False, (1, 0)),
    "CENTER_SIZE_HEIGHT_FIRST": (True, (0, 1)),
    "CENTER_SIZE_WIDTH_FIRST": (True, (1, 0)),
}
"""Whether boxes are centres and sizes, and where height and width are in each pair."""


def _at_corners(image: Array, rows: Array, columns: Array, outside: Any) -> Array:
    """Bilinear interpolation of an image (channels, height, width) at points of any shape.

    Pixels beyond the image have the value `outside`.
    """
    height, width = image.shape[1:]
    y = np.clip(np.nan_to_num(rows, nan=-2.0), -2, height + 1)
    x = np.clip(np.nan_to_num(columns, nan=-2.0), -2, width + 1)
    top, left = np.floor(y).astype(np.intp), np.floor(x).astype(np.intp)
    part_y, part_x = (y - top).astype(np.float32), (x - left).astype(np.float32)

    def pixel(row: Array, column: Array) -> Array:
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        safe = image[:, np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
        return np.where(inside, safe, np.float32(outside))

    upper = pixel(top, left) * (1 - part_x) + pixel(top, left + 1) * part_x
    lower = pixel(top + 1, left) * (1 - part_x) + pixel(top + 1, left + 1) * part_x
    return np.asarray(upper * (1 - part_y) + lower * part_y)


def _box_points(
    box: Array, size: tuple[int, int], target: tuple[int, int], mode: str, sampling: str
) -> list[Array]:
    """The rows and the columns of an image at which a box is sampled."""
    centred, order = _BOXES[mode]
    first, second = box[:2][list(order)], box[2:][list(order)]
    points = []
    for axis in range(2):
        start, end = float(first[axis]), float(second[axis])
        if centred:
            start, end = start - end / 2, start + end / 2
        points.append(sampling_of(sampling)(start, end, target[axis]))
    return points


def _cropped(
    x: Array,
    boxes: Array,
    images: list[list[int]],
    target: tuple[int, int],
    normalized: bool,
    scale: Any,
    mode: str,
    sampling: str,
    outside: Any,
) -> Array:
    """Each box of its images: (boxes, images of a box, channels, height, width)."""
    if mode not in _BOXES:
        raise ModelError(f"box_coordinate_mode {mode!r} is not one of {', '.join(_BOXES)}")
    if min(target) < 1 or 0 in x.shape[2:]:
        raise ModelError(f"target_height and target_width {target} must be at least 1")
    each = len(images[0]) if images else 0
    require_size((len(boxes), each, x.shape[1], *target), "target_height and target_width")
    result = np.empty((len(boxes), each, x.shape[1], *target), dtype=np.float32)
    height, width = x.shape[2:]
    extent = np.array([height - 1, width - 1], dtype=np.float64)[list(_BOXES[mode][1])]
    for number, box in enumerate(boxes.astype(np.float64) * float(scale)):
        real = box * np.concatenate([extent, extent]) if normalized else box
        rows, columns = _box_points(real, (height, width), target, mode, sampling)
        out = ~((rows >= 0) & (rows <= height - 1))[:, None] | ~(
            (columns >= 0) & (columns <= width - 1)
        )
        for place, image in enumerate(images[number]):
            values = _at_corners(x[image], rows[:, None], columns[None, :], outside)
            result[number, place] = np.where(out, np.float32(outside), values)
    return result


@define("crop_resize")
def crop_resize(
    x: Array,
    roi: Array,
    target_height: Any = 1,
    target_width: Any = 1,
    normalized_coordinates: bool = False,
    spatial_scale: Any = 1.0,
    box_coordinate_mode: str = "CORNERS_HEIGHT_FIRST",
    sampling_mode: str = "DEFAULT",
    pad_value: Any = 0.0,
) -> Array:
    """Boxes (n, 1, 4, 1, 1) of every image, or (n, 1, 5, 1, 1) with the number of an image first.

    Points beyond an image are pad_value (an input from iOS 16 on).
    """
    x, roi = widen(x), widen(roi)
    require_rank(x, "x", 4)
    require_rank(roi, "roi", 5)
    if roi.shape[1:] not in ((1, 4, 1, 1), (1, 5, 1, 1)):
        raise ModelError(f"roi {list(roi.shape)} needs the shape (n, 1, 4 or 5, 1, 1)")
    boxes = roi.reshape(len(roi), -1)
    images = [list(range(len(x)))] * len(boxes)
    if boxes.shape[1] == 5:
        images = [[_image(one, len(x), "roi")] for one in boxes[:, 0]]
    return _cropped(
        x,
        boxes[:, -4:],
        images,
        (int(target_height), int(target_width)),
        bool(normalized_coordinates),
        spatial_scale,
        box_coordinate_mode,
        sampling_mode,
        pad_value,
    )


def _image(number: Any, count: int, name: str) -> int:
    if not 0 <= number < count:
        raise ModelError(f"{name} names image {number} of {count}")
    return int(number)


@define("crop_resize", "ios17")
def crop_resize_by_index(
    x: Array,
    boxes: Array,
    box_indices: Array | None = None,
    target_height: Any = 1,
    target_width: Any = 1,
    normalized_coordinates: bool = False,
    spatial_scale: Any = 1.0,
    box_coordinate_mode: str = "CORNERS_HEIGHT_FIRST",
    sampling_mode: str = "DEFAULT",
    pad_value: Any = 0.0,
) -> Array:
    """Boxes (n, 4), each of the image that box_indices names: (n, channels, height, width)."""
    x, boxes = widen(x), widen(boxes)
    require_rank(x, "x", 4)
    indices = np.arange(len(boxes)) if box_indices is None else np.asarray(box_indices)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or indices.shape != (len(boxes),):
        raise ModelError(f"boxes {list(boxes.shape)} and box_indices need the shapes (n, 4), (n,)")
    return _cropped(
        x,
        boxes,
        [[_image(one, len(x), "box_indices")] for one in indices],
        (int(target_height), int(target_width)),
        bool(normalized_coordinates),
        spatial_scale,
        box_coordinate_mode,
        sampling_mode,
        pad_value,
    ).reshape(len(boxes), x.shape[1], int(target_height), int(target_width))


def _unnormalized(values: Array, length: int, mode: str, align_corners: bool) -> Array:
    """Coordinates in pixels, of which the first has its centre at 0."""
    if mode == "unnormalized":
        return values
    if mode == "normalized_minus_one_to_one":
        values = (values + 1) / 2
    elif mode != "normalized_zero_to_one":
        raise ModelError(
            f"coordinates_mode {mode!r} is not one of unnormalized, normalized_minus_one_to_one "
            "and normalized_zero_to_one"
        )
    return values * (length - 1) if align_corners else values * length - 0.5


def _folded(values: Array, low: float, high: float) -> Array:
    """Coordinates reflected at both ends until they lie between them."""
    span = high - low
    if span <= 0:
        return np.zeros_like(values)
    away = np.mod(np.nan_to_num(values) - low, 2 * span)
    return low + np.where(away > span, 2 * span - away, away)


def _padded(values: Array, length: int, mode: str) -> Array:
    """Coordinates moved into the image, but for the mode "constant"."""
    if mode == "constant":
        return values
    if mode == "reflection":
        values = _folded(values, 0, length - 1)
    elif mode == "symmetric":
        values = _folded(values, -0.5, length - 0.5)
    elif mode != "border":
        raise ModelError(
            f"padding_mode {mode!r} is not one of constant, border, reflection and symmetric"
        )
    return np.asarray(np.clip(np.nan_to_num(values), 0, length - 1))


def _resampled(
    image: Array, rows: Array, columns: Array, sampling: str, padding: str, outside: Any
) -> Array:
    rows = _padded(rows, image.shape[1], padding)
    columns = _padded(columns, image.shape[2], padding)
    if sampling == "nearest":
        rows, columns = np.rint(rows), np.rint(columns)
    elif sampling != "bilinear":
        raise ModelError(f"sampling_mode {sampling!r} is not one of bilinear and nearest")
    return _at_corners(image, rows, columns, outside)


@define("resample")
def resample(
    x: Array,
    coordinates: Array,
    sampling_mode: str,
    padding_mode: str,
    padding_value: Any,
    coordinates_mode: str,
    align_corners: bool,
) -> Array:
    """x (batch, channels, h, w) at coordinates (batch, rows, columns, 2), each (x, y)."""
    x = widen(x)
    require_rank(x, "x", 4)
    points = np.asarray(coordinates).astype(np.float64)
    if points.ndim != 4 or points.shape[-1] != 2 or len(points) != len(x) or 0 in x.shape[2:]:
        raise ModelError(f"coordinates {list(points.shape)} do not fit x {list(x.shape)}")
    require_size((*x.shape[:2], *points.shape[1:3]), "coordinates")
    result = np.empty((*x.shape[:2], *points.shape[1:3]), dtype=np.float32)
    modes = sampling_mode.lower(), padding_mode.lower()
    for number, image in enumerate(x):
        columns, rows = (
            _unnormalized(points[number, ..., at], length, coordinates_mode, bool(align_corners))
            for at, length in ((0, x.shape[3]), (1, x.shape[2]))
        )
        result[number] = _resampled(image, rows, columns, *modes, padding_value)
    return result


def _target(count: int, align_corners: bool) -> Array:
    """Coordinates from -1 to 1 of the pixels of a target axis."""
    if align_corners:
        return np.linspace(-1, 1, count) if count > 1 else np.zeros(1)
    return (2 * np.arange(count) + 1) / count - 1


@define("affine")
def affine(
    x: Array,
    transform_matrix: Array,
    output_height: Any,
    output_width: Any,
    sampling_mode: str,
    padding_mode: str,
    padding_value: Any,
    coordinates_mode: str,
    align_corners: bool,
) -> Array:
    """Each target pixel (x, y) is the source at (a0 x + a1 y + a2, b0 x + b1 y + b2)."""
    x, matrices = widen(x), np.asarray(transform_matrix).astype(np.float64)
    require_rank(x, "x", 4)
    if matrices.shape not in ((len(x), 6), (1, 6)):
        raise ModelError(f"transform_matrix {list(matrices.shape)} needs the shape (batch or 1, 6)")
    if coordinates_mode.lower() != "normalized_minus_one_to_one":
        raise ModelError(
            f"coordinates_mode must be normalized_minus_one_to_one, not {coordinates_mode!r}"
        )
    height, width = require_size((int(output_height), int(output_width)), "output_height and width")
    across, down = np.meshgrid(
        _target(width, bool(align_corners)), _target(height, bool(align_corners))
    )
    grid = np.stack([across, down, np.ones_like(across)], axis=-1)
    points = grid[None] @ matrices.reshape(-1, 2, 3).transpose(0, 2, 1)[:, None]
    return np.asarray(
        resample(
            x=x,
            coordinates=np.broadcast_to(points, (len(x), *points.shape[1:])),
            sampling_mode=sampling_mode,
            padding_mode=padding_mode,
            padding_value=padding_value,
            coordinates_mode="normalized_minus_one_to_one",
            align_corners=align_corners,
        )
    )
