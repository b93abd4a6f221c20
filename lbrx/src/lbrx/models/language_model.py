"""`LanguageModel`, which `lbrx.language_model` returns: completes texts and answers messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, Unpack, overload

import numpy as np

from lbrx.errors import LbrxError
from lbrx.models import chat, constraints, generation, prompt_cache
from lbrx.models.chat import Message
from lbrx.models.config import ModelConfig
from lbrx.models.constraints import RuledVocabulary
from lbrx.models.embeddings import Embedding, embedding_steps
from lbrx.models.engine import Engine
from lbrx.models.generation import (
    FinishReason,
    GenerationOptions,
    OptionKeywords,
    TextState,
    Timing,
    check_prompt,
)
from lbrx.models.memory_plan import MemoryPlan
from lbrx.models.sampling import Sampling, check_number
from lbrx.models.scoring import distributions
from lbrx.models.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[Message]
"""A text, its token ids, or the messages of a conversation."""
END_MARKERS = (
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>"),
    *("<end_of_turn>", "<|end|>", "<|endoftext|>"),
)
"""Tokens that end an answer. Not every model file lists them as end tokens."""


@dataclass(frozen=True)
class Completion:
    """A generated text, without its prompt. `str(completion)` is the text."""

    text: str
    tokens: list[int]
    """The generated token ids, without an end token."""
    finish_reason: FinishReason
    """"end", "stop" or "length"."""
    timing: Timing
    logprobs: list[float] | None = None
    """The natural logarithm of each token's probability, with the option `logprobs=True`."""
    top_logprobs: list[list[tuple[int, float]]] | None = None
    """The most likely tokens at each place with their log-probabilities, with `top_logprobs`."""

    def __str__(self) -> str:
        return self.text


class Stream:
    """An iterator over the parts of a text as they are generated.

        stream = llm.stream("Once upon a time")
        for part in stream:
            print(part, end="", flush=True)
        print(stream.completion.finish_reason)

    `completion` is None until the text has ended. A stream may be abandoned at any time.
    """

    def __init__(self, model: LanguageModel, text: TextState, options: GenerationOptions) -> None:
        self.timing = Timing()
        self.completion: Completion | None = None
        self._parts = self._run(model, text, options)

    def __iter__(self) -> Iterator[str]:
        return self._parts

    def __next__(self) -> str:
        return next(self._parts)

    def _run(
        self, model: LanguageModel, text: TextState, options: GenerationOptions
    ) -> Iterator[str]:
        shown = []
        for _, part in generation.generate(model.engine, [text], model.end_tokens, self.timing):
            shown.append(part)
            yield part
        self.completion = _completion(text, "".join(shown), self.timing, options)


