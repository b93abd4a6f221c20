"""What a model expects at each place of a text, and how far two models agree about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import LbrxError
from lbrx.models.engine import Engine
from lbrx.models.generation import not_finite

if TYPE_CHECKING:
    from lbrx.models.language_model import LanguageModel

TOGETHER = 128  # tokens whose logits are in memory at a time


def distributions(
    engine: Engine, text: Sequence[int], context: int
) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
    """Tokens of a text from the second on, some at a time, with the log-probabilities of all tokens
    at their places: (tokens, vocabulary). A text longer than the context is cut into pieces, each
    of which begins with the last token of the one before."""
    for begin in range(0, max(len(text) - 1, 0), context - 1):
        tokens = list(text[begin : begin + context])
        engine.reserve(1, len(tokens))
        engine.report(begin, len(text))
        for first in range(0, len(tokens), TOGETHER):
            piece, following = (tokens[i : i + TOGETHER] for i in (first, first + 1))
            scores = engine.all_logits(piece, first).log_softmax().numpy()[: len(following)]
            if np.isnan(scores).any():
                raise not_finite(first + len(piece))
            engine.report(begin + first + len(piece), len(text))
            yield following, scores


@dataclass(frozen=True)
class Agreement:
    """How a model predicts a text beside a reference."""

    scores: list[float]
    """The model's log-probabilities of the text's tokens but the first."""
    reference_scores: list[float]
    divergences: list[float]
    """At each place the Kullback-Leibler divergence of the model from the reference, in nats."""
    same_best: float
    """The share of places where both have the same most likely token."""


def compare(model: LanguageModel, reference: LanguageModel, tokens: Sequence[int]) -> Agreement:
    """How a language model predicts a text beside a reference with the same vocabulary.

    Raises LbrxError for models of different vocabularies.
    """
    sizes = [each.config.vocabulary for each in (model, reference)]
    if sizes[0] != sizes[1]:
        raise LbrxError(
            f"the models have {sizes[0]:,} and {sizes[1]:,} tokens: give two with one vocabulary"
        )
    engines = [each.engine for each in (model, reference)]
    context = min(engine.context for engine in engines)
    own: list[float] = []
    wanted: list[float] = []
    divergences: list[float] = []
    same = 0
    with engines[0].lock, engines[1].lock:
        both = (distributions(engine, tokens, context) for engine in engines)
        for (following, scores), (_, expected) in zip(*both, strict=True):
            at = np.arange(len(following)), following
            own += scores[at].tolist()
            wanted += expected[at].tolist()
            divergences += divergence(expected, scores).tolist()
            same += int((scores.argmax(-1) == expected.argmax(-1)).sum())
    return Agreement(own, wanted, divergences, same / max(len(own), 1))


def divergence(expected: NDArray[np.float32], found: NDArray[np.float32]) -> NDArray[np.float64]:
    """The divergence of each row of log-probabilities from the expected ones."""
    wide = expected.astype(np.float64)
    shares = np.exp(wide)
    difference = np.where(shares > 0, wide - found.astype(np.float64), 0)
    result: NDArray[np.float64] = (shares * difference).sum(axis=-1)
    return result
