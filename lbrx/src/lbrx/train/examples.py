"""Training examples: the three kinds of JSONL that `mlx_lm.lora` takes, and preferences, as
tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.data.sources import JsonLines
from lbrx.data.stream import Stream
from lbrx.data.stream import examples as stream_of
from lbrx.errors import FormatError, LbrxError
from lbrx.models import chat
from lbrx.models.tokenizer import Tokenizer

PREFERENCE = ("chosen", "rejected")
MULTIPLE = 32
"""Lengths of batches are multiples of it, so that few of them have to be traced."""


@dataclass(frozen=True)
class Example:
    """The tokens of an example, of which the first `prompt` ones are not to be learned."""

    tokens: tuple[int, ...]
    prompt: int = 0


@dataclass(frozen=True)
class Pair:
    """A chosen and a rejected answer to the same prompt."""

    chosen: Example
    rejected: Example
    before: tuple[float, float] = (0.0, 0.0)
    """The logarithms of their probabilities before training."""


AnyExample = Example | Pair


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, each with one more than it has targets, and the weight of each target. Of
    pairs the first half of the rows are the chosen answers, and the second half the others."""

    tokens: NDArray[np.int32]
    weights: NDArray[np.float32]
    before: NDArray[np.float32] | None = None
    """Of pairs: the logarithms of the rows' probabilities before training."""

    @property
    def targets(self) -> float:
        """The number of targets."""
        return float(self.weights.sum())

    @property
    def count(self) -> float:
        """What a mean loss is divided by: the number of targets, or of pairs."""
        return self.targets if self.before is None else len(self.before) / 2


class Reader:
    """Turns the objects of JSONL files into examples of a model's tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        end: int | None,
        length: int,
        mask: bool,
        pairs: bool = False,
    ) -> None:
        """With `pairs` the examples are preferences, whose prompts are never learned."""
        self._tokenizer = tokenizer
        self._end = end
        self._length = length
        self._mask = mask or pairs
        self._read: Callable[[dict[str, Any]], AnyExample] = self.pair if pairs else self.example

    def file(self, path: Path) -> list[AnyExample]:
        """The examples of a file. A damaged one raises FormatError with its line."""
        source = JsonLines(path)
        found: list[AnyExample] = []
        for i in range(len(source)):
            try:
                example = self._read(source[i])
            except FormatError as problem:
                if str(path) in str(problem):
                    raise
                raise FormatError(f"{source.where(i)}: {problem}") from None
            except LbrxError as problem:
                raise FormatError(f"{source.where(i)}: {problem}") from None
            if all(len(x.tokens) > max(x.prompt, 1) for x in rows_of([example])):  # to learn
                found.append(example)
        if not found:
            raise FormatError(f"{path} has no examples: give at least one, of two tokens or more")
        return found

    def example(self, given: dict[str, Any]) -> Example:
        """The tokens of {"text"}, {"prompt", "completion"} or {"messages"[, "tools"]}."""
        if "messages" in given:
            return self._messages(given["messages"], given.get("tools"))
        if "prompt" in given or "completion" in given:
            return self._answer(_text(given, "prompt"), _text(given, "completion"))
        if "text" in given:
            return self._cut(self._tokenizer.encode(_text(given, "text")), 0, ends=True)
        found = ", ".join(map(repr, list(given)[:5])) or "no keys"
        raise FormatError(
            f'{found}: give "text", or "prompt" and "completion", or "messages" with roles'
        )

    def pair(self, given: dict[str, Any]) -> Pair:
        """The tokens of {"prompt", "chosen", "rejected"}."""
        prompt = _text(given, "prompt")
        chosen, rejected = (self._answer(prompt, _text(given, key)) for key in PREFERENCE)
        return Pair(chosen, rejected)

    def _answer(self, prompt: str, completion: str) -> Example:
        if chat.has_template(self._tokenizer):
            roles = (("user", prompt), ("assistant", completion))
            return self._messages([{"role": r, "content": text} for r, text in roles], None)
        before = self._tokenizer.encode(prompt)
        after = self._tokenizer.encode(completion, special=False)
        return self._cut([*before, *after], len(before), ends=True)

    def _messages(self, messages: Any, tools: Any) -> Example:
        whole = self._rendered(messages, tools, answer=False)
        if not self._mask:
            return self._cut(whole, 0)
        *before, last = messages
        if not before or last.get("role") != "assistant":
            raise FormatError("the last message is not the assistant's: there is nothing to learn")
        prompt = self._rendered(before, tools, answer=True)
        return self._cut(whole, len(prompt))

    def _rendered(self, messages: Any, tools: Any, *, answer: bool) -> list[int]:
        text = chat.render(self._tokenizer, messages, answer=answer, tools=tools)
        return self._tokenizer.encode(text, special=False)

    def _cut(self, tokens: Sequence[int], prompt: int, *, ends: bool = False) -> Example:
        if ends and self._end is not None and tokens[-1:] != [self._end]:
            tokens = [*tokens, self._end]
        return Example(tuple(tokens[: self._length + 1]), prompt if self._mask else 0)


def _text(given: dict[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str):
        kind = "missing" if key not in given else f"{type(value).__name__}, not a text"
        raise FormatError(f'"{key}" is {kind}')
    return value


def files_of(data: Path) -> tuple[Path, Path | None]:
    """The files of training and validation: of a folder, or one file alone."""
    if data.is_file():
        return data, None
    train, valid = data / "train.jsonl", data / "valid.jsonl"
    if not train.is_file():
        raise LbrxError(f"{data} has no train.jsonl: give a folder with one, or a .jsonl file")
    return train, valid if valid.is_file() else None


def rows_of(examples: Sequence[AnyExample]) -> list[Example]:
    """The rows of a batch: the examples, or the chosen answers of pairs and then the others."""
    pairs = [each for each in examples if isinstance(each, Pair)]
    if not pairs:
        return [each for each in examples if isinstance(each, Example)]
    return [*(each.chosen for each in pairs), *(each.rejected for each in pairs)]


def batches_of(examples: Sequence[AnyExample], size: int, seed: int | None) -> Stream:
    """A stream of batches of examples of similar lengths, in an order that the seed decides."""
    stream = stream_of(examples)
    shuffled = stream if seed is None else stream.shuffle(seed)
    return shuffled.bucket(min(size, len(examples)), _length, collate=batch_of)


def _length(example: AnyExample) -> int:
    return max(len(row.tokens) for row in rows_of([example]))


def batch_of(examples: Sequence[AnyExample]) -> Batch:
    """Examples filled up to one length, with weights of 0 for what is filled up and for prompts."""
    rows = rows_of(examples)
    longest = max(map(_length, examples)) - 1
    width = -(-longest // MULTIPLE) * MULTIPLE
    tokens = np.zeros((len(rows), width + 1), np.int32)
    weights = np.zeros((len(rows), width), np.float32)
    for i, example in enumerate(rows):
        count = len(example.tokens)
        tokens[i, :count] = example.tokens
        weights[i, max(example.prompt - 1, 0) : count - 1] = 1
    pairs = [each for each in examples if isinstance(each, Pair)]
    before = np.array([each.before for each in pairs], np.float32).T.reshape(-1)
    return Batch(tokens, weights, before if pairs else None)
