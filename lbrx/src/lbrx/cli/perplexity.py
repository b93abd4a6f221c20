"""lbrx perplexity: how well a model predicts a text."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from lbrx.cli.generate import add_model_arguments, open_language_model, reading
from lbrx.errors import LbrxError
from lbrx.models.language_model import perplexity
from lbrx.models.scoring import Agreement, compare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("file", help="a text file in UTF-8")
    parser.add_argument(
        "--against",
        metavar="MODEL",
        help="a reference with the same tokens, such as the model before it was quantized: also "
        "print the divergence from it, and how often both have the same most likely token",
    )


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
    reference = None
    if options.against is not None:
        reference = open_language_model(options, options.against)
        if reference.tokenizer.encode(text) != tokens:
            raise LbrxError(
                f"{options.against} cuts {path} into other tokens than {options.model}: give a "
                "model with its tokenizer"
            )
    began = time.perf_counter()
    with reading(model, "reading the text", options.quiet):
        agreement = None if reference is None else compare(model, reference, tokens)
        scores = model.log_probabilities(tokens) if agreement is None else agreement.scores
    seconds = time.perf_counter() - began
    print(f"perplexity {perplexity(scores):.4f}, {len(tokens):,} tokens, {seconds:.1f} s")
    if agreement is not None:
        print(_agreement(agreement))
    return 0


def _agreement(found: Agreement) -> str:
    """The line about the reference."""
    middle, high, top = np.quantile(found.divergences, [0.5, 0.99, 1])
    return (
        f"reference's perplexity {perplexity(found.reference_scores):.4f}, "
        f"KL divergence from it {np.mean(found.divergences):.6f} "
        f"(median {middle:.6f}, 99% {high:.6f}, maximum {top:.6f}), "
        f"same most likely token {100 * found.same_best:.2f}%"
    )
