"""lbrx batch: complete the prompts of a file, many at once."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lbrx.cli.generate import (
    add_model_arguments,
    add_text_arguments,
    generation_options,
    open_language_model,
)
from lbrx.errors import LbrxError
from lbrx.models.batch_engine import BatchEngine
from lbrx.models.batch_file import complete_file
from lbrx.models.language_model import read_options
from lbrx.models.sampling import check_number
from lbrx.terminal.progress import token_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add = parser.add_argument
    add("prompts", help='a file of lines such as {"prompt": "...", "id": "a", "max_tokens": 8}')
    add("out", help="the file of answers in the same order; one that exists is continued")
    add_text_arguments(parser)
    add(
        "--parallel",
        type=int,
        default=8,
        metavar="N",
        help="texts at once, each with a cache as long as the context (8)",
    )
    add("--draft", choices=["ngram"], help="guess tokens from what a text repeats")
    add("--deterministic", action="store_true", help="the same bits whatever else is in the file")


def run(options: argparse.Namespace) -> int:
    check_number("--parallel", options.parallel, 1, 256, integer=True)
    wanted = generation_options(options)
    read_options(wanted)
    prompts, out = Path(options.prompts), Path(options.out)
    if out.exists() and out.samefile(prompts):
        raise LbrxError(f"{out} is the file of prompts: give another file for the answers")
    with prompts.open("rb"):
        pass  # a file that cannot be read ends the command before the model is loaded
    model = open_language_model(options)
    engine = BatchEngine(
        model.engine,
        options.parallel,
        deterministic=options.deterministic,
        look_up=options.draft == "ngram",
    )
    with token_bar("completing", options.quiet, "lines") as report:
        counts = complete_file(model, engine, prompts, out, wanted, report)
    if not options.quiet:
        before = f" after {counts.kept:,} of before" if counts.kept else ""
        made = (
            f"{counts.written:,} lines{before}, {counts.tokens:,} tokens, {counts.failed:,} errors"
        )
        print(made, file=sys.stderr)
    return 1 if counts.failed else 0
