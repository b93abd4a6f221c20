"""A whole run: the suites one after another, until they end or the user interrupts."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lbrx.bench import kernel_cases, kernel_suite, machine, scaling
from lbrx.bench.ceilings import CeilingMaker, device_threads
from lbrx.bench.energy import find_meter
from lbrx.bench.file_suites import FileSuites
from lbrx.bench.kernel_suite import Tools
from lbrx.bench.model_suite import ModelSuite
from lbrx.bench.peers import find
from lbrx.bench.report import Report, Row
from lbrx.bench.timing import Effort
from lbrx.errors import LbrxError
from lbrx.metal import context, stats

SUITES = "kernels", "models", "formats", "merge"
BUSY = 0.5  # load for each core above which a report says that the machine was busy
SHORT, FULL = Effort(rounds=7, seconds=1.0), Effort(rounds=15, seconds=5.0)


@dataclass
class Results:
    """What has been measured so far."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    scaling: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    complete: bool = True


@dataclass(frozen=True)
class Task:
    """A measurement that has not been made yet; it adds to the results."""

    title: str
    measure: Callable[[Results], None]


@dataclass(frozen=True)
class Options:
    suites: Sequence[str] = SUITES
    short: bool = False
    peers: Sequence[str] = ("numpy",)
    only: Sequence[str] = ()
    """Parts of the names of the cases that are measured; all if there are none."""

    def wants(self, name: str) -> bool:
        return not self.only or any(part in name for part in self.only)


Progress = Callable[[int, int, str], None]
"""Called with the number of finished tasks, of all tasks, and the title of the next one."""


def run_suites(options: Options, progress: Progress) -> Report:
    """Measure. Ctrl-C ends it, and the report has what was measured until then. A case that fails
    becomes a note of the report, and the others go on."""
    gpu = context()
    threads = device_threads(gpu)
    peers, missing = find(options.peers, threads, gpu.info.simd_hardware)
    ceilings = CeilingMaker(gpu, threads)
    effort = SHORT if options.short else FULL
    tools = Tools(peers, ceilings, effort, find_meter())
    facts = machine.describe(gpu, threads)
    before, start = stats(), time.perf_counter()
    made = Results(notes=[f"{name} is not installed" for name in missing])
    if facts["load"] > BUSY * (os.cpu_count() or 1):
        busy = f"other work ran on the machine (a load of {facts['load']} at the start)"
        made.notes.append(f"{busy}: times are longer than on a quiet machine")
    try:
        with tempfile.TemporaryDirectory() as folder:
            tasks = list(_tasks(options, tools, Path(folder)))
            if not tasks:
                wanted, suites = ", ".join(options.only), ", ".join(options.suites)
                raise LbrxError(f"no case of {suites} has {wanted} in its name: give another part")
            _measure(tasks, made, progress)
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
        memory=_memory(before, stats()) | made.memory,
        scaling=made.scaling,
    )


def _tasks(options: Options, tools: Tools, folder: Path) -> Iterator[Task]:
    if "kernels" in options.suites:
        for case in kernel_cases.cases(options.short):
            if options.wants(case.name):
                title = f"{case.name}, {case.dtype} {'x'.join(map(str, case.shape))}"
                yield Task(title, _adding(partial(kernel_suite.measure, case, tools)))
    if "models" in options.suites:
        yield from _model_tasks(options, tools, folder)
    files = FileSuites(folder, options.short)
    if "formats" in options.suites:
        if options.wants("open"):
            yield Task("open a GGUF", _adding(files.opening))
        if options.wants("copy"):
            yield Task("copy safetensors", _adding(files.copying))
        for scheme in filter(options.wants, files.conversions):
            yield Task(f"convert to {scheme}", _adding(partial(files.converting, scheme)))
    if "merge" in options.suites:
        for method in filter(options.wants, files.methods):
            yield Task(f"merge by {method}", _adding(partial(files.merging, method)))
    if _scales(options):
        yield from _scaling_tasks(context().info.cores or 1)


def _scales(options: Options) -> bool:
    """Whether threads are compared: where they run kernels, and not in the short form of one
    suite."""
    info = context().info
    whole = len(options.suites) > 1 or not options.short
    processor = info.soft and not info.simd_hardware
    return processor and whole and "kernels" in options.suites and not options.only


def _adding(measure: Callable[[], Row]) -> Callable[[Results], None]:
    return lambda made: made.rows.append(measure())


def _model_tasks(options: Options, tools: Tools, folder: Path) -> Iterator[Task]:
    suite = ModelSuite(folder, tools, options.short, "llama.cpp" in options.peers)

    def measure(length: int, made: Results) -> None:
        made.rows += suite.measure(length)
        made.memory |= suite.memory()

    for length in suite.contexts:
        if options.wants("model"):
            yield Task(f"language model, {length} tokens", partial(measure, length))


def _scaling_tasks(cores: int) -> Iterator[Task]:
    def measure(count: int, made: Results) -> None:
        made.scaling += scaling.measure(count)

    for count in scaling.counts(cores):
        yield Task(f"{count} threads", partial(measure, count))


def _measure(tasks: Sequence[Task], made: Results, progress: Progress) -> None:
    for number, task in enumerate(tasks):
        progress(number, len(tasks), task.title)
        try:
            task.measure(made)
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
