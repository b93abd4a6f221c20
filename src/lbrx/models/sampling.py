"""Which token comes next."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import LbrxError

Logits = NDArray[np.float32]
SORTED = 1024  # tokens


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Without a temperature it is always the most likely one."""

    temperature: float = 0.0
    top_k: int = 0
    """Choose among so many of the most likely; 0 for any number."""
    top_p: float = 1.0
    """Choose among the most likely that have this probability together."""
    min_p: float = 0.0
    """Choose among those that are at least this share as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """What makes tokens of the text so far less likely, above 1."""
    seed: int | None = None

    def __post_init__(self) -> None:
        within("temperature", self.temperature, 0)
        within("top_k", self.top_k, 0, whole=True)
        within("top_p", self.top_p, 0, 1)
        within("min_p", self.min_p, 0, 1)
        within("repetition_penalty", self.repetition_penalty, 0.001, 1000)
        if self.seed is not None:
            within("seed", self.seed, 0, whole=True)

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit decides, so that nobody needs to see the others."""
        return self.temperature == 0 and self.repetition_penalty == 1


def within(name: str, value: Any, low: float, high: float = math.inf, whole: bool = False) -> None:
    """Check a number that a user gives."""
    kind = Integral if whole else Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or value == math.inf:
        above = f" to {high:,}" if high < math.inf else " or more"
        what = "whole number" if whole else "number"
        raise LbrxError(f"{name}={value!r}: give a {what}, {low:,}{above}")


class Sampler:
    """Chooses tokens of one text; the same seed chooses the same ones."""

    def __init__(self, sampling: Sampling, number: int = 0) -> None:
        """`number` tells texts of a batch apart that have the same prompt."""
        self.sampling = sampling
        self._number = number

    @cached_property
    def _random(self) -> np.random.Generator:
        """Made with the first choice by chance: a greedy start need not import it."""
        seed = self.sampling.seed
        return np.random.default_rng(None if seed is None else [seed, self._number])

    def choose(self, logits: Logits, before: Iterable[int]) -> int:
        """A token, given the logits and the tokens of the text so far."""
        wanted = self.sampling
        if wanted.repetition_penalty != 1:
            logits = penalised(logits, before, wanted.repetition_penalty)
        if wanted.temperature == 0:
            return int(np.argmax(logits))
        candidates, chances = likely(logits, wanted)
        place = np.searchsorted(np.cumsum(chances), self._random.random() * chances.sum(), "right")
        return int(candidates[min(int(place), len(candidates) - 1)])


def penalised(logits: Logits, before: Iterable[int], penalty: float) -> Logits:
    """Tokens that have been used made less likely, once however often they were."""
    used = np.unique(np.fromiter(before, np.intp))
    result = logits.copy()
    values = result[used]
    result[used] = np.where(values > 0, values / penalty, values * penalty)
    return result


def likely(logits: Logits, wanted: Sampling) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The tokens to choose among, and their probabilities (unscaled)."""
    powers = np.exp((logits.astype(np.float64) - logits.max()) / wanted.temperature)
    chosen = np.arange(len(logits))
    if 0 < wanted.top_k < len(logits):
        chosen = np.argpartition(powers, -wanted.top_k)[-wanted.top_k :]
    if wanted.top_p < 1:
        chosen = _heaviest(chosen, powers, wanted.top_p)
    chosen = chosen[powers[chosen] >= wanted.min_p]  # the largest is 1
    return chosen, powers[chosen]


def _heaviest(
    chosen: NDArray[np.intp], powers: NDArray[np.float64], share: float
) -> NDArray[np.intp]:
    """The fewest tokens that have a share of the probability together, the most likely first."""
    goal = share * powers[chosen].sum()
    if len(chosen) > SORTED:
        # A few usually have it: to sort a whole vocabulary takes as long as a small model's step.
        top = chosen[np.argpartition(powers[chosen], -SORTED)[-SORTED:]]
        chosen = top if powers[top].sum() >= goal else chosen
    chosen = chosen[np.argsort(-powers[chosen], kind="stable")]
    before = np.cumsum(powers[chosen]) - powers[chosen]
    return chosen[: max(int(np.count_nonzero(before < goal)), 1)]


def log_probability(logits: Logits, token: int) -> float:
    """Of a token, as the model itself sees it."""
    wide = logits.astype(np.float64)
    peak = wide.max()
    return float(wide[token] - peak - np.log(np.exp(wide - peak).sum()))
