"""How text is split before byte-level BPE: llama.cpp names the rules, tokenizer.json has them."""

from __future__ import annotations

from typing import Any

_LETTERS_UP, _LETTERS_LOW = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_LETTERS_UP}]*[{_LETTERS_LOW}]+{{0}}|"
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_LETTERS_UP}]+[{_LETTERS_LOW}]*{{0}}|"
)
_WORDS = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

_PATTERNS = {
    "llama-bpe": _WORDS + r"\p{N}{1,3}|" + _SYMBOLS + _REST,
    "dbrx": _WORDS + r"\p{N}{1,3}|" + _SYMBOLS + _REST,
    "qwen2": _WORDS + r"\p{N}|" + _SYMBOLS + _REST,
    "tekken": _CASED.replace("{0}", "") + r"\p{N}|" + _SYMBOLS_SLASH + _REST,
    "gpt-4o": _CASED.replace("{0}", _CONTRACTIONS + "?") + r"\p{N}{1,3}|" + _SYMBOLS_SLASH + _REST,
}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _cuts(*patterns: str) -> dict[str, Any]:
    """Each pattern splits the pieces that the patterns before it left."""
    return _sequence(*map(_split, patterns), _byte_level(False))


_DIGITS = {"type": "Digits", "individual_digits": True}
_MAX_DEPTH = 8
# By llama.cpp's names.
RULES: dict[str, dict[str, Any]] = {
    "gpt-2": _byte_level(True),
    "smollm": _sequence(_DIGITS, _byte_level(True)),
    **{name: _cuts(pattern) for name, pattern in _PATTERNS.items()},
    "default": _cuts(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "falcon": _cuts(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "deepseek-coder": _cuts(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}"),
    "deepseek-v3": _cuts(
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+|"
        rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_REST}",
    ),
}
_NAMES_OF_ONE = {
    "llama-bpe": "llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    "dbrx": "smaug-bpe",
    "gpt-2": "phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat mellum",
    "smollm": "starcoder refact command-r codeshell exaone minerva-7b mellum2",
    "qwen2": "deepseek-r1-qwen stablelm2 hunyuan megrez solar-open",
    "gpt-4o": "llama4 kanana2 minimax-m2",
    "deepseek-v3": "hunyuan-dense joyai-llm",
}
ALIASES = {alias: name for name, several in _NAMES_OF_ONE.items() for alias in several.split()}
WHOLE_WORDS = frozenset(("llama-bpe", "tekken"))
"""Rules by which a word that is a token stays whole, whatever its merges, and a text begins with a
token."""


def name_of(rule: object, ignores_merges: bool) -> str | None:
    """llama.cpp's name of a rule. Two names share a pattern and differ in their use of merges."""
    wanted = _essence(rule)
    names = [name for name, known in RULES.items() if _essence(known) == wanted]
    if "llama-bpe" in names:
        return "llama-bpe" if ignores_merges else "dbrx"
    return names[0] if names else None


def _essence(rule: object, depth: int = 0) -> tuple[Any, ...]:
    """The parts of a rule that change where text is split."""
    if not isinstance(rule, dict) or depth > _MAX_DEPTH:
        return (None,)
    match rule.get("type"):
        case "Sequence":
            steps = rule.get("pretokenizers")
            inner = steps if isinstance(steps, list) else []
            return tuple(part for step in inner for part in _essence(step, depth + 1))
        case "Split":
            return ((rule.get("pattern"), rule.get("behavior"), bool(rule.get("invert"))),)
        case "ByteLevel":
            return (("cut" if rule.get("use_regex", True) else "bytes"),)
        case "Digits":
            return (("digits", bool(rule.get("individual_digits"))),)
    return (repr(rule),)
