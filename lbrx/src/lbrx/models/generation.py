"""Generates texts token by token: which token is chosen, what is shown, and when a text ends."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from lbrx.errors import FormatError, LbrxError
from lbrx.interrupt import UNINTERRUPTED
from lbrx.models.constraints import Constraint
from lbrx.models.engine import Engine, Prediction
from lbrx.models.sampling import Sampler, Sampling, log_probability, most_likely
from lbrx.models.tokenizer import TextStream, Tokenizer
from lbrx.tensors.creation import tensor
from lbrx.tensors.evaluation import start


class OptionKeywords(TypedDict, total=False):
    """The keyword arguments of `generate`, `stream` and `chat`; `LanguageModel` explains them."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    stop: str | Sequence[str]
    logprobs: bool
    top_logprobs: int
    ignore_end: bool
    show_special: bool
    schema: Mapping[str, Any] | bool
    regex: str
    grammar: str


class FinishReason(StrEnum):
    """Why a text ended."""

    END = "end"  # the model generated an end token
    STOP = "stop"  # a stop string was found
    LENGTH = "length"  # max_tokens or the context was reached


@dataclass(frozen=True)
class GenerationOptions:
    """The options of `generate`, `stream` and `chat`, checked."""

    max_tokens: int = 256
    """The maximum number of new tokens."""
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are not part of it."""
    logprobs: bool = False
    """Whether to return the log-probability of each new token."""
    top_logprobs: int = 0
    """How many of the most likely tokens to return at each place, with their log-probabilities."""
    ignore_end: bool = False
    """Whether to continue after the model's end token."""
    show_special: bool = False
    """Whether special tokens are part of the text."""
    rules: str | None = None
    """What the text has to obey, in the form of `llguidance`."""


@dataclass
class Timing:
    """Numbers of tokens and durations of a generation, over all texts of a batch."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompt that were in the cache and not computed again."""
    decoded_tokens: int = 0
    """Generated tokens after the first one of each text."""
    first_token_seconds: float = 0.0
    """Time until the first token, with reading the prompt and compiling kernels."""
    prefill_seconds: float = 0.0
    """Time until the first token, without compiling kernels."""
    decode_seconds: float = 0.0
    """Time of the tokens after the first, without compiling kernels."""
    compiled_kernels: int = 0
    """Kernels that were compiled meanwhile, as on the first run of a model."""
    compile_seconds: float = 0.0

    @property
    def prefill_speed(self) -> float:
        """Computed prompt tokens per second."""
        computed = self.prompt_tokens - self.cached_tokens
        return computed / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_speed(self) -> float:
        """Generated tokens per second, without the first."""
        return self.decoded_tokens / self.decode_seconds if self.decode_seconds else 0.0


