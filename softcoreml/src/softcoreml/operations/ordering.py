"""Sorting, the largest values, positions that are not zero, and non-maximum suppression."""

from __future__ import annotations

from typing import Any

import numpy as np

from softcoreml.errors import ModelError
from softcoreml.operations.arguments import (
    Array,
    axis_of,
    define,
    dtype_named,
    require_rank,
    require_size,
    widen,
)


def _order(x: Array, axis: int, ascending: bool) -> Array:
    """Positions in sorted order; equal values keep their order, and NaNs come last."""
    if not ascending:
        x = -x if x.dtype.kind == "f" else ~x  # ~ reverses the order without an overflow
    return np.argsort(x, axis=axis, kind="stable")


@define("argsort")
def argsort(x: Array, axis: Any = -1, ascending: bool = False) -> Array:
    x = np.asarray(x)
    return _order(x, axis_of(axis, x.ndim), bool(ascending)).astype(np.int32)


@define("topk")
def topk(
    x: Array,
    k: Any = 1,
    axis: Any = -1,
    ascending: bool = False,
    sort: bool = True,
    return_indices: bool = True,
    output_indices_dtype: str = "int32",
) -> Array | tuple[Array, Array]:
    """The k largest (or smallest) values and their positions; k of -1 stands for all.

    The result is sorted whatever `sort` says, which promises no order when it is false.
    """
    x = np.asarray(x)
    where = axis_of(axis, x.ndim)
    count = x.shape[where] if int(k) == -1 else int(k)
    if not 0 <= count <= x.shape[where]:
        raise ModelError(f"k {count} must lie between 0 and the axis' {x.shape[where]} values")
    order = _order(x, where, bool(ascending))[(slice(None),) * where + (slice(0, count),)]
    values = np.take_along_axis(x, order, where)
    if not return_indices:
        return values
    return values, order.astype(dtype_named(output_indices_dtype, "output_indices_dtype"))


@define("non_zero")
def non_zero(x: Array) -> Array:
    """One row of indices for each element that is not zero."""
    return np.argwhere(np.asarray(x)).astype(np.int32)


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of a box with others, as corners (left, top, right, bottom)."""
    size = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = np.prod(np.maximum(size, 0), axis=1)
    area = np.prod(others[:, 2:] - others[:, :2], axis=1)
    union = np.prod(box[2:] - box[:2]) + area - common
    return np.where(union > 0, common / union, 0)


def _survivors(corners: Array, scores: Array, threshold: float, limit: int) -> list[int]:
    """Boxes in descending order of score without those that overlap an earlier one."""
    left = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while left.size and len(kept) < limit:  # each turn removes at least one box
        best = int(left[0])
        kept.append(best)
        rest = left[1:]
        left = rest[_overlaps(corners[best], corners[rest]) <= threshold]
    return kept


def _suppressed(
    boxes: Array, scores: Array, iou: float, least: float, limit: int, per_class: bool
) -> list[int]:
    """The boxes of one image that are kept; the best one if none reaches the least score."""
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    corners = np.concatenate([centre - half, centre + half], axis=1)
    best, classes = scores.max(axis=1), scores.argmax(axis=1)
    groups = np.unique(classes) if per_class else [None]
    kept: list[int] = []
    for group in groups:
        chosen = best >= least
        if group is not None:
            chosen &= classes == group
        indices = np.flatnonzero(chosen)
        kept += indices[_survivors(corners[indices], best[indices], iou, limit)].tolist()
    if not kept and len(best):
        return [int(best.argmax())]
    return sorted(kept, key=lambda one: (-best[one], one))[:limit]


def _suppress(
    boxes: Array, scores: Array, iou: Any, least: float, limit: int, per_class: bool
) -> tuple[Array, Array, Array, Array]:
    require_rank(boxes, "boxes", 3)
    require_rank(scores, "scores", 3)
    batch, count, classes = scores.shape
    if boxes.shape != (batch, count, 4) or not classes:
        raise ModelError(f"boxes {boxes.shape} and scores {scores.shape} do not belong together")
    require_size((batch, limit, max(4, classes)), "max_boxes")
    out_boxes = np.zeros((batch, limit, 4), dtype=np.float32)
    out_scores = np.zeros((batch, limit, classes), dtype=np.float32)
    indices = np.full((batch, limit), -1, dtype=np.int32)
    numbers = np.zeros(batch, dtype=np.int32)
    wide_boxes, wide_scores = widen(boxes), widen(scores)
    for image in range(batch):
        kept = _suppressed(
            wide_boxes[image], wide_scores[image], float(iou), least, limit, per_class
        )[:limit]
        numbers[image] = len(kept)
        indices[image, : len(kept)] = kept
        out_boxes[image, : len(kept)] = wide_boxes[image][kept]
        out_scores[image, : len(kept)] = wide_scores[image][kept]
    return out_boxes, out_scores, indices, numbers


@define("non_maximum_suppression")
def non_maximum_suppression(
    boxes: Array,
    scores: Array,
    iou_threshold: Any,
    score_threshold: Any,
    max_boxes: Any,
    per_class_suppression: bool = False,
) -> tuple[Array, Array, Array, Array]:
    """Boxes (batch, box, 4) as centre and size, their scores, indices and number.

    Unused places hold zeros and the index -1. A box counts with the best of its class scores.
    """
    limit, least = int(max_boxes), float(score_threshold)
    return _suppress(boxes, scores, iou_threshold, least, limit, bool(per_class_suppression))


@define("non_maximum_suppression", "ios17")
def non_maximum_suppression_boxes_last(
    boxes: Array,
    scores: Array,
    iou_threshold: Any,
    max_boxes: Any,
    per_class_suppression: bool = False,
) -> tuple[Array, Array, Array]:
    """The same with the boxes along the last axis, without a least score or a number."""
    require_rank(boxes, "boxes", 3)
    require_rank(scores, "scores", 3)
    turned = boxes.transpose(0, 2, 1), scores.transpose(0, 2, 1)
    limit, per_class = int(max_boxes), bool(per_class_suppression)
    found = _suppress(*turned, iou_threshold, -np.inf, limit, per_class)
    return found[0].transpose(0, 2, 1), found[1].transpose(0, 2, 1), found[2]
