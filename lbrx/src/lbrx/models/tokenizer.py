"""Text to tokens and back, by the `tokenizers` library."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError, LbrxError
from lbrx.formats.checks import bad, read_json, shown
from lbrx.formats.tokenizers import sentencepiece
from lbrx.formats.tokenizers.tokenizer_files import tokenizer_parts
from lbrx.tensor.stored_model import StoredModel

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')


class Tokenizer:
    """A model's vocabulary, from its tokenizer.json or made of a GGUF's metadata."""

    def __init__(self, source: Path | Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Of a tokenizer.json, or of what would be in one."""
        library = _library()
        if isinstance(source, Path):
            _check_prefix(source)
        try:
            if isinstance(source, Path):
                self._inner = library.Tokenizer.from_file(str(source))
            else:
                self._inner = _assembled(library, source)
        except Exception as problem:
            # The library raises bare Exceptions.
            raise FormatError(f"the tokenizer cannot be used: {problem}") from None
        self.settings = settings

    @property
    def size(self) -> int:
        return int(self._inner.get_vocab_size())

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text; `special` puts those around it that the model wants."""
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            raise LbrxError(
                f"the text is not valid UTF-8 at character {problem.start}: decode it first"
            ) from None
        ids: list[int] = self._inner.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; `special` shows those that are no text."""
        text: str = self._inner.decode(list(tokens), skip_special_tokens=not special)
        return text

    def number(self, token: object) -> int | None:
        """Which token this is."""
        text = token.get("content") if isinstance(token, Mapping) else token
        found: int | None = self._inner.token_to_id(text) if isinstance(text, str) else None
        return found

    def text(self, name: str) -> str:
        """A special token as the settings name it: `bos_token`; empty where there is none."""
        value = self.settings.get(name)
        inner = value.get("content") if isinstance(value, Mapping) else value
        return inner if isinstance(inner, str) else ""


def read_tokenizer(model: StoredModel) -> Tokenizer:
    """The tokenizer that is with a model."""
    source = model.tokenizer
    if source is None:
        raise FormatError(f"{model.path} has no tokenizer: put its tokenizer.json beside it")
    if isinstance(source, Mapping):
        with _uncollected():
            return Tokenizer(*_of_metadata(model.path, source))
    beside = source.parent / "tokenizer_config.json"
    settings = read_json(beside) if beside.is_file() else {}
    template = source.parent / "chat_template.jinja"
    if template.is_file():
        settings = {**settings, "chat_template": template.read_text("utf-8", "replace")}
    if source.suffix == ".model":
        with _uncollected():
            return Tokenizer(_of_metadata(source, _sentencepiece(source, settings))[0], settings)
    return Tokenizer(source, settings)


def _check_prefix(path: Path) -> None:
    """Refuse merges without the prefix that later parts of a word have: the library cuts it off
    unseen, perhaps within a character, and then ends the process."""
    if _PREFIX.search(path.read_bytes()) is None:
        return
    match read_json(path).get("model"):
        case {"continuing_subword_prefix": str() as prefix, "merges": list() as merges}:
            if not all(_second(merge).startswith(prefix) for merge in merges):
                raise bad(path, f"a second part lacks the prefix {shown(prefix)}", field="merges")


def _second(merge: object) -> str:
    pair = merge.split(" ") if isinstance(merge, str) else merge
    return pair[-1] if isinstance(pair, list) and pair and isinstance(pair[-1], str) else ""


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector, which looks through hundreds of thousands of new strings and pairs
    again and again, and none of them is in a cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _assembled(library: Any, whole: Mapping[str, Any]) -> Any:
    """A tokenizer of parts. The vocabulary is handed over as it is: as JSON it would be a text,
    and then a tree, of five times the size."""
    given = whole["model"].items()
    model = {key: value for key, value in given if key != "type" and value is not None}
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    made = library.Tokenizer.from_str(json.dumps({**whole, "added_tokens": [], "model": empty}))
    made.model = library.models.BPE(**model)
    tokens = [{k: v for k, v in token.items() if k != "id"} for token in whole["added_tokens"]]
    made.add_tokens([library.AddedToken(**token) for token in tokens])
    return made


def _of_metadata(
    path: Path, metadata: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    parts = tokenizer_parts(metadata)
    if parts is None:
        raise FormatError(f"{path} has no vocabulary")
    return parts


def _sentencepiece(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF's metadata of a tokenizer.model, with what tokenizer_config.json says beside it."""
    pieces, rules = sentencepiece.read(path), sentencepiece.read_rules(path)
    key = "tokenizer.ggml."
    return {
        key + "model": "llama",
        key + "tokens": [piece.text for piece in pieces],
        key + "scores": [piece.score for piece in pieces],
        key + "token_type": [piece.kind for piece in pieces],
        key + "unknown_token_id": rules.unknown,
        key + "bos_token_id": rules.first,
        key + "eos_token_id": rules.last,
        key + "add_bos_token": bool(settings.get("add_bos_token", rules.first >= 0)),
        key + "add_eos_token": bool(settings.get("add_eos_token", False)),
        key + "add_space_prefix": rules.adds_space,
    }


def _library() -> Any:
    try:
        return import_module("tokenizers")
    except ImportError:
        raise LbrxError(
            "running language models needs the package tokenizers: pip install 'lbrx[models]'"
        ) from None


class TextStream:
    """Tokens that come one by one, as text that never ends within a character.

    A token may hold a part of a character, and its spaces may depend on the token before it: so
    a few tokens are decoded again with each new one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._shown = 0  # tokens whose text has been given
        self._from = 0  # the first that is decoded again

    def add(self, token: int) -> str:
        """The text that is certain now."""
        self._tokens.append(token)
        return self._new(final=False)

    def end(self) -> str:
        """What is left; half a character shows as a replacement."""
        return self._new(final=True)

    def _new(self, final: bool) -> str:
        decode = self._tokenizer.decode
        before = decode(self._tokens[self._from : self._shown])
        text = decode(self._tokens[self._from :])
        if len(text) <= len(before) or (text.endswith(_BROKEN) and not final):
            return ""
        self._from, self._shown = self._shown, len(self._tokens)
        return text[len(before) :]
