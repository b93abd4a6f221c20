"""Texts that grow token by token: what is chosen, what is shown, and when they end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import FormatError
from lbrx.interrupt import UNINTERRUPTED
from lbrx.models.engine import Engine, Next
from lbrx.models.sampling import Sampler, Sampling, log_probability
from lbrx.models.tokenizer import TextStream, Tokenizer
from lbrx.tensor.creation import tensor
from lbrx.tensor.evaluation import start


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
    known_tokens: int = 0
    """Of the prompt, that were in the cache already."""
    new_tokens: int = 0
    first_token: float = 0.0
    decoding: float = 0.0

    @property
    def prefill_speed(self) -> float:
        """Tokens of the prompt a second, of those that had to be read."""
        read = self.prompt_tokens - self.known_tokens
        return read / self.first_token if self.first_token else 0.0

    @property
    def decode_speed(self) -> float:
        """Tokens after the first, of all texts, a second."""
        return self.new_tokens / self.decoding if self.decoding else 0.0


class Text:
    """One text in the making."""

    def __init__(
        self,
        prompt: Sequence[int],
        tokenizer: Tokenizer,
        options: Options,
        context: int,
        number: int = 0,
    ) -> None:
        """`context` is the most tokens, with the prompt; `number` tells equal prompts apart."""
        self.prompt = prompt
        self.limit = min(options.max_tokens, context - len(prompt))
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.finish: Finish | None = None
        self._options = options
        self._sampler = Sampler(options.sampling, number)
        self._stream = TextStream(tokenizer)
        self._held = ""  # text that may be the beginning of a stop string

    @property
    def whole(self) -> list[int]:
        """The tokens so far, with the prompt's."""
        return [*self.prompt, *self.tokens]

    def choose(self, logits: NDArray[np.float32]) -> int:
        return self._sampler.choose(logits, chain(self.prompt, self.tokens))

    def accept(self, token: int, logits: NDArray[np.float32], ends: frozenset[int]) -> str:
        """Add the token that was chosen by these logits; returns the text that can be shown."""
        if token in ends and not self._options.ignore_end:
            self.finish = Finish.END
            return self._ended()
        self.tokens.append(token)
        if self._options.logprobs:
            self.logprobs.append(log_probability(logits, token))
        shown = self._without_stops(self._stream.add(token))
        if self.finish is None and len(self.tokens) >= self.limit:
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


class _Reader:
    """Reads texts as they grow. If others have used the engine in between, it reads them again."""

    def __init__(self, engine: Engine, texts: Sequence[Text]) -> None:
        self.engine = engine
        self.texts = texts
        self.known = 0
        self._turn = 0

    def read(self) -> Next:
        texts = [text.whole for text in self.texts]
        room = max(text.limit - len(text.tokens) for text in self.texts)
        with self.engine.lock:
            self.known = self.engine.known(texts)
            state = self.engine.prefill(texts, room)
            self._turn = self.engine.turn
        start(state)
        return state

    def ahead(self, state: Next) -> Next | None:
        """Begin to read the most likely tokens before anybody has seen them: the device then has
        work while the host looks. None if the texts must be read again."""
        with self.engine.lock:
            if self._turn != self.engine.turn:
                return None
            following = self.engine.decode(state.best, state.positions)
        start(following)
        return following

    def add(self, chosen: Sequence[int], state: Next, following: Next | None) -> Next:
        """Read the chosen tokens, which the texts have already, unless that has begun."""
        with self.engine.lock:
            if self._turn != self.engine.turn:
                return self.read() if following is None else following
            if following is None:
                ids = np.array(chosen)[:, None]
                tokens = tensor(ids, dtype=state.best.dtype, device=state.best.device)
                following = self.engine.decode(tokens, state.positions)
            if len(self.texts) == 1:
                self.engine.remembered.append(self.texts[0].tokens[-1])
        return following


def grow(
    engine: Engine, texts: Sequence[Text], options: Options, ends: frozenset[int], timing: Timing
) -> Iterator[tuple[int, str]]:
    """Generate all texts together; gives (number of a text, new part of it)."""
    began = time.perf_counter()
    reader = _Reader(engine, texts)
    state = reader.read()
    timing.prompt_tokens = sum(len(text.prompt) for text in texts)
    timing.known_tokens = reader.known
    while True:
        # Not for the first token, which is waited for: the first look ahead takes some time.
        looks_ahead = timing.first_token and _goes_on(engine, texts, options)
        following = reader.ahead(state) if looks_ahead else None
        logits = state.logits.numpy()
        chosen = _chosen(texts, logits, options)
        open_texts = [number for number, text in enumerate(texts) if text.finish is None]
        parts = [texts[n].accept(chosen[n], logits[n], ends) for n in open_texts]
        now = time.perf_counter()
        if timing.first_token:
            timing.new_tokens += len(open_texts)
            timing.decoding += now - began
        else:
            timing.first_token = now - began
        began = now
        yield from ((n, part) for n, part in zip(open_texts, parts, strict=True) if part)
        if all(text.finish is not None for text in texts):
            break
        # Memory is given back here: an interrupt in a destructor would be shown, and lost.
        with UNINTERRUPTED:
            del logits
            state = reader.add(chosen, state, following)


def _goes_on(engine: Engine, texts: Sequence[Text], options: Options) -> bool:
    """Whether it is known already that the most likely tokens will be read: on a device, unless
    they are the last ones."""
    more = any(t.finish is None and len(t.tokens) + 1 < t.limit for t in texts)
    return more and options.sampling.is_greedy and engine.model.device != "cpu"


def _chosen(texts: Sequence[Text], logits: NDArray[np.float32], options: Options) -> list[int]:
    """The next token of every text; of one that has ended, anything."""
    # As `state.best`, which the device may be at work with again.
    best: list[int] = logits.argmax(axis=-1).tolist()
    for number, text in enumerate(texts):
        if text.finish is not None:
            continue
        if not np.isfinite(logits[number, best[number]]):
            raise no_numbers(len(text.whole))
        if not options.sampling.is_greedy:
            best[number] = text.choose(logits[number])
    return best


def no_numbers(tokens: int) -> FormatError:
    """What is wrong with a model whose logits are NaN or infinite after so many tokens."""
    return FormatError(
        f"after {tokens:,} tokens the model gives no finite numbers: its weights are damaged, or "
        "too large for the type that is computed in"
    )
