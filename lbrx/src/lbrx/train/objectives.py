"""What training lowers: losses of a batch made of those of its tokens, summed over its examples."""

from __future__ import annotations

from collections.abc import Callable

from lbrx.tensors.core import Tensor, call

Objective = Callable[[Tensor, Tensor, Tensor | None, float], Tensor]
"""From weighted losses of tokens (rows, n), the weights, the logarithms of the rows' probabilities
before training, and the strength `beta`."""

LEAST = 1e-6
"""Probabilities are below 1 by it where the odds are computed."""


def imitation(losses: Tensor, weights: Tensor, before: Tensor | None, beta: float) -> Tensor:
    """Supervised fine-tuning: the sum of the losses."""
    return losses.sum()


def direct_preference(
    losses: Tensor, weights: Tensor, before: Tensor | None, beta: float
) -> Tensor:
    """DPO (Rafailov et al. 2023): how much more likely chosen answers became than rejected ones,
    compared with the model before training."""
    assert before is not None
    gains = -losses.sum(axis=1) - before
    return _ahead(gains, beta)


def odds_ratio(losses: Tensor, weights: Tensor, before: Tensor | None, beta: float) -> Tensor:
    """ORPO (Hong et al. 2024): the mean loss of the tokens of chosen answers, and the ratio of the
    odds of chosen and rejected ones, times beta."""
    means = losses.sum(axis=1) / weights.sum(axis=1)
    means = call("maximum", means, LEAST)
    odds = -means - (-((-means).expm1())).log()
    return means[: means.shape[0] // 2].sum() + _ahead(odds, 1.0) * beta


def _ahead(scores: Tensor, beta: float) -> Tensor:
    """-log(sigmoid(beta * (chosen - rejected))), summed over pairs."""
    half = scores.shape[0] // 2
    return ((scores[half:] - scores[:half]) * beta).softplus().sum()


OBJECTIVES: dict[str, Objective] = {
    "sft": imitation,
    "dpo": direct_preference,
    "orpo": odds_ratio,
}
PREFERENCES = ("dpo", "orpo")
"""Objectives of pairs of answers."""
