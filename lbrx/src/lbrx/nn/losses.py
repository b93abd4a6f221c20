"""Losses. `reduction` is "none", "mean" or "sum"."""

from __future__ import annotations

import math
from typing import Literal

from lbrx.errors import ShapeError
from lbrx.tensors.core import Tensor, call

Reduction = Literal["none", "mean", "sum"]


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    match reduction:
        case "none":
            return loss
        case "mean":
            return loss.mean()
        case "sum":
            return loss.sum()
    raise ValueError(f"reduction={reduction!r} is not known: give 'none', 'mean' or 'sum'")


def _alike(inputs: Tensor, targets: Tensor) -> None:
    if inputs.shape != targets.shape:
        raise ShapeError(f"inputs and targets have the shapes {inputs.shape} and {targets.shape}")


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    axis: int = -1,
    label_smoothing: float = 0.0,
    reduction: Reduction = "none",
) -> Tensor:
    """The negative logarithm of the softmax of logits at the targets.

    Targets are integers (the classes), or probabilities in the shape of the logits. label_smoothing
    is the share that is spread over all classes; weights multiply the losses before a reduction.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing={label_smoothing}: give 0 to below 1")
    own = logits.log_softmax(axis=axis)
    if targets.dtype.is_float:
        _alike(logits, targets)
        score = (own * targets).sum(axis=axis)
    else:
        expected = list(logits.shape)
        del expected[axis]
        if targets.shape != tuple(expected):
            raise ShapeError(f"targets of shape {targets.shape}: give {tuple(expected)}")
        score = call("gather", own, targets.unsqueeze(axis), axis=axis).squeeze(axis)
    loss = -score
    if label_smoothing:
        loss = loss * (1 - label_smoothing) - own.mean(axis=axis) * label_smoothing
    return _reduced(loss if weights is None else loss * weights, reduction)


def binary_cross_entropy(
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    with_logits: bool = True,
    reduction: Reduction = "mean",
) -> Tensor:
    """The cross entropy of two classes, of logits or, with with_logits=False, of probabilities,
    whose logarithms are at least -100."""
    _alike(inputs, targets)
    if with_logits:
        loss = inputs.softplus() - inputs * targets
    else:
        yes, no = (call("maximum", x.log(), -100) for x in (inputs, 1 - inputs))
        loss = -(targets * yes + (1 - targets) * no)
    return _reduced(loss if weights is None else loss * weights, reduction)


def l1_loss(predictions: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
    """|predictions - targets|."""
    _alike(predictions, targets)
    return _reduced((predictions - targets).abs(), reduction)


def mse_loss(predictions: Tensor, targets: Tensor, reduction: Reduction = "mean") -> Tensor:
    """(predictions - targets)**2."""
    _alike(predictions, targets)
    return _reduced((predictions - targets).square(), reduction)


def nll_loss(
    inputs: Tensor, targets: Tensor, axis: int = -1, reduction: Reduction = "none"
) -> Tensor:
    """The negative inputs, which are logarithms of probabilities, at the target classes."""
    chosen = call("gather", inputs, targets.unsqueeze(axis), axis=axis).squeeze(axis)
    return _reduced(-chosen, reduction)


def gaussian_nll_loss(
    inputs: Tensor,
    targets: Tensor,
    vars: Tensor,
    full: bool = False,
    eps: float = 1e-6,
    reduction: Reduction = "mean",
) -> Tensor:
    """The negative logarithm of normal densities with means `inputs` and variances `vars`, which
    are at least eps. full=True adds the constant term."""
    _alike(inputs, targets)
    spread = call("maximum", vars, eps)
    loss = 0.5 * (spread.log() + (targets - inputs).square() / spread)
    return _reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def kl_div_loss(
    inputs: Tensor, targets: Tensor, axis: int = -1, reduction: Reduction = "none"
) -> Tensor:
    """sum(exp(targets) * (targets - inputs)) along an axis, of logarithms of probabilities."""
    return _reduced((targets.exp() * (targets - inputs)).sum(axis=axis), reduction)


def smooth_l1_loss(
    predictions: Tensor, targets: Tensor, beta: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """Squares divided by 2 beta up to a difference of beta, |difference| - beta / 2 beyond."""
    _alike(predictions, targets)
    size = (predictions - targets).abs()
    loss = call("where", size < beta, size.square() * (0.5 / beta), size - 0.5 * beta)
    return _reduced(loss, reduction)


def huber_loss(
    inputs: Tensor, targets: Tensor, delta: float = 1.0, reduction: Reduction = "none"
) -> Tensor:
    """Half the square up to a difference of delta, delta * (|difference| - delta / 2) beyond."""
    size = (inputs - targets).abs()
    loss = call("where", size <= delta, size.square() * 0.5, (size - 0.5 * delta) * delta)
    return _reduced(loss, reduction)


def log_cosh_loss(inputs: Tensor, targets: Tensor, reduction: Reduction = "none") -> Tensor:
    """log(cosh(inputs - targets)), without overflow."""
    errors = inputs - targets
    return _reduced(call("logaddexp", errors, -errors) - math.log(2), reduction)


def hinge_loss(inputs: Tensor, targets: Tensor, reduction: Reduction = "none") -> Tensor:
    """max(1 - inputs * targets, 0), of targets -1 and 1."""
    return _reduced((1 - inputs * targets).relu(), reduction)


def triplet_loss(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    axis: int = -1,
    p: int = 2,
    margin: float = 1.0,
    eps: float = 1e-6,
    reduction: Reduction = "none",
) -> Tensor:
    """max(distance to positives - distance to negatives + margin, 0), of p-norms."""

    def distance(x: Tensor) -> Tensor:
        powers = (anchors - x).abs() ** p
        return (powers.sum(axis=axis) + eps) ** (1 / p)

    return _reduced((distance(positives) - distance(negatives) + margin).relu(), reduction)


def cosine_similarity_loss(
    x1: Tensor, x2: Tensor, axis: int = 1, eps: float = 1e-8, reduction: Reduction = "none"
) -> Tensor:
    """The cosine of the angle between vectors along an axis."""
    sizes = x1.norm(axis=axis) * x2.norm(axis=axis)
    return _reduced((x1 * x2).sum(axis=axis) / call("maximum", sizes, eps), reduction)


def margin_ranking_loss(
    inputs1: Tensor,
    inputs2: Tensor,
    targets: Tensor,
    margin: float = 0.0,
    reduction: Reduction = "none",
) -> Tensor:
    """max(-targets * (inputs1 - inputs2) + margin, 0), of targets -1 and 1."""
    return _reduced((margin - targets * (inputs1 - inputs2)).relu(), reduction)
