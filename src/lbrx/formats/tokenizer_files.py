"""A GGUF's vocabulary as the files that Hugging Face's libraries read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lbrx.errors import FormatError
from lbrx.formats import pretokenizers, sentencepiece
from lbrx.formats.checks import shown
from lbrx.formats.vocabulary import TokenType

_KEY = "tokenizer.ggml."
_SPACE = "\u2581"
_ADDED = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json; nothing where there is no vocabulary."""
    tokens = metadata.get(_KEY + "tokens")
    if tokens is None:
        return {}
    kind = metadata.get(_KEY + "model")
    types = metadata.get(_KEY + "token_type") or [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise FormatError(f"{len(tokens)} tokens have {len(types)} types in the GGUF's metadata")
    if kind == "gpt2":
        whole = _byte_level(metadata, tokens, types)
    elif kind == "llama":
        whole = _sentencepiece(metadata, tokens, types)
    else:
        raise FormatError(f"the tokenizer {kind!r} has no tokenizer.json: 'gpt2' and 'llama' have")
    whole["post_processor"] = _post_processor(metadata, tokens) or whole.get("post_processor")
    settings = _settings(metadata, tokens)
    return {
        "tokenizer.json": json.dumps(whole, ensure_ascii=False, indent=1).encode(),
        "tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=2).encode(),
    }


def _whole(tokens: Sequence[str], types: Sequence[int], model: dict[str, Any]) -> dict[str, Any]:
    """What both kinds have; the model lacks only its vocabulary."""
    used = [kind != TokenType.UNUSED for kind in types]
    vocab = {text: n for n, text in enumerate(tokens) if used[n]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(number, text, types[number])
            for number, text in enumerate(tokens)
            if types[number] in _ADDED
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
            **model,
            "vocab": vocab,
            "merges": [list(pair) for pair in model["merges"]],
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


def _byte_level(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> dict[str, Any]:
    name = str(metadata.get(_KEY + "pre", "default"))
    rule = pretokenizers.RULES.get(pretokenizers.ALIASES.get(name, name))
    if rule is None:
        known = ", ".join(pretokenizers.RULES)
        raise FormatError(f"the pre-tokenizer {shown(name)} is unknown: lbrx knows {known}")
    merges = [merge.split(" ") for merge in metadata.get(_KEY + "merges") or ()]
    if any(len(pair) != 2 for pair in merges):
        raise FormatError("a merge in the GGUF's metadata is no pair")
    model = {
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": rule == pretokenizers.RULES["llama-bpe"] and name != "dbrx",
        "merges": merges,
    }
    bytes_again = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    return {
        **_whole(tokens, types, model),
        "normalizer": {"type": "NFC"} if name == "qwen2" else None,
        "pre_tokenizer": rule,
        "post_processor": {**bytes_again, "trim_offsets": False, "use_regex": True},
        "decoder": {**bytes_again, "use_regex": True},
    }


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> dict[str, Any]:
    scores = metadata.get(_KEY + "scores") or ()
    if len(scores) != len(tokens):
        raise FormatError(f"{len(tokens)} tokens have {len(scores)} scores in the GGUF's metadata")
    numbers = {text: n for n, text in enumerate(tokens) if types[n] == TokenType.NORMAL}
    merged = {text: scores[n] for text, n in numbers.items() if len(text) > 1}
    unknown = metadata.get(_KEY + "unknown_token_id")
    model = {
        "unk_token": tokens[unknown] if isinstance(unknown, int) else None,
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
    """Puts the first and last token around a text, where the model wants them."""
    around: dict[str, str] = {}
    for name in ("bos", "eos"):
        number = metadata.get(f"{_KEY}{name}_token_id")
        if metadata.get(f"{_KEY}add_{name}_token", _adds_by_default(metadata, name)):
            if not isinstance(number, int) or not 0 <= number < len(tokens):
                raise FormatError(f"add_{name}_token is set, but {number!r} is no token")
            around[name] = tokens[number]
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
    """llama.cpp's rule where a file does not say."""
    return name == "bos" and (
        metadata.get(_KEY + "model") == "llama" or metadata.get(_KEY + "pre") == "llama-bpe"
    )


def _settings(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    result: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for name, key in keys.items():
        number = metadata.get(f"{_KEY}{key}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            result[name] = tokens[number]
    for name in ("bos", "eos"):
        added = metadata.get(f"{_KEY}add_{name}_token", _adds_by_default(metadata, name))
        result[f"add_{name}_token"] = bool(added)
    template = metadata.get("tokenizer.chat_template")
    others = metadata.get("tokenizer.chat_templates") or ()
    if others:
        named = [("default", template), *((n, _named(metadata, n)) for n in others)]
        result["chat_template"] = [{"name": n, "template": t} for n, t in named if t]
    elif template:
        result["chat_template"] = template
    return result


def _named(metadata: Mapping[str, Any], name: str) -> Any:
    return metadata.get(f"tokenizer.chat_template.{name}")
