"""Chooses the next token from logits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import LbrxError

Logits = NDArray[np.float32]
TOP_P_SORTED = 1024  # tokens that top_p sorts before it sorts the whole vocabulary
BLOCK = 256  # tokens that are summed together when one is drawn


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Values out of range raise LbrxError."""

    temperature: float = 0.0
    """Divides the logits. 0 always chooses the most likely token."""
    top_k: int = 0
    """Draw from this many of the most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Draw from the fewest most likely tokens whose probabilities add up to this."""
    min_p: float = 0.0
    """Draw from tokens at least this many times as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that occur in the text so far become less likely."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens that were generated."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens for each time that they were generated."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """What is added to the logits of tokens, by their ids."""
    seed: int | None = None
    """Makes the choice reproducible. None draws different tokens each time."""

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, 0)
        check_number("top_k", self.top_k, 0, integer=True)
        check_number("top_p", self.top_p, 0, 1)
        check_number("min_p", self.min_p, 0, 1)
        check_number("repetition_penalty", self.repetition_penalty, 0.001, 1000)
        check_number("presence_penalty", self.presence_penalty, -2, 2)
        check_number("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_bias(self.logit_bias)
        if self.seed is not None:
            check_number("seed", self.seed, 0, integer=True)

    @property
    def is_greedy(self) -> bool:
        """Whether the token with the largest logit is always chosen."""
        return self.temperature == 0 and not self.adjusts

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before a token is chosen."""
        penalised = self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty
        return bool(penalised or self.logit_bias)


def check_number(
    name: str, value: Any, low: float, high: float = math.inf, integer: bool = False
) -> None:
    """Raise LbrxError unless an option's value is a finite number from low to high."""
    kind = Integral if integer else Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or value == math.inf:
        above = f" to {high:,}" if high < math.inf else " or more"
        what = "an integer" if integer else "a number"
        raise LbrxError(f"{name}={value!r}: give {what}, {low:,}{above}")


def _check_bias(bias: Any) -> None:
    if not isinstance(bias, Mapping):
        raise LbrxError(f"logit_bias={bias!r:.80}: give a mapping from token ids to numbers")
    for token, value in bias.items():
        check_number("a token id of logit_bias", token, 0, integer=True)
        check_number(f"logit_bias of token {token}", value, -1000, 1000)


class Sampler:
    """Chooses the tokens of one text. The same seed chooses the same tokens."""

    def __init__(self, sampling: Sampling, repeat: int = 0) -> None:
        """`repeat` makes texts of a batch that have the same prompt and seed differ."""
        self.sampling = sampling
        self._repeat = repeat

    @cached_property
    def _random(self) -> np.random.Generator:
        """Made when it is first needed: greedy generation does not import numpy.random."""
        seed = self.sampling.seed
        return np.random.default_rng(None if seed is None else [seed, self._repeat])

    def choose(self, logits: Logits, prompt: Sequence[int], generated: Sequence[int] = ()) -> int:
        """The next token, given its logits and the tokens of the text so far."""
        wanted = self.sampling
        if wanted.adjusts:
            logits = adjusted(logits, prompt, generated, wanted)
        if wanted.temperature == 0:
            return int(np.argmax(logits))
        tokens, weights = candidates(logits, wanted)
        return int(tokens[draw(weights, self._random.random())])


def adjusted(
    logits: Logits, prompt: Sequence[int], generated: Sequence[int], wanted: Sampling
) -> Logits:
    """Logits with all penalties and biases."""
    if wanted.repetition_penalty != 1:
        logits = penalise_repetition(logits, chain(prompt, generated), wanted.repetition_penalty)
    result = logits.copy()
    if wanted.presence_penalty or wanted.frequency_penalty:
        used, counts = np.unique(np.asarray(generated, np.intp), return_counts=True)
        result[used] -= wanted.presence_penalty + wanted.frequency_penalty * counts
    for token, bias in wanted.logit_bias.items():
        if token < len(result):
            result[token] += bias
    return result