class LanguageModel:
    """Completes texts and answers messages. Made by `lbrx.language_model`.

    A prompt is a text, a list of token ids, or a list of messages such as
    {"role": "user", "content": "Hello"}, which the model's chat template turns into text.

    Options of `generate`, `stream` and `chat`:

    - `max_tokens` (256): the maximum number of new tokens.
    - `temperature` (0): 0 always takes the most likely token; 1 draws from the model's
      distribution, and larger values make unlikely tokens more frequent.
    - `top_k` (0, off), `top_p` (1, off), `min_p` (0, off): draw only from the k most likely
      tokens, from the most likely ones whose probabilities add up to p, or from those at least
      p times as likely as the most likely one.
    - `repetition_penalty` (1, off): above 1, tokens that occur in the text become less likely.
    - `presence_penalty` and `frequency_penalty` (0, off): subtracted from the logits of tokens that
      were generated, once or for each time.
    - `logit_bias` (none): a mapping from token ids to what is added to their logits.
    - `seed` (random): the same seed draws the same tokens.
    - `stop` (none): a string or several; the text ends before the first of them.
    - `logprobs` (False): return the log-probability of each token.
    - `top_logprobs` (0): return so many of the most likely tokens at each place, too.
    - `ignore_end` (False): continue after the model's end token.
    - `show_special` (False): let special tokens be part of the text.
    - `schema`, `regex` or `grammar` (none): a JSON schema, a regular expression, or a grammar in
      the form of Lark or GBNF, which the text obeys unless `max_tokens` or `stop` cuts it. Needs
      the package `llguidance`.

    One model can be used from several threads: calls of `generate` run one after the other, and
    streams take turns token by token.
    """

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer, engine: Engine) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.engine = engine
        names = [tokenizer.settings.get("eos_token"), *END_MARKERS]
        found = map(tokenizer.token_id, names)
        self.end_tokens = config.end_tokens | {token for token in found if token is not None}
        self._ruled = RuledVocabulary(tokenizer, config.vocabulary, self.end_tokens)

    def __repr__(self) -> str:
        return f"<LanguageModel {self.config.model_type}, {self.memory}>"

    @property
    def memory(self) -> MemoryPlan:
        """The bytes that the model uses at most, and the limit they were checked against."""
        return self.engine.memory

    @overload
    def generate(self, prompt: Prompt, **options: Unpack[OptionKeywords]) -> Completion: ...
    @overload
    def generate(
        self, prompt: list[str] | list[list[int]], **options: Unpack[OptionKeywords]
    ) -> list[Completion]: ...

    def generate(
        self, prompt: Any, **options: Unpack[OptionKeywords]
    ) -> Completion | list[Completion]:
        """Complete a prompt, or a list of prompts in one batch.

            llm.generate("The capital of France is", max_tokens=16).text
            [c.text for c in llm.generate(["One, two,", "Red, green,"], temperature=0.8, seed=1)]

        A batch gives the texts that its prompts give alone, also with a seed; equal prompts of a
        batch draw different texts. Raises LbrxError for a bad prompt or option, or if the prompt
        leaves no room in the context.
        """
        wanted = read_options(options)
        several = isinstance(prompt, list | tuple)
        is_batch = several and all(isinstance(one, str | list | tuple) for one in prompt)
        prompts = prompt if is_batch else [prompt]
        if not prompts:
            return []
        texts = [self._text(one, wanted, prompts[:i].count(one)) for i, one in enumerate(prompts)]
        timing, shown = Timing(), [""] * len(texts)
        # Held throughout: threads that alternated would replace each other's cache every token.
        with self.engine.lock:
            for i, part in generation.generate(self.engine, texts, self.end_tokens, timing):
                shown[i] += part
        made = [
            _completion(text, said, timing, wanted) for text, said in zip(texts, shown, strict=True)
        ]
        return made if is_batch else made[0]

    def stream(self, prompt: Prompt, **options: Unpack[OptionKeywords]) -> Stream:
        """Complete a prompt part by part: returns an iterator of strings (see `Stream`).

        Bad prompts and options raise LbrxError here, before the first part.
        """
        wanted = read_options(options)
        return Stream(self, self._text(prompt, wanted), wanted)

    def chat(self, messages: Sequence[Message], **options: Unpack[OptionKeywords]) -> Completion:
        """Answer a conversation.

            llm.chat([{"role": "user", "content": "What is the capital of France?"}]).text

        Each message has a "role" ("system", "user" or "assistant") and a "content". Raises
        LbrxError for anything else, and FormatError if the model has no chat template.
        """
        chat.check(messages)
        return self.generate(messages, **options)

    def count_tokens(self, prompt: Prompt) -> int:
        """The number of tokens of a prompt, with the special tokens around it."""
        return len(self.prompt_tokens(prompt))

    def perplexity(self, text: str) -> float:
        """exp of the mean negative log-probability of a text's tokens; lower is better.

        Raises LbrxError for a text of fewer than two tokens.
        """
        if not isinstance(text, str):
            raise LbrxError(f"{text!r:.80} is not a text: give a string")
        return perplexity(self.log_probabilities(self.prompt_tokens(text)))

    def log_probabilities(self, tokens: Sequence[int]) -> list[float]:
        """The natural logarithm of the probability of each token but the first, given the tokens
        before it: one value less than tokens.

        A text longer than the context is cut into pieces of its length. A piece begins with the
        last token of the piece before it and sees no others of that."""
        given = self._checked(tokens)
        result: list[float] = []
        with self.engine.lock:
            for following, scores in distributions(self.engine, given, self.engine.context):
                result += scores[np.arange(len(following)), following].tolist()
        return result

    def embed(self, prompt: Prompt) -> Embedding:
        """The embedding of a text: the mean of its last hidden states, of length 1. Texts of like
        meaning have a larger product, the more so from a model that was trained for it."""
        tokens = self.prompt_tokens(prompt)
        check_prompt(len(tokens), self.engine.context, self.config.context)
        with self.engine.lock:
            steps = embedding_steps(self.engine, tokens)
            while True:
                try:
                    next(steps)
                except StopIteration as ended:
                    result: Embedding = ended.value
                    return result

    def save_prompt(self, path: str | PathLike[str]) -> None:
        """Save the cache of the last single text to a file, so that another process can continue
        with `restore_prompt`. Raises LbrxError if nothing was generated yet."""
        prompt_cache.write(self.engine, path)

    def restore_prompt(self, path: str | PathLike[str]) -> int:
        """Restore the cache that `save_prompt` wrote, and return its number of tokens. A prompt
        that begins with these tokens is then computed from there on only.

        Raises FormatError for a damaged file, or one of another model or cache type.
        """
        return prompt_cache.read(self.engine, path)

    def export(
        self,
        path: str | PathLike[str],
        *,
        context: int | None = None,
        chunk: int | None = None,
        quantize: str = "f16",
        cache: str = "masks",
        attention: str = "operation",
        greedy: bool = False,
        part_size: int | str | None = None,
    ) -> None:
        """Write the model as a Core ML program for the Neural Engine (docs/neural_engine.md).

            llm.export("model.mlpackage", context=1024, chunk=128, quantize="lut6")

        `context` is the maximum number of tokens of a text, `chunk` the number that is read at a
        time, and `quantize` how weights are stored: f16, int8, int4, lut8, lut6, lut4 or stored.
        `cache` is `masks`, which rewrite the whole cache for a token, or `slices`, which update its
        row; `attention` is Core ML's `operation`, or `products` around a softmax. With `greedy`,
        `decode` gives the most likely token and no logits. With `part_size`, such as "1GB", `path`
        is a folder of packages that have at most so many bytes of weights each.
        Raises LbrxError for a bad value, or with every part of the model that cannot be exported.
        """
        from lbrx.models.export import exporter
        from lbrx.models.export.network_program import ProgramStyle

        style = ProgramStyle(cache, attention, greedy)
        settings = exporter.settings_of(self.config, context, chunk, quantize, style, part_size)
        exporter.export_network(self.engine.network, Path(path), settings)

    def _text(self, prompt: Prompt, options: GenerationOptions, repeat: int = 0) -> TextState:
        """The state of a new text. The prompt has to leave room in the context."""
        tokens, context = self.prompt_tokens(prompt), self.engine.context
        check_prompt(len(tokens), context, self.config.context)
        return self.new_text(tokens, options, context, repeat)

    def check_rules(self, **rules: Any) -> None:
        """Raise LbrxError unless a text can obey a `schema`, `regex` or `grammar`."""
        wanted = read_options(rules).rules
        if wanted is not None:
            self._ruled.constraint(wanted)

    def new_text(
        self, tokens: Sequence[int], options: GenerationOptions, context: int, repeat: int = 0
    ) -> TextState:
        """The state of a text that begins with these tokens. Raises LbrxError for rules of the
        options that cannot be followed."""
        constraint = None if options.rules is None else self._ruled.constraint(options.rules)
        return TextState(tokens, self.tokenizer, options, context, repeat, constraint)

    def prompt_tokens(self, prompt: Any) -> list[int]:
        """The token ids of a prompt, with the special tokens around it."""
        if isinstance(prompt, str):
            return self._checked(self.tokenizer.encode(prompt))
        if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
            text = chat.render(self.tokenizer, prompt)
            return self._checked(self.tokenizer.encode(text, special=False))
        return self._checked(prompt)

    def _checked(self, tokens: Any) -> list[int]:
        """Token ids as integers that are in the vocabulary."""
        is_other = isinstance(tokens, str | bytes | Mapping | Set)
        if is_other or not isinstance(tokens, Iterable):
            raise LbrxError(f"{tokens!r:.80} is not a prompt: give a text, token ids or messages")
        size, result = self.config.vocabulary, []
        for token in tokens:
            number = int(token) if isinstance(token, Integral) else -1
            if not 0 <= number < size:
                raise LbrxError(
                    f"{token!r:.80} is not a token id: give integers from 0 to {size - 1}"
                )
            result.append(number)
        return result


