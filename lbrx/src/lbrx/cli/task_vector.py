"""lbrx task-vector: the difference of two models as a model."""

from __future__ import annotations

import argparse

from lbrx.cli.convert import add_output_arguments, carry_out
from lbrx.convert import Result, RunOptions, Settings, make_plan, perform
from lbrx.convert.pieces import Progress
from lbrx.files.formats.packaged_models import target_path
from lbrx.merging.lora import task_vector


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("base", metavar="BASE", help="the model that TUNED was trained from")
    add("tuned", metavar="TUNED", help="the trained model, or model+lora")
    add("--out", required=True, metavar="OUT", help="the folder or file to write: TUNED - BASE")
    add("--dtype", help="f32, f16 or bf16 (default: the stored type of TUNED; f32 is exact)")
    add_output_arguments(parser)


def run(options: argparse.Namespace) -> int:
    model = task_vector(options.base, options.tuned, options.dtype)
    settings = Settings(to=options.to, max_shard_size=options.max_shard_size)
    plan = make_plan(model, target_path(options.out), settings)

    def write(progress: Progress, verifying: Progress | None) -> Result:
        return perform(
            plan,
            RunOptions(options.resume, options.force),
            device=options.device,
            progress=progress,
            verifying=verifying,
        )

    return carry_out(plan, options, "subtracting", write)
