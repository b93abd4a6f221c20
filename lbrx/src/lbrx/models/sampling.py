"""Which token comes next."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import LbrxError

Logits = NDArray[np.float32]
SORTED, WIDTH = 1024, 256  # tokens


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
        return int(candidates[drawn(chances, self._random.random())])


def penalised(logits: Logits, before: Iterable[int], penalty: float) -> Logits:
    """Tokens that have been used made less likely, once however often they were."""
    used = np.unique(np.fromiter(before, np.intp))
    result = logits.copy()
    values = result[used]
    result[used] = np.where(values > 0, values / penalty, values * penalty)
    return result


def drawn(chances: Logits, number: float) -> int:
    """The place that a number from 0 to 1 falls on, if each is as wide as its chance.

    By way of blocks: the sums of a whole vocabulary would cost more than all else here.
    """
    sums = np.cumsum(np.add.reduceat(chances, range(0, len(chances), WIDTH), dtype=np.float64))
    goal = min(number * sums[-1], np.nextafter(sums[-1], 0))
    block = int(np.searchsorted(sums, goal, "right"))
    rest = goal - (sums[block - 1] if block else 0)
    inner = chances[block * WIDTH : (block + 1) * WIDTH]
    place = int(np.searchsorted(np.cumsum(inner, dtype=np.float64), rest, "right"))
    # A sum that is rounded down must not lead to what has no chance.
    return block * WIDTH + min(place, int(np.flatnonzero(inner)[-1]))


def likely(logits: Logits, wanted: Sampling) -> tuple[NDArray[np.intp], Logits]:
    """The tokens to choose among, and their probabilities (unscaled: the largest is 1)."""
    # Beyond these the choice is the same, and float32 ends.
    temperature = np.float32(min(max(wanted.temperature, 1e-30), 1e30))
    peak = logits.max()
    if 0 < wanted.top_k < len(logits):
        chosen = largest(logits, wanted.top_k)
        logits = logits[chosen]
    else:
        chosen = _every(len(logits))
    with np.errstate(over="ignore"):
        powers = np.exp((logits - peak) / temperature)
    if wanted.top_p < 1:
        kept = _heaviest(powers, wanted.top_p)
        chosen, powers = chosen[kept], powers[kept]
    if wanted.min_p > 0:
        kept = np.flatnonzero(powers >= wanted.min_p)
        chosen, powers = chosen[kept], powers[kept]
    return chosen, powers


@lru_cache(1)
def _every(size: int) -> NDArray[np.intp]:
    """Every token. To take the memory anew for each choice would cost more than the choice."""
    tokens = np.arange(size)
    tokens.setflags(write=False)
    return tokens


def _heaviest(powers: Logits, share: float) -> NDArray[np.intp]:
    """The fewest that have a share of the sum together, the largest first."""
    goal = share * powers.sum(dtype=np.float64)
    chosen = largest(powers, SORTED)  # a few usually have it
    if powers[chosen].sum(dtype=np.float64) < goal:
        chosen = np.arange(len(powers))
    chosen = chosen[np.argsort(-powers[chosen], kind="stable")]
    sums = np.cumsum(powers[chosen], dtype=np.float64)
    return chosen[: int(np.count_nonzero(sums[:-1] < goal)) + 1]


def largest(values: Logits, count: int) -> NDArray[np.intp]:
    """Where the largest values are, in no order.

    To partition a whole vocabulary takes as long as some layers of a small model. As many blocks
    have a largest value of at least a threshold as there are values wanted: so few values are.
    """
    width = len(values) // (4 * count)
    if width < 2:
        every = np.arange(len(values))
        return every if count >= len(values) else np.argpartition(values, -count)[-count:]
    whole = len(values) // width * width
    peaks = values[:whole].reshape(-1, width).max(axis=1)
    found = np.flatnonzero(values >= np.partition(peaks, -count)[-count])
    return found[np.argpartition(values[found], -count)[-count:]]


def log_probability(logits: Logits, token: int) -> float:
    """Of a token, as the model itself sees it."""
    shifted = logits - logits.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum(dtype=np.float64)))
