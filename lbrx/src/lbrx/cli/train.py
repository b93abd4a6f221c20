"""lbrx train: fine-tune a language model on examples."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lbrx.cli import INTERRUPTED
from lbrx.cli.generate import model_source
from lbrx.terminal.arguments import MODEL
from lbrx.terminal.progress import progress_bars
from lbrx.train.objectives import OBJECTIVES
from lbrx.train.options import METHODS, OPTIMIZERS, SCHEDULES, TrainOptions
from lbrx.train.run import Run, Told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import ProgressColumn

_NUMBERS = (
    ("steps", int, "N", "updates of the weights"),
    ("batch", int, "N", "examples of a batch"),
    ("accumulate", int, "N", "batches whose gradients are added up for a step"),
    ("length", int, "N", "tokens of an example; longer ones are cut"),
    ("rank", int, "N", "the rank of the adapter's matrices"),
    ("scale", float, "X", "what their product is multiplied by"),
    ("layers", int, "N", "train the last N layers; 0 for all"),
    ("beta", float, "X", "how strongly preferences count"),
    ("rate", float, "X", "the largest learning rate"),
    ("warm_up", int, "N", "steps until the learning rate is reached"),
    ("clip", float, "X", "the largest norm of a step's gradient; 0 for any"),
    ("eval_every", int, "N", "steps between evaluations on valid.jsonl"),
    ("save_every", int, "N", "steps between checkpoints"),
    ("patience", int, "N", "stop after N evaluations without a lower loss; 0 for never"),
    ("seed", int, "N", "of the order of the examples and the first values of the adapter"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    defaults = TrainOptions()
    add("model", help=f"the model, in any format: {MODEL}; or BASE+LORA, with the adapter's folder")
    add(
        "data",
        help="a folder with train.jsonl and perhaps valid.jsonl, or a JSONL file: lines with "
        '"text", with "prompt" and "completion", or with "messages" (and "tools")',
    )
    add("--out", metavar="DIR", required=True, help="the folder of the adapter and its report")
    add(
        "--method",
        choices=METHODS,
        default=defaults.method,
        help="what is trained: an adapter (lora), one with magnitudes (dora), or the weights "
        "themselves, in float32 (full)",
    )
    add(
        "--objective",
        choices=tuple(OBJECTIVES),
        default=defaults.objective,
        help="imitate examples (sft), or prefer answers: lines then have "
        '"prompt", "chosen" and "rejected" (dpo, orpo)',
    )
    for name, kind, metavar, text in _NUMBERS:
        default = getattr(defaults, name)
        option = f"--{name.replace('_', '-')}"
        add(option, metavar=metavar, type=kind, default=default, help=f"{text} ({default:g})")
    add(
        "--targets",
        metavar="NAMES",
        default="",
        help="the linear maps that are changed, as q_proj,v_proj (default: all of the layers)",
    )
    add("--optimizer", choices=OPTIMIZERS, default=defaults.optimizer, help="(adamw)")
    add("--schedule", choices=SCHEDULES, default=defaults.schedule, help="of the rate (cosine)")
    add("--mask-prompt", action="store_true", help="learn answers only, not the prompts")
    add(
        "--checkpoint-layers",
        action="store_true",
        help="compute layers again for their gradient, for less memory",
    )
    add("--resume", action="store_true", help="go on from the last checkpoint in the folder")
    add("--dry-run", action="store_true", help="say what would be trained, and its memory")
    add("--quiet", action="store_true", help="no progress bar and no lines of steps")


def run(options: argparse.Namespace) -> int:
    names = TrainOptions.__dataclass_fields__
    given = {name: value for name, value in vars(options).items() if name in names}
    given["targets"] = tuple(name for name in options.targets.split(",") if name)
    wanted = TrainOptions(**given)
    prepared = Run(model_source(options.model), Path(options.data), Path(options.out), wanted)
    prepared.name = options.model
    _show_plan(prepared, options.quiet and not options.dry_run)
    if options.dry_run:
        return 0
    with _shown(wanted.steps, options.quiet) as tell:
        result = prepared.finished(options.resume, tell)
    if result.stopped == "interrupted":
        print(f"stopped after step {result.step}: --resume goes on with it", file=sys.stderr)
        return INTERRUPTED
    for prompt, before, after in () if options.quiet else result.samples:
        print(f"{prompt.strip()}\n  before: {before.strip()}\n  after:  {after.strip()}")
    print(f"adapter and {result.report.name} in {options.out}, after {result.step} steps")
    return 0


def _show_plan(prepared: Run, quiet: bool) -> None:
    if quiet:
        return
    parts = [f"{name} {size / 1e6:,.0f} MB" for name, size in prepared.memory.items()]
    examples, valid = len(prepared.examples), len(prepared.valid)
    print(
        f"{examples:,} examples, {valid:,} for validation; {prepared.adapter.count:,} values are "
        f"trained; memory: {', '.join(parts)}",
        file=sys.stderr,
        flush=True,
    )


@contextmanager
def _shown(steps: int, quiet: bool) -> Iterator[Told]:
    """What shows the lines of the log: a bar in a terminal, else a line for some steps."""
    with progress_bars(_columns, quiet) as bars:
        task = None if bars is None else bars.add_task("training", total=steps, loss="", speed="")
        every = max(steps // 20, 1)

        def tell(line: dict[str, Any]) -> None:
            if bars is not None and task is not None:
                _advance(bars, task, line)
            elif not quiet and ("valid_loss" in line or line["step"] % every == 0):
                print(json.dumps(line), file=sys.stderr, flush=True)

        yield tell


def _advance(bars: Any, task: Any, line: dict[str, Any]) -> None:
    if "valid_loss" in line:
        bars.console.print(f"step {line['step']}: validation loss {line['valid_loss']:.4f}")
        return
    bars.update(
        task,
        completed=line["step"],
        loss=f"loss {line['loss']:.4f}",
        speed=f"{line['tokens_per_second']:,.0f} tokens/s, {line['memory'] / 1e9:.1f} GB",
    )


def _columns() -> Sequence[ProgressColumn]:
    from rich import progress as rich

    return (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[loss]}"),
        rich.TextColumn("{task.fields[speed]}"),
        rich.TimeRemainingColumn(),
    )
