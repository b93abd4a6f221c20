"""tokenizer.json and tokenizer_config.json to GGUF's metadata and back.

Two kinds of tokenizers: byte-level BPE, "gpt2" in GGUF, and SentencePiece's BPE, "llama" there,
which has a score for each token where tokenizer.json has a list of merges.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from lbrx.files.formats.checks import bad, brief, read_json
from lbrx.files.formats.tokenizers import pretokenizers, sentencepiece

_KEY = "tokenizer.ggml."
_MAX_TOKENS = 1 << 20
_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# The score of tokens that no merge makes.
_ADDED_SCORE = -1000.0


class TokenType(IntEnum):
    """The types of tokens, with GGUF's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def to_gguf(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF's metadata for a folder's tokenizer files."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise bad(folder, "has no tokenizer.json, from which GGUF's vocabulary is made")
    whole = read_json(path)
    model = whole.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        raise bad(path, "is not a model with a vocabulary", field="model")
    settings = _settings(folder)
    size = config.get("vocab_size")
    tokens, types = _tokens(path, whole, size if isinstance(size, int) else 0)
    result: dict[str, Any]
    if _has_type(whole, "ByteLevel"):
        result = _byte_level(path, whole, model)
    elif model.get("byte_fallback") and model.get("type") == "BPE":
        result = _sentencepiece(folder, whole, model, tokens, types)
    else:
        problem = f"{brief(model.get('type'))} is neither byte-level BPE nor SentencePiece's BPE"
        raise bad(path, problem, field="model type")
    result[_KEY + "tokens"] = tokens
    result[_KEY + "token_type"] = [int(kind) for kind in types]
    result |= _special_tokens(whole, settings, config, tokens)
    return result | _chat_templates(folder, settings)


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def _has_type(value: object, wanted: str) -> bool:
    """Whether a step of the pipeline, at any depth, has a type."""
    pending = [value]
    while pending:
        match pending.pop():
            case {"type": kind} if kind == wanted:
                return True
            case dict() as step:
                pending += [v for k, v in step.items() if k not in ("model", "added_tokens")]
            case list() as steps:
                pending += steps
    return False


def _tokens(path: Path, whole: dict[str, Any], least: int) -> tuple[list[str], list[TokenType]]:
    """Every token in the order of its id; unused ids get a placeholder."""
    added = whole.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise bad(path, "is not a list of objects", field="added_tokens")
    vocabulary, ids = whole["model"]["vocab"], [token.get("id") for token in added]
    numbers = {**vocabulary, **{str(t.get("content")): n for t, n in zip(added, ids, strict=True)}}
    if not all(type(n) is int and 0 <= n < _MAX_TOKENS for n in (*vocabulary.values(), *ids)):
        raise bad(path, f"a token's id is not from 0 to {_MAX_TOKENS:,}", field="vocab")
    count = max(least, 1 + max((*numbers.values(), *ids), default=-1))
    if count > _MAX_TOKENS:
        raise bad(path, f"{count:,} tokens, at most {_MAX_TOKENS:,}", field="vocab_size")
    tokens = [f"[PAD{number}]" for number in range(count)]
    types = [TokenType.UNUSED] * count
    for text, number in numbers.items():
        tokens[number], types[number] = text, TokenType.NORMAL
    for token in added:
        kind = TokenType.CONTROL if token.get("special") else TokenType.USER_DEFINED
        types[token["id"]] = kind
    return tokens, types