class TextState:
    """A text that is being generated: prompt, tokens so far, and why it ended."""

    def __init__(
        self,
        prompt: Sequence[int],
        tokenizer: Tokenizer,
        options: GenerationOptions,
        context: int,
        repeat: int = 0,
        constraint: Constraint | None = None,
    ) -> None:
        """`context` is the maximum number of tokens with the prompt. `repeat` is the number of
        equal prompts before this one in the batch, so that each draws other tokens. `constraint`
        follows the rules of the options."""
        self.prompt = prompt
        self.limit = min(options.max_tokens, context - len(prompt))
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[list[tuple[int, float]]] = []
        self.finish_reason: FinishReason | None = None
        self.stopped_by: str | None = None
        """The stop string that ended the text."""
        self._options = options
        self._constraint = constraint
        self._sampler = Sampler(options.sampling, repeat)
        self._stream = TextStream(tokenizer, special=options.show_special)
        self._held = ""  # text that may be the beginning of a stop string

    @property
    def all_tokens(self) -> list[int]:
        """The prompt's tokens and those generated so far."""
        return [*self.prompt, *self.tokens]

    def prepare(self) -> None:
        """Do what `choose` needs besides the logits, while the device computes these."""
        if self._constraint is not None:
            self._constraint.prepare()

    def choose(self, logits: NDArray[np.float32]) -> int:
        if self._constraint is not None:
            logits = self._constraint.masked(logits)
        return self._sampler.choose(logits, self.prompt, self.tokens)

    @property
    def is_greedy(self) -> bool:
        """Whether the token with the largest logit is always chosen."""
        return self._options.sampling.is_greedy and self._constraint is None

    def accept(self, token: int, logits: NDArray[np.float32], ends: frozenset[int]) -> str:
        """Append the token that was chosen from these logits. Returns the text to show now."""
        ruled = self._constraint is not None
        if token in ends and (ruled or not self._options.ignore_end):
            self.finish_reason = FinishReason.END
            return self._remaining()
        complete = self._constraint is not None and self._constraint.accept(token)
        self.tokens.append(token)
        if self._options.logprobs:
            self.logprobs.append(log_probability(logits, token))
        if self._options.top_logprobs:
            self.top_logprobs.append(most_likely(logits, self._options.top_logprobs))
        shown = self._until_stop(self._stream.add(token))
        if self.finish_reason is None and (complete or len(self.tokens) >= self.limit):
            self.finish_reason = FinishReason.END if complete else FinishReason.LENGTH
            return shown + self._remaining()
        return shown

    def _remaining(self) -> str:
        rest = self._until_stop(self._stream.end())
        return rest if self.finish_reason is FinishReason.STOP else rest + self._held

    def _until_stop(self, new: str) -> str:
        """The text before a stop string. What may be the beginning of one is held back."""
        text = self._held + new
        found = [(at, stop) for stop in self._options.stop if (at := text.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            self.finish_reason, self._held = FinishReason.STOP, ""
            return text[:at]
        held = max((overlap(text, stop) for stop in self._options.stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)


class _Session:
    """Runs a batch of texts on an engine that others use too. Where another text has taken the
    cache, the texts are computed again from their tokens."""

    def __init__(self, engine: Engine, texts: Sequence[TextState]) -> None:
        self.engine = engine
        self.texts = texts
        self.cached_tokens = 0
        self._reservation = 0

    def prefill(self) -> Prediction:
        texts = [text.all_tokens for text in self.texts]
        room = max(text.limit - len(text.tokens) for text in self.texts)
        with self.engine.lock:
            self.cached_tokens = self.engine.cached_prefix(texts)
            prediction = self.engine.prefill(texts, room)
            self._reservation = self.engine.reservation
        start(prediction)
        return prediction

    def decode_ahead(self, prediction: Prediction) -> Prediction | None:
        """Start the step for the most likely tokens before the host has read the logits, so that
        the device is busy meanwhile. None if another text has the cache."""
        with self.engine.lock:
            if self._reservation != self.engine.reservation:
                return None
            following = self.engine.decode(prediction.best, prediction.positions)
        start(following)
        return following

    def decode(
        self, chosen: Sequence[int], prediction: Prediction, ahead: Prediction | None
    ) -> Prediction:
        """The prediction after the chosen tokens, which the texts have accepted; `ahead` is the
        result of `decode_ahead`."""
        with self.engine.lock:
            if self._reservation != self.engine.reservation:
                return self.prefill() if ahead is None else ahead
            if ahead is None:
                ids = np.array(chosen)[:, None]
                best = prediction.best
                tokens = tensor(ids, dtype=best.dtype, device=best.device)
                ahead = self.engine.decode(tokens, prediction.positions)
            if len(self.texts) == 1:
                self.engine.cached_tokens.append(self.texts[0].tokens[-1])
        return ahead


class _Clock:
    """Measures the time of each step, and how much of it went into compiling kernels."""

    def __init__(self, engine: Engine) -> None:
        self._device = engine.network.device
        self._now, self._compiled = time.perf_counter(), self._compiled_kernels()

    def _compiled_kernels(self) -> tuple[int, float]:
        if self._device != "metal":
            return 0, 0.0
        from lbrx.metal import context

        compiled = context().shaders.compiled
        return compiled.kernels, compiled.seconds

    def add_to(self, timing: Timing, tokens: int) -> None:
        """Add the step since the last call, which gave each of so many texts a token."""
        before, (kernels, seconds) = self._now, self._compiled
        self._now, self._compiled = time.perf_counter(), self._compiled_kernels()
        compiling = self._compiled[1] - seconds
        # Another thread may have compiled all the time; then there is no speed.
        computing = max(self._now - before - compiling, 0.0)
        timing.compiled_kernels += self._compiled[0] - kernels
        timing.compile_seconds += compiling
        if timing.first_token_seconds:
            timing.decoded_tokens += tokens
            timing.decode_seconds += computing
        else:
            timing.first_token_seconds = self._now - before
            timing.prefill_seconds = computing


def generate(
    engine: Engine,
    texts: Sequence[TextState],
    ends: frozenset[int],
    timing: Timing,
) -> Iterator[tuple[int, str]]:
    """Generate all texts together. Yields (index of a text, its next part) and fills `timing`."""
    clock = _Clock(engine)
    session = _Session(engine, texts)
    prediction = session.prefill()
    timing.prompt_tokens = sum(len(text.prompt) for text in texts)
    timing.cached_tokens = session.cached_tokens
    while True:
        # The first token is shown as soon as possible, and recording the step takes some time.
        may_decode_ahead = timing.first_token_seconds and _best_is_next(engine, texts)
        ahead = session.decode_ahead(prediction) if may_decode_ahead else None
        for text in texts:
            text.prepare()
        logits = prediction.logits.numpy()
        chosen = _choose(texts, logits)
        active = [index for index, text in enumerate(texts) if text.finish_reason is None]
        parts = [texts[i].accept(chosen[i], logits[i], ends) for i in active]
        clock.add_to(timing, len(active))
        yield from ((i, part) for i, part in zip(active, parts, strict=True) if part)
        if all(text.finish_reason is not None for text in texts):
            break
        # Memory is freed here: Python drops a KeyboardInterrupt that is raised in a destructor.
        with UNINTERRUPTED:
            del logits
            prediction = session.decode(chosen, prediction, ahead)


def _best_is_next(engine: Engine, texts: Sequence[TextState]) -> bool:
    """Whether the most likely tokens will surely be decoded next, and a device could do so."""
    more = any(t.finish_reason is None and len(t.tokens) + 1 < t.limit for t in texts)
    greedy = all(text.is_greedy for text in texts)
    return more and greedy and engine.network.device != "cpu"


def _choose(texts: Sequence[TextState], logits: NDArray[np.float32]) -> list[int]:
    """The next token of every text; for one that has ended, any token."""
    # Not read from `prediction.best`, for which the host would wait: a step may be using it.
    best: list[int] = logits.argmax(axis=-1).tolist()
    for index, text in enumerate(texts):
        if text.finish_reason is not None:
            continue
        if not np.isfinite(logits[index, best[index]]):
            raise not_finite(len(text.all_tokens))
        if not text.is_greedy:
            best[index] = text.choose(logits[index])
    return best


def check_prompt(tokens: int, context: int, largest: int = 0) -> None:
    """Raise LbrxError unless a prompt has tokens and leaves room in the context. `largest` is the
    largest context that the model may have."""
    if not tokens:
        raise LbrxError("the prompt is empty: give at least one token of text")
    if tokens >= context:
        larger = ", or open the model with a larger context"
        raise LbrxError(
            f"the prompt has {tokens:,} tokens, and the context is {context:,}: "
            f"shorten it{larger if context < largest else ''}"
        )


class NotFiniteError(FormatError):
    """The logits of a model are NaN or infinite."""


def not_finite(tokens: int) -> NotFiniteError:
    """The error for logits that are NaN or infinite after so many tokens."""
    return NotFiniteError(
        f"the model's logits are not finite after {tokens:,} tokens: its weights are damaged, or "
        "its values exceed the range of the dtype it is computed in; use another file"
    )
