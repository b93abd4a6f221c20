"""lbrx convert: convert a model from one format to another."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lbrx.cli import INTERRUPTED
from lbrx.convert import ConversionPlan, Result, RunOptions, Settings, make_plan, perform
from lbrx.convert.pieces import PieceEngine, Progress
from lbrx.errors import LbrxError
from lbrx.files.formats.packaged_models import model_path, target_path
from lbrx.files.formats.writing import writable
from lbrx.process import peak_memory
from lbrx.terminal.arguments import MODEL
from lbrx.terminal.problems import report
from lbrx.terminal.progress import progress_bars

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_EXAMPLES = """examples:
  lbrx convert model.gguf folder --to safetensors --quantize f16
  lbrx convert folder model.gguf --quantize q4_k_m --verify
  lbrx convert folder mlx --to mlx --quantize mlx:4:64 --dtype bf16
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    add = parser.add_argument
    add("source", metavar="SRC", help=f"the model: {MODEL}")
    add("target", metavar="DST", help="the file or folder to write; it appears when it is complete")
    add("--to", choices=[*map(str, writable())], help="the format (default: by DST's extension)")
    add(
        "--quantize",
        metavar="TYPE",
        help="f32, f16, bf16; for GGUF a mixture: q4_k_m, q8_0 ...; for MLX mlx:BITS:GROUP, "
        "mlx:mxfp4 ... (default: the stored type, or f32 if DST cannot store it)",
    )
    add("--dtype", help="f32, f16 or bf16 for tensors that are not quantized and for MLX's scales")
    add("--imatrix", metavar="FILE", type=Path, help="llama.cpp's importance matrix, for GGUF")
    add("--include", metavar="PATTERN", action="append", default=[], help="only matching tensors")
    add(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="leave out matching tensors",
    )
    add("--max-shard-size", metavar="SIZE", help="the largest file of a safetensors folder (5GB)")
    add("--resume", action="store_true", help="continue an interrupted conversion")
    add("--force", action="store_true", help="replace existing files")
    add(
        "--durable",
        action=argparse.BooleanOptionalAction,
        help="wait until the disk has the files before they get their names (default: only where "
        "existing files are replaced); without it, a power failure can lose the result",
    )
    add(
        "--verify",
        action="store_true",
        help="compare the result with SRC before it gets its name, and show its errors",
    )
    add("--device", choices=["cpu", "metal"], help="the device that computes (the default device)")
    add_engine_arguments(parser)
    add("--quiet", action="store_true", help="no progress bar, no summary")


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say where tensors are computed."""
    parser.add_argument(
        "--engine",
        choices=["local", "ray"],
        default="local",
        help="compute in this process, or on a Ray cluster (pip install ray)",
    )
    parser.add_argument(
        "--address",
        help="the Ray cluster's address, or auto (default: a new one on this machine)",
    )


def chosen_engine(options: argparse.Namespace) -> PieceEngine | None:
    """The engine of `--engine`; None for threads of this process."""
    if options.engine == "local":
        if options.address is not None:
            raise LbrxError("--address is for a Ray cluster: add --engine ray")
        return None
    from lbrx.convert.ray_engine import ray_engine

    return ray_engine(options.address)


def run(options: argparse.Namespace) -> int:
    settings = Settings(
        to=options.to,
        quantize=options.quantize,
        dtype=options.dtype,
        include=tuple(options.include),
        exclude=tuple(options.exclude),
        max_shard_size=options.max_shard_size,
        imatrix=options.imatrix,
    )
    plan = make_plan(model_path(options.source), target_path(options.target), settings)
    for note in plan.notes:
        report(note)
    run_options = RunOptions(options.resume, options.force, options.durable)
    engine = chosen_engine(options)

    def write(progress: Progress, verifying: Progress | None) -> Result:
        return perform(
            plan,
            run_options,
            device=options.device,
            progress=progress,
            verifying=verifying,
            engine=engine,
        )

    return carry_out(plan, options, "converting", write)


def carry_out(
    plan: ConversionPlan,
    options: argparse.Namespace,
    doing: str,
    write: Callable[[Progress, Progress | None], Result],
) -> int:
    """Write a plan's output with progress bars, print what was written, and return the exit status.
    `write` gets the progress, and that of the verification if `--verify` is given."""
    go_on = f"the finished part of {plan.output.path} is kept: add --resume to continue"
    try:
        with _bars(plan.nbytes, options.quiet, doing) as (progress, verifying):
            result = write(progress, verifying if options.verify else None)
    except KeyboardInterrupt:
        report(f"interrupted: {go_on}")
        return INTERRUPTED
    except OSError as problem:
        raise LbrxError(f"{problem}: {go_on}") from problem
    if not options.quiet:
        print(summary(result))
    if options.verify:
        from lbrx.convert.verify import table

        print(table(result.errors))
    return 0


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that most commands have which write a model."""
    add = parser.add_argument
    add("--to", choices=[*map(str, writable())], help="the format (default: by OUT's extension)")
    add("--max-shard-size", metavar="SIZE", help="the largest file of a safetensors folder (5GB)")
    add("--resume", action="store_true", help="continue after an interruption")
    add("--force", action="store_true", help="replace existing files")
    add("--verify", action="store_true", help="compute again and compare before OUT gets its name")
    add("--device", choices=["cpu", "metal"], help="the device that computes (the default device)")
    add("--quiet", action="store_true", help="no progress bar, no summary")


def summary(result: Result) -> str:
    """One line about a finished conversion."""
    plan = result.plan
    reused = f", {result.reused / 1e6:,.0f} MB of them from an earlier run" if result.reused else ""
    rate = (plan.nbytes - result.reused) / max(result.seconds, 1e-9) / 1e6
    return (
        f"{plan.output.path}: {len(plan.items)} tensors, {plan.nbytes / 1e6:,.0f} MB{reused}, "
        f"{result.seconds:.1f} s, {rate:,.0f} MB/s, peak memory {peak_memory() / 2**20:,.0f} MiB"
    )


@contextmanager
def _bars(total: int, quiet: bool, doing: str) -> Iterator[tuple[Progress, Progress]]:
    """Progress bars of conversion and verification with the speed and the time left."""
    with progress_bars(_columns, quiet) as shown:
        if shown is None:
            yield (lambda written: None), (lambda written: None)
            return
        first = shown.add_task(doing, total=total)
        second = shown.add_task("verifying", total=total, visible=False, start=False)

        def verifying(written: int) -> None:
            shown.start_task(second)  # does nothing if it has started
            shown.update(second, advance=written, visible=True)

        yield (lambda written: shown.advance(first, written)), verifying


def _columns() -> Sequence[ProgressColumn]:
    from rich import progress as rich

    return (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
