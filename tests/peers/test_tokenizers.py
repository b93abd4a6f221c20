"""Tokenizers rebuilt from GGUF's metadata against llama.cpp, and against what they were made of."""

from __future__ import annotations

import functools
import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import pre_tokenizers

import lbrx
from lbrx.formats import pretokenizers, vocabulary
from lbrx.models.tokenizer import TextStream, Tokenizer, read_tokenizer

sys.path.append(str(Path(__file__).parents[1] / "lbrx" / "formats"))
import tiny_tokenizers
from awkward_texts import TEXTS

llama_cpp = pytest.importorskip("llama_cpp", reason="the peer: make test-peers")
KEY = "tokenizer.ggml."


@functools.cache
def merged_anywhere() -> str:
    """Byte-level BPE whose tokens are parts of the texts, across all places where rules cut: so a
    cut elsewhere gives other tokens."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens(["<user>"])
    return tokenizer.to_str()


def byte_level(rule: str) -> tokenizers.Tokenizer:
    whole = {**json.loads(merged_anywhere()), "pre_tokenizer": pretokenizers.RULES[rule]}
    return tokenizers.Tokenizer.from_str(json.dumps(whole))


def write_gguf(folder: Path, tokenizer: Any, **changes: Any) -> Path:
    """A GGUF with nothing but a vocabulary."""
    tiny_tokenizers.write(folder, tokenizer, bos_token="<|begin|>", eos_token="<|end|>")
    metadata = {"general.architecture": "llama", **vocabulary.to_gguf(folder, {})}
    for name in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        metadata[f"llama.{name}"] = 32
    metadata |= {"llama.attention.head_count": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    metadata |= {KEY + name: value for name, value in changes.items()}
    lbrx.save(folder / "vocabulary.gguf", {}, metadata)
    return folder / "vocabulary.gguf"


def theirs(path: Path) -> Any:
    return llama_cpp.Llama(str(path), vocab_only=True, verbose=False)


def ours(path: Path) -> Tokenizer:
    return read_tokenizer(lbrx.open_model(path))


def differing(path: Path, texts: list[str]) -> list[str]:
    peer, mine = theirs(path), ours(path)
    found = []
    for text in texts:
        wanted = peer.tokenize(text.encode(), add_bos=True, special=True)
        if mine.encode(text) != wanted:
            found.append(text)
    return found


def sentencepiece(seed: int) -> dict[str, Any]:
    """A vocabulary of SentencePiece's: most letters of the texts, and what random merges make."""
    rng = np.random.default_rng(seed)
    escaped = [text.replace(" ", "\u2581") for text in TEXTS if len(text) > 1]
    letters = sorted(set("".join(escaped)) - {"\u2581"})
    known = [letters[n] for n in rng.permutation(len(letters))[: len(letters) * 3 // 4]]
    special = ["<unk>", "<s>", "</s>", "<|end|>", "<user>"]
    special += [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = dict.fromkeys(["\u2581", *known])
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
