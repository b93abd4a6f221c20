"""A language model, loaded: what `lbrx.load` returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from os import PathLike
from typing import Any, overload

import numpy as np

from lbrx.errors import LbrxError
from lbrx.models import chat, prompt_cache
from lbrx.models.chat import Message
from lbrx.models.config import ModelConfig
from lbrx.models.engine import Engine
from lbrx.models.generation import Finish, Options, Text, Timing, grow, no_numbers
from lbrx.models.memory_plan import MemoryPlan
from lbrx.models.sampling import Sampling, within
from lbrx.models.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[Message]
"""A text, its tokens, or a conversation."""
SCORED = 128  # tokens whose logits are in memory at once
TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|endoftext|>")
"""What models write when they have answered. Not every file says so."""


@dataclass(frozen=True)
class Completion:
    """A generated text, without its prompt."""

    text: str
    tokens: list[int]
    finish: Finish
    timing: Timing
    logprobs: list[float] | None = None
    """The natural logarithm of each token's probability, if asked for."""

    def __str__(self) -> str:
        return self.text


class Stream:
    """The parts of a text as they are generated. At the end, `completion` is all of it."""

    def __init__(self, model: LanguageModel, text: Text, options: Options) -> None:
        self.timing = Timing()
        self.completion: Completion | None = None
        self._parts = self._run(model, text, options)

    def __iter__(self) -> Iterator[str]:
        return self._parts

    def __next__(self) -> str:
        return next(self._parts)

    def _run(self, model: LanguageModel, text: Text, options: Options) -> Iterator[str]:
        shown = []
        for _, part in grow(model.engine, [text], options, model.end_tokens, self.timing):
            shown.append(part)
            yield part
        self.completion = _completion(text, "".join(shown), self.timing, options)