def penalise_repetition(logits: Logits, before: Iterable[int], penalty: float) -> Logits:
    """Logits with the tokens in `before` made less likely, once however often they occur."""
    used = np.unique(np.fromiter(before, np.intp))
    result = logits.copy()
    values = result[used]
    result[used] = np.where(values > 0, values / penalty, values * penalty)
    return result


def draw(weights: Logits, number: float) -> int:
    """The index whose share of the cumulated weights contains `number`, which is from 0 to 1.

    Blocks are summed first: cumulative sums of a whole vocabulary take longer than all the rest.
    """
    sums = np.cumsum(np.add.reduceat(weights, range(0, len(weights), BLOCK), dtype=np.float64))
    goal = min(number * sums[-1], np.nextafter(sums[-1], 0))
    block = int(np.searchsorted(sums, goal, "right"))
    rest = goal - (sums[block - 1] if block else 0)
    inner = weights[block * BLOCK : (block + 1) * BLOCK]
    place = int(np.searchsorted(np.cumsum(inner, dtype=np.float64), rest, "right"))
    # A sum that was rounded down must not select a weight of zero behind the last one.
    return block * BLOCK + min(place, int(np.flatnonzero(inner)[-1]))


def candidates(logits: Logits, wanted: Sampling) -> tuple[NDArray[np.intp], Logits]:
    """The tokens to draw from and their unnormalised probabilities (the largest is 1)."""
    # More extreme temperatures choose the same, and do not fit float32.
    temperature = np.float32(min(max(wanted.temperature, 1e-30), 1e30))
    peak = logits.max()
    if 0 < wanted.top_k < len(logits):
        chosen = largest(logits, wanted.top_k)
        logits = logits[chosen]
    else:
        chosen = _all_tokens(len(logits))
    with np.errstate(over="ignore"):
        powers = np.exp((logits - peak) / temperature)
    if wanted.top_p < 1:
        kept = _top_p(powers, wanted.top_p)
        chosen, powers = chosen[kept], powers[kept]
    if wanted.min_p > 0:
        kept = np.flatnonzero(powers >= wanted.min_p)
        chosen, powers = chosen[kept], powers[kept]
    return chosen, powers


@lru_cache(1)
def _all_tokens(size: int) -> NDArray[np.intp]:
    """Cached, as allocating it for each token would take longer than choosing one."""
    tokens = np.arange(size)
    tokens.setflags(write=False)
    return tokens


def _top_p(powers: Logits, share: float) -> NDArray[np.intp]:
    """The indices of the fewest values whose sum is this share of the total, largest first."""
    goal = share * powers.sum(dtype=np.float64)
    chosen = largest(powers, TOP_P_SORTED)  # usually enough
    if powers[chosen].sum(dtype=np.float64) < goal:
        chosen = np.arange(len(powers))
    chosen = chosen[np.argsort(-powers[chosen], kind="stable")]
    sums = np.cumsum(powers[chosen], dtype=np.float64)
    return chosen[: int(np.count_nonzero(sums[:-1] < goal)) + 1]


def largest(values: Logits, count: int) -> NDArray[np.intp]:
    """The indices of the `count` largest values, in no order.

    Partitioning a whole vocabulary takes as long as some layers of a small model. The threshold
    is the count-th largest of the blocks' maxima: few values reach it, and at least `count` do.
    """
    width = len(values) // (4 * count)
    if width < 2:
        every = np.arange(len(values))
        return every if count >= len(values) else np.argpartition(values, -count)[-count:]
    whole = len(values) // width * width
    peaks = values[:whole].reshape(-1, width).max(axis=1)
    found = np.flatnonzero(values >= np.partition(peaks, -count)[-count])
    return found[np.argpartition(values[found], -count)[-count:]]


def most_likely(logits: Logits, count: int) -> list[tuple[int, float]]:
    """The `count` most likely tokens with their log-probabilities, the most likely first."""
    chosen = largest(logits, min(count, len(logits)))
    order = chosen[np.lexsort((chosen, -logits[chosen]))]
    return [(int(token), log_probability(logits, int(token))) for token in order]


def log_probability(logits: Logits, token: int) -> float:
    """The natural logarithm of a token's softmax probability, without sampling options."""
    shifted = logits - logits.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum(dtype=np.float64)))
