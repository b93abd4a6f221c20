"""lbrx apply-lora: a LoRA adapter added to a model's weights."""

from __future__ import annotations

import argparse

from lbrx.cli.convert import add_output_arguments
from lbrx.cli.merge import write_merge
from lbrx.merging import MergeOptions, prepare
from lbrx.merging.lora import applied
from lbrx.terminal.problems import report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("base", metavar="BASE", help="the model that the adapter was made for")
    add("lora", metavar="LORA", help="the adapter's folder, in PEFT's layout")
    add("out", metavar="OUT", help="the folder or file to write")
    add("--quantize", metavar="TYPE", help="the type to write: f16, bf16, q4_k_m, mlx:4:64 ...")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    wanted = MergeOptions(options.to, options.quantize, options.max_shard_size, report=False)
    prepared = prepare(applied(options.base, options.lora), options.out, wanted)
    for note in (*prepared.merge.notes, *prepared.conversion.notes):
        report(note)
    return write_merge(prepared, options, "applying")
