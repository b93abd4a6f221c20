"""Text to token ids and back, with the `tokenizers` library."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from lbrx.errors import FormatError, LbrxError
from lbrx.extras import install
from lbrx.files.formats.checks import bad, read_json, shown
from lbrx.files.formats.tokenizers import sentencepiece
from lbrx.files.formats.tokenizers.tokenizer_files import tokenizer_parts
from lbrx.files.stored.stored_model import StoredModel

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')


class Tokenizer:
    """A model's tokenizer, from tokenizer.json, tokenizer.model or a GGUF's metadata."""

    def __init__(self, source: Path | Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """`source` is the path of a tokenizer.json, or the contents of one; `settings` are those
        of tokenizer_config.json. Raises FormatError if the library refuses them."""
        library = _library()
        if isinstance(source, Path):
            _check_prefix(source)
        with _library_errors():
            if isinstance(source, Path):
                self._inner = library.Tokenizer.from_file(str(source))
            else:
                self._inner = _assembled(library, source)
            # Some files have these settings from training. They would cut or fill up prompts.
            self._inner.no_truncation()
            self._inner.no_padding()
        self.settings = settings

    @property
    def size(self) -> int:
        """The number of tokens in the vocabulary."""
        with _library_errors():
            return int(self._inner.get_vocab_size())

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The token ids of a text; with `special`, those the model expects around it, too."""
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            raise LbrxError(
                f"the text is not valid UTF-8 at character {problem.start}: decode it first"
            ) from None
        with _library_errors():
            ids: list[int] = self._inner.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of token ids; with `special`, special tokens are shown."""
        with _library_errors():
            text: str = self._inner.decode(list(tokens), skip_special_tokens=not special)
        return text

    def json(self) -> str:
        """The contents of a tokenizer.json."""
        with _library_errors():
            text: str = self._inner.to_str()
        return text

    def token_id(self, token: object) -> int | None:
        """The id of a token, given as text or as a tokenizer_config.json writes it; or None."""
        text = token.get("content") if isinstance(token, Mapping) else token
        with _library_errors():
            found: int | None = self._inner.token_to_id(text) if isinstance(text, str) else None
        return found

    def added_token_id(self, text: str) -> int | None:
        """The id of a token beside the vocabulary, which no text is cut into otherwise; or None."""
        token = self.token_id(text)
        return token if token in self._added else None

    @cached_property
    def _added(self) -> frozenset[int]:
        with _library_errors():
            return frozenset(self._inner.get_added_tokens_decoder())

    def special_token(self, name: str) -> str:
        """The text of a special token such as "bos_token"; empty if the model has none."""
        value = self.settings.get(name)
        inner = value.get("content") if isinstance(value, Mapping) else value
        return inner if isinstance(inner, str) else ""


def read_tokenizer(model: StoredModel) -> Tokenizer:
    """The tokenizer of a stored model. Raises FormatError if it has none."""
    source = model.tokenizer
    if source is None:
        raise FormatError(f"{model.path} has no tokenizer: put its tokenizer.json beside it")
    if isinstance(source, Mapping):
        with _gc_disabled():
            return Tokenizer(*_of_metadata(model.path, source))
    beside = source.parent / "tokenizer_config.json"
    settings = read_json(beside) if beside.is_file() else {}
    template = source.parent / "chat_template.jinja"
    if template.is_file():
        settings = {**settings, "chat_template": template.read_text("utf-8", "replace")}
    if source.suffix == ".model":
        with _gc_disabled():
            return Tokenizer(_of_metadata(source, _sentencepiece(source, settings))[0], settings)
    return Tokenizer(source, settings)


def _check_prefix(path: Path) -> None:
    """Refuse merges without the prefix of word continuations: the library removes it unchecked,
    perhaps within a character, and then aborts the process."""
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
def _library_errors() -> Iterator[None]:
    """Turn what the library raises into FormatError: bare Exceptions, and Rust panics, which are
    BaseExceptions of a class that cannot be imported."""
    try:
        yield
    except BaseException as problem:
        if not isinstance(problem, Exception) and type(problem).__module__ != "pyo3_runtime":
            raise
        raise FormatError(f"the tokenizer cannot be used: {problem!s:.500}") from None


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Without garbage collection, which would search hundreds of thousands of new strings and
    pairs several times for cycles that they cannot have."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _assembled(library: Any, whole: Mapping[str, Any]) -> Any:
    """A tokenizer built from its parts. The vocabulary is passed as Python objects: JSON text and
    its parsed tree would take five times the memory."""
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
        raise FormatError(f"{path} has no vocabulary: put the model's tokenizer.json beside it")
    return parts


def _sentencepiece(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A tokenizer.model and its tokenizer_config.json as GGUF metadata."""
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
    """The package tokenizers, which `import lbrx` does not need."""
    try:
        import tokenizers
    except ImportError:
        raise LbrxError(
            f"running language models needs the package tokenizers: {install('models')}"
        ) from None
    return tokenizers


class TextStream:
    """Decodes tokens one by one into text that never ends within a character.

    A token may be part of a character, and its spaces may depend on the token before it: so the
    last few tokens are decoded again with each new one.
    """

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        """With `special`, special tokens are part of the text."""
        self._tokenizer = tokenizer
        self._special = special
        self._tokens: list[int] = []
        self._shown = 0  # number of tokens whose text was returned
        self._from = 0  # the first token that is decoded again

    def add(self, token: int) -> str:
        """The new text that later tokens cannot change."""
        self._tokens.append(token)
        return self._new(final=False)

    def end(self) -> str:
        """The remaining text; an incomplete character becomes U+FFFD."""
        return self._new(final=True)

    def _new(self, final: bool) -> str:
        decode = partial(self._tokenizer.decode, special=self._special)
        before = decode(self._tokens[self._from : self._shown])
        text = decode(self._tokens[self._from :])
        if len(text) <= len(before) or (text.endswith(_BROKEN) and not final):
            return ""
        self._from, self._shown = self._shown, len(self._tokens)
        return text[len(before) :]
