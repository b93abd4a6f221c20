"""lbrx perplexity: how well a model predicts a text."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from lbrx.cli.generate import add_model_arguments, open_language_model, reading
from lbrx.errors import LbrxError
from lbrx.models.language_model import perplexity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("file", help="a text file in UTF-8")


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
    model = open_language_model(options)
    tokens = model.tokenizer.encode(text)
    if len(tokens) < 2:
        raise LbrxError(f"{path} has {len(tokens)} tokens: perplexity needs at least two")
    began = time.perf_counter()
    with reading(model, "reading the text", options.quiet):
        scores = model.log_probabilities(tokens)
    value = perplexity(scores)
    seconds = time.perf_counter() - began
    print(f"perplexity {value:.4f}, {len(tokens):,} tokens, {seconds:.1f} s")
    return 0
