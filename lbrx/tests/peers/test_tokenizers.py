"""Tokenizers rebuilt from GGUF's metadata against llama.cpp, text by text."""

from __future__ import annotations

import functools
import json
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import pre_tokenizers

import lbrx
from lbrx.files.formats.tokenizers import pretokenizers, vocabulary
from lbrx.models.tokenizer import TextStream, Tokenizer, read_tokenizer

sys.path.append(str(Path(__file__).parents[1] / "formats"))
import tiny_tokenizers
from awkward_texts import TEXTS

llama_cpp = pytest.importorskip("llama_cpp", reason="the peer: make test-peers")
KEY, SPACE = "tokenizer.ggml.", "\u2581"
SHAPE = ("context_length", "embedding_length", "block_count", "feed_forward_length")


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF with a vocabulary and the hyperparameters that llama.cpp requires."""
    shape = {f"llama.{name}": 32 for name in (*SHAPE, "attention.head_count")}
    more = {"general.architecture": "llama", "llama.attention.layer_norm_rms_epsilon": 1e-5}
    lbrx.save(path, {}, {**more, **shape, **metadata})
    return path


def opened(path: Path) -> tuple[Tokenizer, Callable[[str], list[int]]]:
    """Our tokenizer, and llama.cpp's function from text to tokens."""
    peer = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)

    def cut(text: str) -> list[int]:
        return list(peer.tokenize(text.encode(), add_bos=True, special=True))

    return read_tokenizer(lbrx.open_model(path)), cut


