"""lbrx extract-lora: the difference of two models as a LoRA adapter."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lbrx.merging.lora import LoraOptions, Progress, extract_lora
from lbrx.terminal.progress import progress_bars

if TYPE_CHECKING:
    from rich.progress import ProgressColumn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("base", metavar="BASE", help="the model that TUNED was trained from")
    add("tuned", metavar="TUNED", help="the trained model")
    add("--out", required=True, metavar="OUT", help="the adapter's folder, in PEFT's layout")
    add("--rank", type=int, default=64, help="the rank of the factors (64)")
    add(
        "--exact",
        action="store_true",
        help="decompose large matrices exactly instead of by a randomized method, which is many "
        "times faster and nearly as good",
    )
    add("--dtype", help="f32, f16 or bf16 (default: the stored type of TUNED)")
    add("--device", choices=["cpu", "metal"], help="the device that computes (the default device)")
    add("--force", action="store_true", help="replace existing files")
    add("--quiet", action="store_true", help="no progress bar, no summary")


def run(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    wanted = LoraOptions(options.rank, options.exact, options.dtype, options.force)
    with _bar(options.quiet) as progress:
        found = extract_lora(
            options.base,
            options.tuned,
            options.out,
            wanted,
            device=options.device,
            progress=progress,
        )
    if not options.quiet:
        whole = f", {len(found.whole)} other tensors whole" if found.whole else ""
        print(
            f"{options.out}: {len(found.ranks)} matrices of rank {found.rank}{whole}, "
            f"{found.nbytes / 1e6:,.1f} MB, {found.kept:.1%} of the squared change, "
            f"{time.perf_counter() - began:.1f} s"
        )
    return 0


@contextmanager
def _bar(quiet: bool) -> Iterator[Progress]:
    """A progress bar over the values of both models."""
    with progress_bars(_columns, quiet) as shown:
        if shown is None:
            yield lambda done, total: None
            return
        task = shown.add_task("decomposing")
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _columns() -> Sequence[ProgressColumn]:
    from rich import progress as rich

    return (rich.TextColumn("decomposing"), rich.BarColumn(), rich.TimeRemainingColumn())
