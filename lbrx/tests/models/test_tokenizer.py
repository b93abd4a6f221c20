"""Tokenizers built from a GGUF's metadata: equal to those from JSON, and in less memory."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import pytest
import tiny_tokenizers
from tokenizers import Tokenizer as Reference

import lbrx
from lbrx.files.formats.tokenizers import pretokenizers, vocabulary
from lbrx.files.formats.tokenizers.tokenizer_files import tokenizer_files
from lbrx.models.tokenizer import Tokenizer, read_tokenizer

RULES = [*pretokenizers.RULES, "sentencepiece"]
KEY = "tokenizer.ggml."


def in_gguf(folder: Path, metadata: dict) -> lbrx.StoredModel:
    lbrx.save(folder / "m.gguf", {}, metadata)
    return lbrx.open_model(folder / "m.gguf")


@pytest.mark.parametrize("rule", RULES)
def test_built_as_from_json(rule, tmp_path):
    """The library's own reading of tokenizer.json is the oracle."""
    make = tiny_tokenizers.byte_level
    before = tiny_tokenizers.sentencepiece() if rule == "sentencepiece" else make(rule)
    tiny_tokenizers.write(tmp_path, before)
    model = in_gguf(tmp_path, vocabulary.to_gguf(tmp_path, {}))
    expected = Reference.from_str(tokenizer_files(model.metadata)["tokenizer.json"].decode())
    built = read_tokenizer(model)
    assert json.loads(built._inner.to_str()) == json.loads(expected.to_str())
    for text in tiny_tokenizers.CORPUS:
        for special in (False, True):
            ids = expected.encode(text, add_special_tokens=special).ids
            assert built.encode(text, special=special) == ids
            shown = expected.decode(ids, skip_special_tokens=not special)
            assert built.decode(ids, special=special) == shown


def test_a_vocabulary_is_not_held_twice(tmp_path):
    """Only the library keeps it: the model's metadata and the tokenizer keep no strings."""
    letters = sorted(json.loads(tiny_tokenizers.byte_level("gpt-2").to_str())["model"]["vocab"])
    letters = [text for text in letters if len(text) == 1]
    pairs = [(a, b) for a in letters for b in letters][:20_000]
    tokens = [*letters, *(a + b for a, b in pairs)]
    metadata = {KEY + "model": "gpt2", KEY + "tokens": tokens}
    model = in_gguf(tmp_path, metadata | {KEY + "merges": [f"{a} {b}" for a, b in pairs]})
    read_tokenizer(model)  # imports the library
    tracemalloc.start()
    try:
        tokenizer = read_tokenizer(model)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tokenizer.size == len(tokens)
    assert kept < 50 * len(tokens) < peak


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_is_left_as_it_was(collecting, tmp_path):
    model = in_gguf(tmp_path, {KEY + "model": "gpt2", KEY + "tokens": ["a"], KEY + "merges": ["b"]})
    (gc.enable if collecting else gc.disable)()
    try:
        with pytest.raises(lbrx.FormatError, match="merge in the GGUF's metadata is not a pair"):
            read_tokenizer(model)
        assert gc.isenabled() == collecting
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1", '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}', "\0", "\xff"],
)
def test_a_damaged_tokenizer_json(text, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(lbrx.FormatError, match="the tokenizer cannot be used"):
        Tokenizer(path, {})


@pytest.mark.parametrize("merges", [[["a", "b"]], ["a b"], [3], [[]]])
def test_merges_without_the_prefix_of_later_parts(merges, tmp_path):
    """The library would abort the process for these."""
    whole = json.loads(tiny_tokenizers.byte_level("gpt-2").to_str())
    whole["model"] |= {"continuing_subword_prefix": "##", "merges": merges}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(lbrx.FormatError, match="merges: a second part lacks the prefix '##'"):
        Tokenizer(path, {})
    vocab = {"a": 0, "##b": 1, "ab": 2}
    whole["model"] |= {"vocab": vocab, "merges": [["a", "##b"]]}
    path.write_text(json.dumps({**whole, "added_tokens": []}))
    assert Tokenizer(path, {}).encode("ab") == [2]


PANICS = {
    "normalizer": [
        {"type": "Replace", "pattern": {"String": ""}, "content": "a"},
        {"type": "Replace", "pattern": {"Regex": "(?=.)"}, "content": "a"},
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        {"type": "Precompiled", "precompiled_charsmap": "BAAAAAEAAAAC"},
    ],
    "pre_tokenizer": [{"type": "FixedLength", "length": 0}],
}


@pytest.mark.parametrize(
    ("part", "settings"), [(part, one) for part, all_ in PANICS.items() for one in all_], ids=str
)
def test_panics_of_the_library_are_errors(part, settings, tmp_path):
    """They are BaseExceptions, which `except Exception` does not catch."""
    whole = json.loads(tiny_tokenizers.byte_level("gpt-2").to_str())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**whole, part: settings}))
    with pytest.raises(lbrx.FormatError, match="the tokenizer cannot be used: "):
        Tokenizer(path, {}).encode("Hello, world")


def test_interrupts_are_not_errors_of_the_library(monkeypatch, tmp_path):
    tiny_tokenizers.write(tmp_path, tiny_tokenizers.byte_level("gpt-2"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", {})

    class Interrupted:
        def encode(self, *_, **__):
            raise KeyboardInterrupt

    monkeypatch.setattr(tokenizer, "_inner", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("Hello")


def test_prompts_are_neither_cut_nor_padded(tmp_path):
    """A tokenizer.json may have settings for training, which transformers ignores, too."""
    whole = json.loads(tiny_tokenizers.byte_level("gpt-2").to_str())
    wanted = Reference.from_str(json.dumps(whole)).encode("Hello, world! " * 9).ids
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5}
    padding = {"strategy": {"Fixed": 999}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**whole, "truncation": cut, "padding": padding}))
    assert Tokenizer(path, {}).encode("Hello, world! " * 9) == wanted
