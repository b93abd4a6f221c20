"""Tokenizers of a few hundred tokens, trained for the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from lbrx.files.formats.tokenizers import pretokenizers

TEXTS = [
    "Hello, world! It's 12345 o'clock, we'll see.\n\n  Indented\tline\r\n",
    "naïve café — 漢字かな 🎉🏽 ПРИВЕТ مرحبا  ",
    "",
    " leading and trailing  ",
    "<s>not a token</s> <|end|>done",
]
# The license never changes, so neither do the tokens.
CORPUS = [*TEXTS, (Path(__file__).parents[2] / "LICENSE").read_text()]


def byte_level(rule: str) -> Tokenizer:
    """A small byte-level BPE tokenizer, trained here, with one of the rules."""
    tokenizer = Tokenizer(models.BPE())
    blank = {"version": "1.0", "added_tokens": [], "model": json.loads(tokenizer.to_str())["model"]}
    whole = {**json.loads(tokenizer.to_str()), **blank, "pre_tokenizer": pretokenizers.RULES[rule]}
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if rule == "llama-bpe":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
        )
    tokenizer.add_tokens(["<user>"])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """BPE over characters with byte fallback, like Llama 2."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, limit_alphabet=80, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS[:4], trainer)
    whole = json.loads(tokenizer.to_str())
    whole["added_tokens"] = whole["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def write(folder: Path, tokenizer: Tokenizer, **settings: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
