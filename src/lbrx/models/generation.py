"""Texts that grow token by token: what is chosen, what is shown, and when they end."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from lbrx.models.engine import Engine, Next
from lbrx.models.sampling import Sampler, Sampling, log_probability
from lbrx.models.tokenizer import TextStream, Tokenizer
from lbrx.tensor.creation import tensor


class Finish(StrEnum):
    """Why a text ended."""

    END = "end"  # the model's own end
    STOP = "stop"  # a stop string
    LENGTH = "length"  # as many tokens as were asked for, or as the context has


@dataclass(frozen=True)
class Options:
    """What is wanted of a generation."""

    max_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    ignore_end: bool = False


@dataclass
class Timing:
    """How long a generation took, in seconds."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    first_token: float = 0.0
    decoding: float = 0.0

    @property
    def prefill_speed(self) -> float:
        """Tokens of the prompt a second."""
        return self.prompt_tokens / self.first_token if self.first_token else 0.0

    @property
    def decode_speed(self) -> float:
        """Tokens after the first, of all texts, a second."""
        return self.new_tokens / self.decoding if self.decoding else 0.0


def peak_memory() -> int:
    """The most bytes that this process has had in memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Text:
    """One text in the making."""

    def __init__(
        self, prompt: Sequence[int], tokenizer: Tokenizer, options: Options, number: int
    ) -> None:
        self.prompt = prompt
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.finish: Finish | None = None
        self._options = options
        self._sampler = Sampler(options.sampling, number)
        self._stream = TextStream(tokenizer)
        self._held = ""  # text that may be the beginning of a stop string

    def choose(self, logits: NDArray[np.float32]) -> int:
        return self._sampler.choose(logits, [*self.prompt, *self.tokens])

    def accept(self, token: int, ends: frozenset[int]) -> str:
        """Add a token; returns the text that can be shown now."""
        if token in ends and not self._options.ignore_end:
            self.finish = Finish.END
            return self._ended()
        self.tokens.append(token)
        shown = self._without_stops(self._stream.add(token))
        if self.finish is None and len(self.tokens) >= self._options.max_tokens:
            self.finish = Finish.LENGTH
            return shown + self._ended()
        return shown

    def _ended(self) -> str:
        rest = self._without_stops(self._stream.end())
        return rest if self.finish is Finish.STOP else rest + self._held

    def _without_stops(self, new: str) -> str:
        """What surely belongs to the text; the rest is held until more is known."""
        text = self._held + new
        found = [at for stop in self._options.stop if (at := text.find(stop)) >= 0]
        if found:
            self.finish, self._held = Finish.STOP, ""
            return text[: min(found)]
        held = max((_overlap(text, stop) for stop in self._options.stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """How much of the text's end is the beginning of a stop string."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)


def grow(
    engine: Engine, texts: Sequence[Text], options: Options, ends: frozenset[int], timing: Timing
) -> Iterator[tuple[int, str]]:
    """Generate all texts together; gives (number of a text, new part of it)."""
    began = time.perf_counter()
    timing.prompt_tokens = sum(len(text.prompt) for text in texts)
    longest = max(len(text.prompt) for text in texts)
    room = min(options.max_tokens, engine.context - longest)
    state = engine.prefill([text.prompt for text in texts], max(room, 1))
    for turn in range(max(room, 1)):
        chosen = _chosen(texts, state, options)
        now = time.perf_counter()
        if turn == 0:
            timing.first_token, began = now - began, now
        else:
            timing.new_tokens += sum(text.finish is None for text in texts)
            timing.decoding = now - began
        for number, (text, token) in enumerate(zip(texts, chosen, strict=True)):
            if text.finish is None and (shown := text.accept(token, ends)):
                yield number, shown
        if turn + 1 == room or all(text.finish is not None for text in texts):
            break
        state = _advanced(engine, state, chosen, options)
        if len(texts) == 1:
            engine.remembered.append(chosen[0])
    for text in texts:
        text.finish = text.finish or Finish.LENGTH


def _chosen(texts: Sequence[Text], state: Next, options: Options) -> list[int]:
    """The next token of every text; of one that has ended, anything."""
    if options.sampling.is_greedy and not options.logprobs:
        return [int(token) for token in state.best.numpy()[:, 0]]
    logits = state.logits.numpy()
    chosen = [
        text.choose(row) if text.finish is None else 0
        for text, row in zip(texts, logits, strict=True)
    ]
    if options.logprobs:
        for text, row, token in zip(texts, logits, chosen, strict=True):
            if text.finish is None:
                text.logprobs.append(log_probability(row, token))
    return chosen


def _advanced(engine: Engine, state: Next, chosen: Sequence[int], options: Options) -> Next:
    if options.sampling.is_greedy:
        return engine.decode(state.best, state.positions)
    tokens = tensor(np.array(chosen)[:, None], dtype=state.best.dtype, device=state.best.device)
    return engine.decode(tokens, state.positions)
