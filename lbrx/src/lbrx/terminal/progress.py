"""Progress bars on standard error, where it is a terminal. They are erased when they end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

Columns = Callable[[], Sequence["ProgressColumn"]]
"""A function that imports rich, which runs without a terminal do not need, and makes columns."""
Report = Callable[[int, int], None]
"""A function that is called with how much is done, and of how much."""
DELAY = 0.5  # seconds: what ends earlier needs no bar


@contextmanager
def progress_bars(columns: Columns, quiet: bool = False) -> Iterator[Progress | None]:
    """Room for bars with these columns, or None where they are not shown."""
    shown = _bars(columns, quiet)
    if shown is None:
        yield None
        return
    with shown:
        yield shown


@contextmanager
def token_bar(doing: str, quiet: bool = False, unit: str = "tokens") -> Iterator[Report | None]:
    """A bar of tokens or another unit that appears after a moment; None where none is shown."""
    shown = _bars(partial(_token_columns, unit), quiet)
    if shown is None:
        yield None
        return
    task = shown.add_task(doing, total=None)
    appearing = threading.Timer(DELAY, shown.start)
    appearing.daemon = True
    appearing.start()
    try:
        yield lambda done, total: shown.update(task, completed=done, total=total)
    finally:
        appearing.cancel()
        appearing.join()
        if shown.live.is_started:
            shown.stop()


def _bars(columns: Columns, quiet: bool) -> Progress | None:
    if quiet or not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns(), console=Console(stderr=True), transient=True)


def _token_columns(unit: str) -> Sequence[ProgressColumn]:
    from rich import progress as rich

    return (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn(unit),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
