"""lbrx export: write a language model as a Core ML program for the Neural Engine."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from lbrx.cli.generate import model_source
from lbrx.errors import LbrxError
from lbrx.models.export.exporter import (
    DEFAULT_CHUNK,
    DEFAULT_CONTEXT,
    check_output,
    export_network,
    settings_of,
)
from lbrx.models.export.network_program import ATTENTIONS, CACHES, ProgramStyle
from lbrx.models.export.program_parts import LARGEST_PACKAGE
from lbrx.models.loading import language_model
from lbrx.neural_engine.weight_forms import WeightForm
from lbrx.terminal.arguments import MODEL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", help=f"the model: {MODEL}; or BASE+LORA")
    add(
        "output",
        help="the package to write, whose name ends in .mlpackage; with --part-size a folder",
    )
    add(
        "--context",
        metavar="N",
        type=int,
        help="maximum tokens of a text with its prompt (default: what the model was trained for, "
        f"at most {DEFAULT_CONTEXT:,})",
    )
    add(
        "--chunk",
        metavar="N",
        type=int,
        default=DEFAULT_CHUNK,
        help=f"tokens of a prompt that are read at a time ({DEFAULT_CHUNK})",
    )
    add(
        "--quantize",
        metavar="TYPE",
        default=WeightForm.F16.value,
        help="how weights are stored: f16 (the default), int8 or int4 with a scale for each "
        "channel, lut8, lut6 or lut4 with a table for each matrix, or stored, which keeps the "
        "file's q8_0, q4_0, q4:* and q8:* as they are",
    )

    add(
        "--cache",
        choices=CACHES,
        default=CACHES[0],
        help="how a token is written: masks rewrite the whole cache without integers, slices "
        "update its row alone (masks)",
    )
    add(
        "--attention",
        choices=ATTENTIONS,
        default=ATTENTIONS[0],
        help="Core ML's operation, or a product, a softmax and a product (operation)",
    )
    add(
        "--part-size",
        metavar="SIZE",
        help="write a folder of packages with at most this much weights each, such as 1GB: a "
        "Mac's Neural Engine does not take packages of more than about 2 GB",
    )
    add("--greedy", action="store_true", help="decode gives the most likely token, and no logits")
    add("--force", action="store_true", help="replace an existing package")


def run(options: argparse.Namespace) -> int:
    path = Path(options.output)
    check_output(path, bool(options.part_size))  # before the model is opened
    if path.exists() and not options.force:
        raise LbrxError(f"{path} exists: add --force to replace it")
    model = language_model(model_source(options.model))
    style = ProgramStyle(options.cache, options.attention, options.greedy)
    settings = settings_of(
        model.config, options.context, options.chunk, options.quantize, style, options.part_size
    )
    began = time.perf_counter()
    export_network(model.engine.network, path, settings)
    seconds = time.perf_counter() - began
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(
        f"{path}: context {settings.context:,}, chunk {settings.chunk}, weights "
        f"{settings.form}, {size / 1e6:.0f} MB in {seconds:.1f} s"
    )
    if not settings.part_bytes and size > LARGEST_PACKAGE:
        print(
            f"lbrx: {path} has {size / 1e9:.1f} GB, and a Mac's Neural Engine takes packages up to "
            "about 2 GB: add --part-size 1GB, or the GPU runs it",
            file=sys.stderr,
        )
    return 0
