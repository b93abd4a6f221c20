"""Completes the prompts of a file, many at once, and goes on where an earlier run ended."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from io import BufferedWriter
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError, LbrxError
from lbrx.models.batch_engine import BatchEngine, Job, Piece
from lbrx.models.language_model import LanguageModel, read_options

AHEAD = 4  # lines that are submitted for each slot, so that slots never wait for the file
Report = Callable[[int, int], None]
"""Called with how many lines are done, and of how many."""


@dataclass
class Counts:
    """What a run has done."""

    kept: int = 0
    """Lines that an earlier run had written."""
    written: int = 0
    failed: int = 0
    tokens: int = 0


@dataclass
class _Line:
    """A line of the file while its text is generated."""

    key: str
    name: Any
    shown: str = ""
    error: str | None = None
    job: Job | None = None
    done: bool = field(default=False)

    def listen(self, piece: Piece) -> None:
        self.shown += piece.shown
        if piece.error is not None:
            self.error = str(piece.error)
        self.done = piece.finish_reason is not None or piece.error is not None

    def result(self) -> dict[str, Any]:
        """The line of the output."""
        head = {"id": self.name, "key": self.key}
        if self.error is not None or self.job is None:
            return {**head, "error": self.error}
        text = self.job.text
        made = {"text": self.shown, "finish_reason": text.finish_reason, "tokens": len(text.tokens)}
        scores = {"logprobs": text.logprobs} if text.logprobs else {}
        return {**head, **made, "prompt_tokens": len(text.prompt), **scores}


def complete_file(
    model: LanguageModel,
    engine: BatchEngine,
    prompts: Path,
    out: Path,
    options: Mapping[str, Any],
    report: Report | None = None,
) -> Counts:
    """Write a line to `out` for each line of `prompts`, in their order. A line of prompts is an
    object with a "prompt" or "messages", perhaps an "id" and options of `LanguageModel.generate`;
    `options` are those of all lines. A line that cannot be completed gets an "error".

    Raises FormatError if `out` has lines of other prompts, or `prompts` is not lines of JSON.
    """
    total = sum(1 for _ in _lines(prompts))
    counts = Counts(kept=_check_kept(prompts, out, options))
    lines = _lines(prompts)
    for _ in range(counts.kept):
        next(lines)
    waiting: deque[_Line] = deque()
    with out.open("ab") as file:
        while True:
            for number, text in lines:
                waiting.append(_submitted(model, engine, number, text, options))
                if len(waiting) >= AHEAD * engine.slots.count:
                    break
            if not waiting:
                return counts
            engine.step()
            while waiting and waiting[0].done:
                _write(file, waiting.popleft(), counts)
                if report is not None:
                    report(counts.kept + counts.written, total)


def _write(file: BufferedWriter, line: _Line, counts: Counts) -> None:
    file.write(json.dumps(line.result(), ensure_ascii=False).encode() + b"\n")
    file.flush()
    counts.written += 1
    counts.failed += line.error is not None
    counts.tokens += len(line.job.text.tokens) if line.job is not None else 0


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not empty, with their numbers."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def _key(line: bytes, options: Mapping[str, Any]) -> str:
    """What a line of the output has to know of its prompt, to be kept by a later run."""
    whole = line.strip() + json.dumps(dict(options), sort_keys=True).encode()
    return blake2b(whole, digest_size=8).hexdigest()


def _check_kept(prompts: Path, out: Path, options: Mapping[str, Any]) -> int:
    """How many lines of the output are complete. A line that was cut is removed."""
    if not out.exists():
        return 0
    data = out.read_bytes()
    whole = data.rfind(b"\n") + 1
    kept = data[:whole].splitlines()
    expected = _lines(prompts)
    for number, line in enumerate(kept, 1):
        if _key_of(line) != _key((next(expected, (0, b"")))[1], options):
            raise FormatError(
                f"{out}: line {number} is not of line {number} of {prompts} with these options: "
                "give another file for the output"
            )
    if whole < len(data):
        os.truncate(out, whole)
    return len(kept)


def _key_of(line: bytes) -> str | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value.get("key") if isinstance(value, dict) else None


def _submitted(
    model: LanguageModel,
    engine: BatchEngine,
    number: int,
    text: bytes,
    options: Mapping[str, Any],
) -> _Line:
    """Let a line's text be generated; a line with a mistake is done at once."""
    line = _Line(_key(text, options), number)
    try:
        prompt, wanted = _parsed(text, line)
        checked = read_options({**options, **wanted})
        tokens = model.prompt_tokens(prompt)
        state = model.new_text(tokens, checked, engine.slots.context)
        line.job = Job(state, model.end_tokens, line.listen)
        engine.submit(line.job)
    except LbrxError as problem:
        line.error, line.job, line.done = str(problem), None, True
    return line


def _parsed(text: bytes, line: _Line) -> tuple[Any, dict[str, Any]]:
    """The prompt of a line, and its options."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise LbrxError("the line is not JSON") from None
    if not isinstance(value, dict):
        raise LbrxError('the line is not an object: give {"prompt": "..."}')
    line.name = value.pop("id", line.name)
    given = [value.pop(name) for name in ("prompt", "messages") if name in value]
    if len(given) != 1:
        raise LbrxError('the line needs a "prompt" or "messages"')
    return given[0], value
