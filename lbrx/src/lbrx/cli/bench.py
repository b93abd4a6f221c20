"""lbrx bench: measure this machine beside its own ceilings and other libraries."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lbrx.bench import comparison
from lbrx.bench.markdown import markdown
from lbrx.bench.page import page
from lbrx.bench.peers import NAMES
from lbrx.bench.report import HTML_NAME, JSON_NAME, MARKDOWN_NAME, Report, read
from lbrx.bench.run import SUITES, Options, Progress, run_suites
from lbrx.errors import LbrxError
from lbrx.terminal.progress import progress_bars

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

INTERRUPTED = 130  # as in shells


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suite", choices=[*SUITES, "all"], default="all", help="what to measure (all)"
    )
    parser.add_argument(
        "--short", action="store_true", help="one size of each kernel and fewer rounds"
    )
    parser.add_argument(
        "--peers",
        default="numpy",
        metavar="NAMES",
        help=f"libraries to compare with, separated by commas, of {', '.join(NAMES)} (numpy)",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXTS", help="cases with one of these in their name"
    )
    parser.add_argument(
        "--out", default="bench-report", metavar="DIR", help="folder of the report (bench-report)"
    )
    parser.add_argument(
        "--compare", metavar="JSON", help="an earlier report.json: mark what became slower"
    )


def run(options: argparse.Namespace) -> int:
    folder = Path(options.out)
    old = read(Path(options.compare)) if options.compare else None
    folder.mkdir(parents=True, exist_ok=True)
    wanted = Options(
        suites=SUITES if options.suite == "all" else (options.suite,),
        short=options.short,
        peers=[name for name in options.peers.split(",") if name],
        only=[part for part in options.only.split(",") if part],
    )
    with _progress_bar() as progress:
        report = run_suites(wanted, progress)
    if not report.rows:
        raise LbrxError(f"nothing was measured: {'; '.join(report.notes)}")
    _write(folder, report, old)
    for note in report.notes:
        print(note, file=sys.stderr)
    print(f"{len(report.rows)} measurements in {report.seconds:.0f} s: {folder / HTML_NAME}")
    if old is not None:
        print("\n".join(comparison.lines(report, old)))
    return 0 if report.complete else INTERRUPTED


def _write(folder: Path, report: Report, old: Report | None) -> None:
    compared = comparison.compare(report, old) if old is not None else []
    (folder / JSON_NAME).write_text(report.json())
    (folder / HTML_NAME).write_text(page(report, compared))
    (folder / MARKDOWN_NAME).write_text(markdown(report))


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """A bar with what is being measured and the time left."""
    with progress_bars(_columns) as shown:
        if shown is None:
            yield lambda done, total, title: None
            return
        bar = shown.add_task("", total=None)
        yield lambda done, total, title: shown.update(
            bar, completed=done, total=total, description=title
        )


def _columns() -> Sequence[ProgressColumn]:
    from rich import progress as rich

    return (
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.description}"),
    )