def _byte_level(path: Path, whole: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    rule = whole.get("pre_tokenizer")
    name = pretokenizers.name_of(rule, bool(model.get("ignore_merges")))
    if name is None:
        problem = f"{json.dumps(rule)[:200]} has no name in llama.cpp that lbrx knows"
        raise bad(path, problem, field="pre_tokenizer")
    return {
        _KEY + "model": "gpt2",
        _KEY + "pre": name,
        _KEY + "merges": [" ".join(pair) for pair in _merges(path, model)],
    }


def _merges(path: Path, model: dict[str, Any]) -> list[tuple[str, str]]:
    """The merges as pairs; older files store each as one string."""
    result = []
    merges = model.get("merges") or []
    if not isinstance(merges, list):
        raise bad(path, "is not a list", field="merges")
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_text, pair)):
            raise bad(path, f"{str(merge)[:60]!r} is not a pair", field="merges")
        result.append((pair[0], pair[1]))
    return result


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _sentencepiece(
    folder: Path,
    whole: dict[str, Any],
    model: dict[str, Any],
    tokens: list[str],
    types: list[TokenType],
) -> dict[str, Any]:
    scores = [_ADDED_SCORE] * len(tokens)
    unknown = model.get("unk_token")
    for number, text in enumerate(tokens):
        if text == unknown:
            types[number] = TokenType.UNKNOWN
        elif sentencepiece.is_byte(text) and types[number] is TokenType.NORMAL:
            types[number] = TokenType.BYTE
    pieces = folder / "tokenizer.model"
    if pieces.is_file():
        for number, piece in enumerate(sentencepiece.read(pieces)[: len(tokens)]):
            if piece.text == tokens[number] and types[number] is not TokenType.USER_DEFINED:
                scores[number], types[number] = piece.score, TokenType(piece.kind)
    else:
        numbers = {text: number for number, text in enumerate(tokens)}
        ranks = sentencepiece.scores_of(_merges(folder / "tokenizer.json", model))
        for text, score in ranks.items():
            if text in numbers:
                scores[numbers[text]] = score
    return {
        _KEY + "model": "llama",
        _KEY + "pre": "default",
        _KEY + "scores": scores,
        _KEY + "add_space_prefix": _adds_space(whole),
    }


def _adds_space(whole: dict[str, Any]) -> bool:
    if _has_type(whole.get("normalizer"), "Prepend"):
        return True
    rule = whole.get("pre_tokenizer")
    return (
        isinstance(rule, dict)
        and rule.get("type") == "Metaspace"
        and rule.get("prepend_scheme", "always") != "never"
    )


def _special_tokens(
    whole: dict[str, Any],
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    tokens: Sequence[str],
) -> dict[str, Any]:
    numbers = {text: number for number, text in enumerate(tokens)}
    result: dict[str, Any] = {}
    for name, key in _SPECIAL.items():
        given = settings.get(name)
        text = given.get("content") if isinstance(given, dict) else given
        number = numbers.get(text) if isinstance(text, str) else config.get(f"{name}_id")
        number = number[0] if isinstance(number, list) and number else number
        if type(number) is int and 0 <= number < len(tokens):
            result[_KEY + key] = number
    for name in ("bos", "eos"):
        given = settings.get(f"add_{name}_token")
        first = result.get(f"{_KEY}{name}_token_id")
        is_first = name == "bos" and first is not None and _starts_with(whole, tokens[first])
        result[f"{_KEY}add_{name}_token"] = bool(is_first if given is None else given)
    return result


def _starts_with(whole: dict[str, Any], token: str) -> bool:
    """Whether the post-processor adds this token before a text."""
    steps = [whole.get("post_processor")]
    while steps:
        match steps.pop():
            case {"single": [{"SpecialToken": {"id": first}}, *_]} if first == token:
                return True
            case {"processors": list() as inner}:
                steps += inner
    return False


def _chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    given = settings.get("chat_template")
    file = folder / "chat_template.jinja"
    if file.is_file():
        given = file.read_text("utf-8", "replace")
    if isinstance(given, str):
        return {"tokenizer.chat_template": given}
    result: dict[str, Any] = {}
    for item in given if isinstance(given, list) else ():
        match item:
            case {"name": str() as name, "template": str() as template}:
                key = "" if name == "default" else f".{name}"
                result[f"tokenizer.chat_template{key}"] = template
            case _:
                raise bad(
                    folder / "tokenizer_config.json", "is not a template", field="chat_template"
                )
    if names := sorted(key.split(".", 2)[2] for key in result if key.count(".") == 2):
        result["tokenizer.chat_templates"] = names
    return result