@functools.cache
def merged_anywhere() -> str:
    """Byte-level BPE whose tokens span the places where rules split texts, so that splitting
    elsewhere gives other tokens."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens(["<user>"])
    text: str = tokenizer.to_str()
    return text


def byte_level(folder: Path, name: str) -> Path:
    rule = pretokenizers.RULES[pretokenizers.ALIASES.get(name, name)]
    whole = {**json.loads(merged_anywhere()), "pre_tokenizer": rule}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(whole))
    tiny_tokenizers.write(folder, tokenizer, bos_token="<|begin|>", eos_token="<|end|>")
    metadata = vocabulary.to_gguf(folder, {})
    # Where a file does not say whether texts begin with a token, the rule does.
    del metadata[KEY + "add_bos_token"]
    return write_gguf(folder / "vocabulary.gguf", {**metadata, KEY + "pre": name})


def has_marks(text: str) -> bool:
    """Whether there are combining marks, or letters beyond the Basic Multilingual Plane."""
    return any(unicodedata.category(c)[0] == "M" or (c > "\uffff" and c.isalpha()) for c in text)


def has_wide_space(text: str) -> bool:
    return any(c.isspace() and c > "\x7f" for c in text)


# Texts for which llama.cpp differs from the models' own tokenizers, which ours follow.
DEVIATIONS: dict[str, Callable[[str], bool]] = {
    "tekken": has_marks,
    "gpt-4o": has_marks,
    "llama4": has_marks,
    "kanana2": has_marks,
    "minimax-m2": has_marks,
    "deepseek-coder": has_wide_space,
}


@pytest.mark.parametrize("name", [*pretokenizers.RULES, *pretokenizers.ALIASES])
def test_byte_level(name, tmp_path):
    mine, cut = opened(byte_level(tmp_path, name))
    deviates = DEVIATIONS.get(name, lambda text: False)
    for text in TEXTS:
        if name == "qwen2":  # whose own tokenizer normalizes, and llama.cpp does not
            text = unicodedata.normalize("NFC", text)
        if not deviates(text):
            assert mine.encode(text) == cut(text), repr(text)
    assert sum(map(deviates, TEXTS)) < len(TEXTS) / 4


# As tokenizer.json of Mistral Nemo and of GPT-4o have them.
PUBLISHED = {
    "tekken": r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    "gpt-4o": r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_patterns(name):
    regex = pytest.importorskip("regex", reason="comes with transformers: make test-peers")
    whole = {**json.loads(merged_anywhere()), "pre_tokenizer": pretokenizers.RULES[name]}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(whole))
    for text in TEXTS:
        ends = [end for _, (_, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
        assert ends == [match.end() for match in regex.finditer(PUBLISHED[name], text)], repr(text)


def sentencepiece(seed: int) -> dict[str, Any]:
    """A SentencePiece vocabulary: most letters of the texts, and random merges of them."""
    rng = np.random.default_rng(seed)
    escaped = [text.replace(" ", SPACE) for text in TEXTS if len(text) > 1]
    # llama.cpp's tokens are C strings, which end at a zero byte.
    letters = sorted(set("".join(escaped)) - {SPACE, "\0"})
    known = [letters[n] for n in rng.permutation(len(letters))[: len(letters) * 3 // 4]]
    special = ["<unk>", "<s>", "</s>", "<|end|>", "<user>"]
    special += [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = dict.fromkeys([SPACE, *known])
    while len(pieces) < 3000:
        text = escaped[rng.integers(len(escaped))]
        start, sizes = int(rng.integers(len(text))), rng.integers(1, 6, 2)
        left, right = text[start:][: sizes[0]], text[start + sizes[0] :][: sizes[1]]
        if left in pieces and right in pieces and left + right not in special:
            pieces[left + right] = None
    return {
        "model": "llama",
        "tokens": [*special, *pieces],
        "scores": [0.0] * len(special) + [float(-rank) for rank in range(len(pieces))],
        "token_type": [2, 3, 3, 3, 4] + [6] * 256 + [1] * len(pieces),
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def add_runs(vocabulary: dict[str, Any], space: str) -> None:
    """Runs of spaces and lines as tokens of their own, as Gemma has them. llama.cpp's converter
    writes them with spaces, tokenizer.json has them escaped."""
    tokens, kinds = vocabulary["tokens"], vocabulary["token_type"]
    for letter in (SPACE, "\n"):
        for size in range(2, 9):
            run = letter * size
            if run not in tokens:
                tokens.append(run)
                kinds.append(4)
                vocabulary["scores"].append(float(-len(tokens)))
            number = tokens.index(run)
            tokens[number], kinds[number] = run.replace(SPACE, space), 4


@pytest.mark.parametrize("runs", [None, " ", SPACE], ids=["", "spaces", "escaped spaces"])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_sentencepiece(seed, prefix, runs, tmp_path):
    pieces = {**sentencepiece(seed), "add_space_prefix": prefix}
    if runs:
        add_runs(pieces, runs)
    metadata = {KEY + name: value for name, value in pieces.items()}
    mine, cut = opened(write_gguf(tmp_path / "vocabulary.gguf", metadata))
    for text in TEXTS:
        assert mine.encode(text) == cut(text), repr(text)


SENTENCES = [line for text in TEXTS for line in text.replace("\0", "").split("\n") if line.strip()]
TRAINED: dict[str, dict[str, Any]] = {
    "llama": {"split_digits": True},
    "gemma": {
        "add_dummy_prefix": False,
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
        "user_defined_symbols": ["<user>", SPACE * 2, SPACE * 4],
    },
    "words": {"split_by_whitespace": False, "allow_whitespace_only_pieces": True},
}


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_file_of_sentencepiece(name, tmp_path):
    """tokenizer.model without a tokenizer.json, against the library it is from."""
    library = pytest.importorskip("sentencepiece", reason="the peer: make test-peers")
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 5),
        model_prefix=str(tmp_path / "tokenizer"),
        model_type="bpe",
        vocab_size=1500,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **TRAINED[name],
    )
    path = tmp_path / "tokenizer.model"
    peer = library.SentencePieceProcessor(model_file=str(path))
    lbrx.save(tmp_path / "model.safetensors", {"a": lbrx.tensor([1.0])})
    (tmp_path / "config.json").write_text("{}")
    mine = read_tokenizer(lbrx.open_model(tmp_path))
    for text in TEXTS:
        # We read the names of special tokens as tokens, and SentencePiece as text.
        if not any(token in text for token in ("<s>", "<user>", SPACE)):
            assert mine.encode(text) == peer.encode(text, add_bos=True), repr(text)


def streamed(tokenizer: Tokenizer, tokens: list[int]) -> str:
    stream = TextStream(tokenizer)
    parts = [stream.add(token) for token in tokens]
    return "".join(parts) + stream.end()


@pytest.mark.parametrize("kind", ["smollm", "tekken", "llama", "gemma"])
def test_there_and_back(kind, tmp_path):
    """Texts without special tokens are restored, and streaming any tokens gives their text."""
    if kind in pretokenizers.RULES:
        tokenizer = read_tokenizer(lbrx.open_model(byte_level(tmp_path, kind)))
    else:
        pieces = {**sentencepiece(3), "add_space_prefix": kind == "llama"}
        metadata = {KEY + name: value for name, value in pieces.items()}
        tokenizer = read_tokenizer(lbrx.open_model(write_gguf(tmp_path / "v.gguf", metadata)))
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        special = any(name in text for name in ("<|", "<user>", "<s>"))
        if not special and not (SPACE in text and kind not in pretokenizers.RULES):
            assert tokenizer.decode(tokens) == text
        assert streamed(tokenizer, tokens) == tokenizer.decode(tokens), repr(text)
    rng = np.random.default_rng(7)
    for size in rng.integers(1, 40, 100):
        tokens = rng.integers(0, tokenizer.size, size).tolist()
        assert streamed(tokenizer, tokens) == tokenizer.decode(tokens), tokens
