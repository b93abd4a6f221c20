"""A GGUF's vocabulary as the files that Hugging Face's libraries read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, TypeVar

from lbrx.errors import FormatError
from lbrx.files.formats.checks import brief, shown
from lbrx.files.formats.tokenizers import pretokenizers, sentencepiece
from lbrx.files.formats.tokenizers.vocabulary import TokenType

_KEY = "tokenizer.ggml."
_NAMED_TEMPLATE = "tokenizer.chat_template."
_SPACE = "\u2581"
Item = TypeVar("Item", str, int, float)
_ADDED = frozenset(map(int, (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)))
_MERGED = frozenset(map(int, (TokenType.NORMAL, TokenType.USER_DEFINED)))
_UNUSED = int(TokenType.UNUSED)


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json; empty if the GGUF has no vocabulary."""
    parts = tokenizer_parts(metadata)
    if parts is None:
        return {}
    whole, settings = parts
    return {
        "tokenizer.json": json.dumps(whole, ensure_ascii=False, indent=1).encode(),
        "tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=2).encode(),
    }


def tokenizer_parts(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The content of these files; None if the GGUF has no vocabulary."""
    tokens = _listed(metadata, "tokens", str)
    if not tokens:
        return None
    kind = metadata.get(_KEY + "model")
    types = _listed(metadata, "token_type", int) or [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise FormatError(f"{len(tokens)} tokens have {len(types)} types in the GGUF's metadata")
    if kind == "gpt2":
        whole = _byte_level(metadata, tokens, types)
    elif kind == "llama":
        whole = _sentencepiece(metadata, tokens, types)
    else:
        raise FormatError(
            f"the tokenizer {brief(kind)} is not supported: lbrx converts 'gpt2' and 'llama'"
        )
    whole["post_processor"] = _post_processor(metadata, tokens) or whole.get("post_processor")
    return whole, _settings(metadata, tokens)


def _listed(metadata: Mapping[str, Any], key: str, kind: type[Item]) -> list[Item]:
    """An array of metadata with elements of one type; empty if the GGUF has none."""
    value = metadata.get(_KEY + key, ())
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    items: list[Any] = list(value) if listed else [None]
    if not set(map(type, items)) <= {kind}:
        raise FormatError(f"metadata {_KEY + key!r} is not an array of {kind.__name__}")
    return items


def _token(tokens: Sequence[str], number: object) -> str | None:
    return tokens[number] if isinstance(number, int) and 0 <= number < len(tokens) else None


def _whole(tokens: Sequence[str], types: Sequence[int], model: dict[str, Any]) -> dict[str, Any]:
    """The parts that both kinds of tokenizer share: everything but the model's vocabulary."""
    numbered = zip(tokens, range(len(tokens)), strict=True)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(number, tokens[number], kind)
            for number, kind in enumerate(types)
            if kind in _ADDED
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "vocab": dict(compress(numbered, map(_UNUSED.__ne__, types))),
            **model,
        },
    }


def _added(number: int, text: str, kind: int) -> dict[str, Any]:
    return {
        "id": number,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": kind != TokenType.USER_DEFINED,
    }


def _rule_name(metadata: Mapping[str, Any]) -> str:
    """The name of the pre-tokenizer's rule; several of llama.cpp's names mean one rule."""
    name = str(metadata.get(_KEY + "pre", "default"))
    return pretokenizers.ALIASES.get(name, name)


