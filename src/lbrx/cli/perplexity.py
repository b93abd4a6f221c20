"""lbrx perplexity: how well a model predicts a text."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from lbrx.errors import LbrxError
from lbrx.models import load
from lbrx.models.language_model import perplexity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a file, a folder, or the name of a packaged model: smollm2")
    parser.add_argument("file", help="a text in UTF-8")
    parser.add_argument("--context", type=int, help="the most tokens that are seen together")
    parser.add_argument("--cache-type", default="f16", help="of the KV cache: f16, bf16, f32, q8_0")


def run(options: argparse.Namespace) -> int:
    path = Path(options.file)
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as problem:
        raise LbrxError(
            f"{path} is not UTF-8 at byte {problem.start:,}: convert it first"
        ) from None
    except OSError as problem:
        raise LbrxError(f"{path} cannot be read: {problem.strerror}") from None
    model = load(options.model, context=options.context, cache_dtype=options.cache_type)
    tokens = model.tokenizer.encode(text)
    if len(tokens) < 2:
        raise LbrxError(f"{path} has {len(tokens)} tokens: perplexity needs at least two")
    began = time.perf_counter()
    value = perplexity(model.log_probabilities(tokens))
    seconds = time.perf_counter() - began
    print(f"perplexity {value:.4f}, {len(tokens):,} tokens, {seconds:.1f} s")
    return 0
