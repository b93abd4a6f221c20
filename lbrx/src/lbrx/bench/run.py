"""A whole run: the suites one after another, until they end or the user interrupts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lbrx.bench import kernel_cases, kernel_suite, machine
from lbrx.bench.ceilings import CeilingMaker, device_threads
from lbrx.bench.energy import find_meter
from lbrx.bench.kernel_suite import Tools
from lbrx.bench.peers import find
from lbrx.bench.report import Report, Row
from lbrx.bench.timing import Effort
from lbrx.errors import LbrxError
from lbrx.metal import context, stats

SUITES = ("kernels",)
SHORT, FULL = Effort(rounds=7, seconds=0.8), Effort(rounds=15, seconds=5.0)


@dataclass(frozen=True)
class Task:
    """A measurement that has not been made yet."""

    title: str
    measure: Callable[[], Row]


@dataclass(frozen=True)
class Options:
    suites: Sequence[str] = SUITES
    short: bool = False
    peers: Sequence[str] = ("numpy",)
    only: str = ""
    """Part of the names of the cases that are measured."""


Progress = Callable[[int, int, str], None]
"""Called with the number of finished tasks, of all tasks, and the title of the next one."""


@dataclass
class _Results:
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    complete: bool = True


def run_suites(options: Options, progress: Progress) -> Report:
    """Measure. Ctrl-C ends it, and the report has what was measured until then. A case that fails
    becomes a note of the report, and the others go on."""
    gpu = context()
    threads = device_threads(gpu)
    peers, missing = find(options.peers, threads)
    ceilings = CeilingMaker(gpu, threads)
    effort = SHORT if options.short else FULL
    tools = Tools(peers, ceilings, effort, find_meter())
    facts = machine.describe(gpu, threads)
    before, start = stats(), time.perf_counter()
    made = _Results(notes=[f"{name} is not installed" for name in missing])
    try:
        _measure(list(_tasks(options, tools)), made, progress)
    finally:
        ceilings.close()
    return Report(
        machine=facts,
        rows=made.rows,
        peers={peer.name: peer.version for peer in peers},
        short=options.short,
        complete=made.complete,
        seconds=time.perf_counter() - start,
        notes=made.notes,
        memory=_memory(before, stats()),
    )


def _tasks(options: Options, tools: Tools) -> Iterator[Task]:
    if "kernels" in options.suites:
        for case in kernel_cases.cases(options.short):
            if options.only in case.name:
                title = f"{case.name}, {case.dtype} {'x'.join(map(str, case.shape))}"
                yield Task(title, lambda case=case: kernel_suite.measure(case, tools))  # type: ignore[misc]


def _measure(tasks: Sequence[Task], made: _Results, progress: Progress) -> None:
    for number, task in enumerate(tasks):
        progress(number, len(tasks), task.title)
        try:
            made.rows.append(task.measure())
        except KeyboardInterrupt:
            made.complete = False
            made.notes.append(f"interrupted after {number} of {len(tasks)} measurements")
            return
        except LbrxError as problem:
            made.notes.append(f"{task.title}: {problem}")
    progress(len(tasks), len(tasks), "")


def _memory(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """How the pool of the device was used during the run."""
    return {
        "pool_hits": after["pool_hits"] - before["pool_hits"],
        "pool_misses": after["pool_misses"] - before["pool_misses"],
        "bytes_high_water": after["bytes_high_water"],
        "bytes_cached": after["bytes_cached"],
        "bytes_heaps_idle": after["bytes_heaps_idle"],
    }