def _byte_level(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> dict[str, Any]:
    name = _rule_name(metadata)
    rule = pretokenizers.RULES.get(name)
    if rule is None:
        known = ", ".join(pretokenizers.RULES)
        raise FormatError(f"the pre-tokenizer {shown(name)} is unknown: lbrx knows {known}")
    merges = [tuple(merge.split(" ")) for merge in _listed(metadata, "merges", str)]
    if not set(map(len, merges)) <= {2}:
        raise FormatError("a merge in the GGUF's metadata is not a pair")
    model = {
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": name in pretokenizers.WHOLE_WORDS,
        "merges": merges,
    }
    bytes_again = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    return {
        **_whole(tokens, types, model),
        # Of these names only Qwen's own normalizes.
        "normalizer": {"type": "NFC"} if metadata.get(_KEY + "pre") == "qwen2" else None,
        "pre_tokenizer": rule,
        "post_processor": {**bytes_again, "trim_offsets": False, "use_regex": True},
        "decoder": {**bytes_again, "use_regex": True},
    }


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> dict[str, Any]:
    scores = _listed(metadata, "scores", float)
    if len(scores) != len(tokens):
        raise FormatError(f"{len(tokens)} tokens have {len(scores)} scores in the GGUF's metadata")
    # Tokens that are matched before merging may also be results of merges: Gemma's runs of spaces.
    numbers = {text: n for n, text in enumerate(tokens) if types[n] in _MERGED}
    merged = {text: scores[n] for text, n in numbers.items() if len(text) > 1}
    unknown = metadata.get(_KEY + "unknown_token_id")
    model = {
        "unk_token": _token(tokens, unknown),
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "merges": sentencepiece.merges_of(numbers, merged),
    }
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prepends = bool(metadata.get(_KEY + "add_space_prefix", True))
    back: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prepends:
        back.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    before = [{"type": "Prepend", "prepend": _SPACE}] if prepends else []
    return {
        **_whole(tokens, types, model),
        "normalizer": {"type": "Sequence", "normalizers": [*before, spaces]},
        "decoder": {"type": "Sequence", "decoders": back},
    }


def _post_processor(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any] | None:
    """The step that adds the first and last token to a text, where the model has them."""
    around: dict[str, str] = {}
    for name in ("bos", "eos"):
        if metadata.get(f"{_KEY}add_{name}_token", _adds_by_default(metadata, name)):
            number = metadata.get(f"{_KEY}{name}_token_id")
            token = _token(tokens, number)
            if token is None:
                raise FormatError(f"add_{name}_token is set, but {brief(number)} is not a token")
            around[name] = token
    if not around:
        return None
    pieces = {name: [{"SpecialToken": {"id": text, "type_id": 0}}] for name, text in around.items()}
    texts = [{"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B")]
    before, after = pieces.get("bos", []), pieces.get("eos", [])
    numbers = {text: metadata[f"{_KEY}{name}_token_id"] for name, text in around.items()}
    return {
        "type": "TemplateProcessing",
        "single": [*before, texts[0], *after],
        "pair": [*before, texts[0], *after, *before, texts[1], *after],
        "special_tokens": {
            text: {"id": text, "ids": [number], "tokens": [text]}
            for text, number in numbers.items()
        },
    }


def _adds_by_default(metadata: Mapping[str, Any], name: str) -> bool:
    """llama.cpp's default for files that do not have the setting."""
    return name == "bos" and (
        metadata.get(_KEY + "model") == "llama" or _rule_name(metadata) in pretokenizers.WHOLE_WORDS
    )


def _settings(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    result: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for name, key in keys.items():
        token = _token(tokens, metadata.get(f"{_KEY}{key}_token_id"))
        if token is not None:
            result[name] = token
    for name in ("bos", "eos"):
        added = metadata.get(f"{_KEY}add_{name}_token", _adds_by_default(metadata, name))
        result[f"add_{name}_token"] = bool(added)
    template = metadata.get("tokenizer.chat_template")
    others = [key for key in metadata if key.startswith(_NAMED_TEMPLATE)]
    if not all(isinstance(each, str) for each in (template or "", *map(metadata.get, others))):
        raise FormatError("metadata 'tokenizer.chat_template' is not a text")
    if others:
        named = {"default": template}
        named |= {key.removeprefix(_NAMED_TEMPLATE): metadata[key] for key in others}
        result["chat_template"] = [{"name": n, "template": t} for n, t in named.items() if t]
    elif template:
        result["chat_template"] = template
    return result