class LanguageModel:
    """Completes texts and answers messages.

    The options of `generate`, `stream` and `chat` are those of `Sampling` (temperature, top_k,
    top_p, min_p, repetition_penalty, seed) and max_tokens, stop, logprobs and ignore_end.
    """

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer, engine: Engine) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.engine = engine
        named = [tokenizer.settings.get("eos_token"), *TURN_ENDS]
        found = map(tokenizer.number, named)
        self.end_tokens = config.end_tokens | {token for token in found if token is not None}

    def __repr__(self) -> str:
        return f"<LanguageModel {self.config.model_type}, {self.memory}>"

    @property
    def memory(self) -> MemoryPlan:
        """What it uses at most, and of how much."""
        return self.engine.memory

    @overload
    def generate(self, prompt: Prompt, **options: Any) -> Completion: ...
    @overload
    def generate(self, prompt: list[str] | list[list[int]], **options: Any) -> list[Completion]: ...

    def generate(self, prompt: Any, **options: Any) -> Completion | list[Completion]:
        """Complete a text as it stands, or several at once."""
        wanted = read_options(options)
        several = isinstance(prompt, list | tuple)
        together = several and all(isinstance(one, str | list | tuple) for one in prompt)
        prompts = prompt if together else [prompt]
        if not prompts:
            return []
        # With a seed, each is as it would be alone; of equal prompts, each is another text.
        texts = [self._text(one, wanted, prompts[:i].count(one)) for i, one in enumerate(prompts)]
        timing, shown = Timing(), [""] * len(texts)
        with self.engine.lock:  # by turns with other threads, token by token, all is read again
            for number, part in grow(self.engine, texts, wanted, self.end_tokens, timing):
                shown[number] += part
        made = [
            _completion(text, said, timing, wanted) for text, said in zip(texts, shown, strict=True)
        ]
        return made if together else made[0]

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """Complete a text, or answer messages, part by part."""
        wanted = read_options(options)
        return Stream(self, self._text(prompt, wanted), wanted)

    def chat(self, messages: Sequence[Message], **options: Any) -> Completion:
        """Answer a conversation: messages such as {"role": "user", "content": "Hello"}."""
        chat.check(messages)
        return self.generate(messages, **options)

    def count(self, prompt: Prompt) -> int:
        """How many tokens of the context a prompt takes."""
        return len(self._tokens(prompt))

    def perplexity(self, text: str) -> float:
        """How surprised the model is by a text: exp of the mean negative log-probability."""
        return perplexity(self.log_probabilities(self._tokens(text)))

    def log_probabilities(self, tokens: Sequence[int]) -> list[float]:
        """Of each token but the first, given those before it. A text longer than the context is
        cut into pieces that do not see each other."""
        given, context = self._checked(tokens), self.engine.context
        with self.engine.lock:
            pieces = [self._scores(given[i : i + context]) for i in range(0, len(given), context)]
        return [score for piece in pieces for score in piece]

    def _scores(self, tokens: Sequence[int]) -> list[float]:
        """The log-probabilities of a text that fits the context."""
        self.engine.reserve(1, len(tokens))
        result: list[float] = []
        for first in range(0, len(tokens), SCORED):
            piece, following = (tokens[i : i + SCORED] for i in (first, first + 1))
            scores = self.engine.all_logits(piece, first).log_softmax().numpy()
            result += scores[np.arange(len(following)), following].tolist()
            if np.isnan(result).any():
                raise no_numbers(first + len(piece))
        return result

    def save_prompt(self, path: str | PathLike[str]) -> None:
        """Keep what was read and written last, so that another process need not read it again."""
        prompt_cache.write(self.engine, path)

    def restore_prompt(self, path: str | PathLike[str]) -> int:
        """Take what was saved; a prompt that begins like it is read from there on. Returns the
        number of tokens."""
        return prompt_cache.read(self.engine, path)

    def _text(self, prompt: Prompt, options: Options, number: int = 0) -> Text:
        """A text that begins with a prompt, which has to leave room in the context."""
        tokens, context = self._tokens(prompt), self.engine.context
        if not tokens:
            raise LbrxError("the prompt is empty: give at least one token of text")
        if len(tokens) >= context:
            larger = ", or load with a larger context" if context < self.config.context else ""
            raise LbrxError(
                f"the prompt has {len(tokens):,} tokens, and the context is {context:,}: "
                f"shorten it{larger}"
            )
        return Text(tokens, self.tokenizer, options, context, number)

    def _tokens(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return self._checked(self.tokenizer.encode(prompt))
        if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
            text = chat.render(self.tokenizer, prompt)
            return self._checked(self.tokenizer.encode(text, special=False))
        return self._checked(prompt)

    def _checked(self, tokens: Any) -> list[int]:
        """Tokens that are in the vocabulary."""
        if isinstance(tokens, str | bytes | Mapping) or not isinstance(tokens, Iterable):
            raise LbrxError(f"{tokens!r:.80} is no prompt: give a text, tokens or messages")
        size, result = self.config.vocabulary, []
        for token in tokens:
            number = int(token) if isinstance(token, Integral) else -1
            if not 0 <= number < size:
                raise LbrxError(f"{token!r:.80} is no token: the vocabulary has 0 to {size - 1}")
            result.append(number)
        return result


def perplexity(scores: Sequence[float]) -> float:
    """Of a text whose tokens have these log-probabilities."""
    if not scores:
        raise LbrxError("perplexity needs a text of at least two tokens: give a longer one")
    with np.errstate(over="ignore"):
        return float(np.exp(-np.mean(scores)))


def _completion(text: Text, shown: str, timing: Timing, options: Options) -> Completion:
    assert text.finish is not None
    logprobs = text.logprobs if options.logprobs else None
    return Completion(shown, text.tokens, text.finish, timing, logprobs)


def read_options(given: Mapping[str, Any]) -> Options:
    """Keyword arguments as options, checked."""
    names = {item.name for item in fields(Sampling)}
    sampling = Sampling(**{key: value for key, value in given.items() if key in names})
    rest = {key: value for key, value in given.items() if key not in names}
    known = {item.name for item in fields(Options)} - {"sampling"}
    if unknown := rest.keys() - known:
        every = ", ".join(sorted(known | names))
        raise LbrxError(f"{min(unknown)!r} is no option: there are {every}")
    stop = rest.pop("stop", ())
    stops = tuple(stop) if isinstance(stop, list | tuple) else (stop,)
    if not all(isinstance(one, str) and one for one in stops):
        raise LbrxError(f"stop={stop!r}: give strings that are not empty")
    within("max_tokens", rest.get("max_tokens", 1), 1, whole=True)
    return Options(sampling=sampling, stop=stops, **rest)
