"""The pretokenizer rules that GGUF only names. tests/peers compares them with llama.cpp's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer as Reference

from lbrx.files.formats.tokenizers import pretokenizers, tokenizer_files
from lbrx.files.formats.tokenizers.sentencepiece import Rules, read_rules
from lbrx.models.tokenizer import Tokenizer

TEXT = "I'LL pay $12345, naïve 漢字!=\r\n\n  x'd"
# Where llama.cpp cuts it.
CUTS = {
    "gpt-2": "I|'|LL| pay| $|12345|,| naïve| 漢字|!=|\r\n\n | x|'d",
    "smollm": "I|'|LL| pay| $|1|2|3|4|5|,| naïve| 漢字|!=|\r\n\n | x|'d",
    "llama-bpe": "I|'LL| pay| $|123|45|,| naïve| 漢字|!=\r\n\n| | x|'d",
    "dbrx": "I|'LL| pay| $|123|45|,| naïve| 漢字|!=\r\n\n| | x|'d",
    "qwen2": "I|'LL| pay| $|1|2|3|4|5|,| naïve| 漢字|!=\r\n\n| | x|'d",
    "tekken": "I|'LL| pay| $|1|2|3|4|5|,| naïve| 漢字|!=\r\n\n| | x|'d",
    "gpt-4o": "I'LL| pay| $|123|45|,| naïve| 漢字|!=\r\n\n| | x'd",
    "default": "I|'|LL| pay| |$|123|45|,| naïve| 漢字|!=|\r\n\n | x|'|d",
    "falcon": "I|'|LL| pay| |$|123|45|,| naïve| 漢字|!=|\r\n\n | x|'|d",
    "deepseek-coder": "I|'|LL| pay| $|1|2|3|4|5|,| naïve| |漢字|!|=|\r|\n|\n| | x|'|d",
    "deepseek-v3": "I|'LL| pay| $|123|45|,| naïve| |漢字|!=\r\n\n| | x|'d",
}
NORMAL, UNKNOWN, USER_DEFINED = 1, 2, 4


def of_metadata(**values: Any) -> Tokenizer:
    parts = tokenizer_files.tokenizer_parts({f"tokenizer.ggml.{k}": v for k, v in values.items()})
    assert parts is not None
    return Tokenizer(*parts)


def test_every_rule_is_here():
    assert list(CUTS) == list(pretokenizers.RULES)
    assert set(pretokenizers.ALIASES.values()) <= set(CUTS)
    assert not set(pretokenizers.ALIASES) & set(CUTS)


@pytest.mark.parametrize("rule", CUTS)
def test_where_rules_cut(rule):
    model = {"type": "BPE", "vocab": {}, "merges": []}
    whole = {"added_tokens": [], "pre_tokenizer": pretokenizers.RULES[rule], "model": model}
    cutter = Reference.from_str(json.dumps({"version": "1.0", **whole})).pre_tokenizer
    pieces = [TEXT[start:end] for _, (start, end) in cutter.pre_tokenize_str(TEXT)]
    assert "|".join(pieces) == CUTS[rule]


@pytest.mark.parametrize(("rule", "whole"), [("tekken", True), ("llama3", True), ("dbrx", False)])
def test_words_that_no_merge_makes(rule, whole):
    """Some rules take them from the vocabulary, and put a token before each text."""
    tokenizer = of_metadata(
        model="gpt2", pre=rule, tokens=["<s>", "a", "b", "ab"], merges=[], bos_token_id=0
    )
    assert tokenizer.encode("ab") == ([0, 3] if whole else [1, 2])


def test_only_qwens_own_tokenizer_normalizes():
    accent = "\N{COMBINING ACUTE ACCENT}"
    tokens = ["e", *"Ìģ", *"Ã©"]  # as bytes are written: e, the accent, both in one
    for rule, count in (("qwen2", 2), ("deepseek-r1-qwen", 3)):
        tokenizer = of_metadata(model="gpt2", pre=rule, tokens=tokens, merges=[])
        assert len(tokenizer.encode("e" + accent)) == count


def test_rules_of_a_model_file(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"\x0a\x03\x0a\x01a")
    assert read_rules(path) == Rules(unknown=0, first=1, last=2, adds_space=True)
    # Token 3 is the unknown one, 2 the first, none the last; and no space before a text.
    training = b"\xc0\x02\x03\xc8\x02\x02\xd0\x02" + b"\xff" * 9 + b"\x01"
    path.write_bytes(b"\x12" + bytes([len(training)]) + training + b"\x1a\x02\x18\x00")
    assert read_rules(path) == Rules(unknown=3, first=2, last=-1, adds_space=False)


def test_runs_of_spaces_are_merged_too():
    """They are found before merging where a file has them with spaces, and merged otherwise."""
    tokens = ["<unk>", "▁", "a", "▁▁", "▁▁▁▁"]
    kinds = [UNKNOWN, NORMAL, NORMAL, USER_DEFINED, USER_DEFINED]
    scores = [0.0, -1.0, -2.0, -3.0, -4.0]
    more = {"token_type": kinds, "scores": scores, "add_bos_token": False, "unknown_token_id": 0}
    for space in "▁", " ":
        listed = [t.replace("▁", space) if len(t) > 1 else t for t in tokens]
        tokenizer = of_metadata(model="llama", tokens=listed, add_space_prefix=False, **more)
        assert tokenizer.encode("a     a  a ") == [2, 4, 1, 2, 3, 2, 1]
