"""A language model, loaded: what `lbrx.load` returns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, overload

from lbrx.errors import LbrxError
from lbrx.models import chat, prompt_cache
from lbrx.models.chat import Message
from lbrx.models.config import ModelConfig
from lbrx.models.engine import Engine
from lbrx.models.generation import Finish, Options, Text, Timing, grow
from lbrx.models.plan import MemoryPlan
from lbrx.models.sampling import Sampling
from lbrx.models.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[Message]
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

    def __init__(
        self, config: ModelConfig, tokenizer: Tokenizer, engine: Engine, memory: MemoryPlan
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.engine = engine
        self.memory = memory
        named = [tokenizer.settings.get("eos_token"), *TURN_ENDS]
        found = map(tokenizer.number, named)
        self.end_tokens = config.end_tokens | {token for token in found if token is not None}

    def __repr__(self) -> str:
        return f"<LanguageModel {self.config.model_type}, {self.memory}>"

    @overload
    def generate(self, prompt: str, **options: Any) -> Completion: ...
    @overload
    def generate(self, prompt: list[str], **options: Any) -> list[Completion]: ...

    def generate(self, prompt: str | list[str], **options: Any) -> Completion | list[Completion]:
        """Complete a text as it stands, or several at once."""
        wanted = read_options(options)
        prompts = [prompt] if isinstance(prompt, str) else prompt
        if not prompts:
            return []
        texts = [
            Text(self._tokens(one), self.tokenizer, wanted, number)
            for number, one in enumerate(prompts)
        ]
        timing, shown = Timing(), [""] * len(texts)
        for number, part in grow(self.engine, texts, wanted, self.end_tokens, timing):
            shown[number] += part
        made = [
            _completion(text, said, timing, wanted) for text, said in zip(texts, shown, strict=True)
        ]
        return made[0] if isinstance(prompt, str) else made

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """Complete a text, or answer messages, part by part."""
        wanted = read_options(options)
        return Stream(self, Text(self._tokens(prompt), self.tokenizer, wanted, 0), wanted)

    def chat(self, messages: Sequence[Message], **options: Any) -> Completion:
        """Answer a conversation: messages such as {"role": "user", "content": "Hello"}."""
        stream = self.stream(messages, **options)
        for _ in stream:
            pass
        assert stream.completion is not None
        return stream.completion

    def perplexity(self, text: str) -> float:
        """How surprised the model is by a text: exp of the mean negative log-probability."""
        tokens = self._tokens(text)
        if len(tokens) < 2:
            raise LbrxError("perplexity needs a text of at least two tokens")
        scores = self.log_probabilities(tokens)
        return math.exp(-sum(scores) / len(scores))

    def log_probabilities(self, tokens: Sequence[int]) -> list[float]:
        """Of each token but the first, given those before it. A text longer than the context is
        cut into pieces that do not see each other."""
        result: list[float] = []
        for begin in range(0, len(tokens), self.engine.context):
            piece = tokens[begin : begin + self.engine.context]
            for first in range(0, len(piece), SCORED):
                chunk = piece[first : first + SCORED]
                following = piece[first + 1 : first + 1 + len(chunk)]
                logits = self.engine.all_logits(chunk, first)
                scores = logits.log_softmax()[: len(following)]
                chosen = scores.gather([[token] for token in following]) if following else scores
                result += chosen.numpy().reshape(-1).tolist()[: len(following)]
        return result

    def save_prompt(self, path: str | PathLike[str]) -> None:
        """Keep what was read and written last, so that another process need not read it again."""
        prompt_cache.write(self.engine, path)

    def restore_prompt(self, path: str | PathLike[str]) -> int:
        """Take what was saved; a prompt that begins like it is read from there on. Returns the
        number of tokens."""
        return prompt_cache.read(self.engine, path)

    def _tokens(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt, checked against the context."""
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt)
        elif prompt and isinstance(prompt[0], Mapping):
            text = chat.render(self.tokenizer, [m for m in prompt if isinstance(m, Mapping)])
            tokens = self.tokenizer.encode(text, special=False)
        else:
            tokens = [t for t in prompt if isinstance(t, int)]
        if not tokens:
            raise LbrxError("the prompt is empty: give at least one token of text")
        if wrong := [t for t in tokens if not 0 <= t < self.config.vocabulary]:
            raise LbrxError(f"token {wrong[0]} is beyond a vocabulary of {self.config.vocabulary}")
        if len(tokens) >= self.engine.context:
            raise LbrxError(
                f"the prompt has {len(tokens):,} tokens, and the context is "
                f"{self.engine.context:,}: shorten it, or load with a larger context"
            )
        return tokens


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
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(one, str) and one for one in stops):
        raise LbrxError(f"stop={stop!r}: give strings that are not empty")
    tokens = rest.get("max_tokens", 1)
    if not isinstance(tokens, int) or tokens < 1:
        raise LbrxError(f"max_tokens={tokens!r}: give a number of 1 or more")
    return Options(sampling=sampling, stop=stops, **rest)