def perplexity(scores: Sequence[float]) -> float:
    """The perplexity of a text whose tokens have these log-probabilities."""
    if not scores:
        raise LbrxError("perplexity needs a text of at least two tokens: give a longer one")
    with np.errstate(over="ignore"):
        return float(np.exp(-np.mean(scores)))


def _completion(
    text: TextState, shown: str, timing: Timing, options: GenerationOptions
) -> Completion:
    assert text.finish_reason is not None
    logprobs = text.logprobs if options.logprobs else None
    likely = text.top_logprobs if options.top_logprobs else None
    return Completion(shown, text.tokens, text.finish_reason, timing, logprobs, likely)


def read_options(given: Mapping[str, Any]) -> GenerationOptions:
    """Keyword arguments as options. Raises LbrxError for an unknown name or a bad value."""
    names = {item.name for item in fields(Sampling)}
    sampling = Sampling(**{key: value for key, value in given.items() if key in names})
    rest = {key: value for key, value in given.items() if key not in names}
    ruled = [name for name in constraints.NAMES if rest.get(name) is not None]
    known = {item.name for item in fields(GenerationOptions)} - {"sampling", "rules"}
    known |= set(constraints.NAMES)
    if unknown := rest.keys() - known:
        every = ", ".join(sorted(known | names))
        raise LbrxError(f"{min(unknown)!r} is not an option: give some of {every}")
    stop = rest.pop("stop", ())
    stops = tuple(stop) if isinstance(stop, list | tuple) else (stop,)
    if not all(isinstance(one, str) and one for one in stops):
        raise LbrxError(f"stop={stop!r}: give strings that are not empty")
    check_number("max_tokens", rest.get("max_tokens", 1), 1, integer=True)
    check_number("top_logprobs", rest.get("top_logprobs", 0), 0, 100, integer=True)
    for name in ("logprobs", "ignore_end", "show_special"):
        if not isinstance(rest.get(name, False), bool | np.bool_):
            raise LbrxError(f"{name}={rest[name]!r:.80}: give True or False")
    if len(ruled) > 1:
        raise LbrxError(f"{' and '.join(ruled)}: give only one of them")
    followed = constraints.rules(ruled[0], rest[ruled[0]]) if ruled else None
    plain = {key: value for key, value in rest.items() if key not in constraints.NAMES}
    return GenerationOptions(sampling=sampling, stop=stops, rules=followed, **plain)
