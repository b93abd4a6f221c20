"""Runs the steps, each in a process of its own with a time limit, and puts the report together."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from lbrx.mac_report.privacy import cleaned, secrets_of_this_machine
from lbrx.mac_report.report import (
    Entry,
    Report,
    Status,
    StepResult,
    entries_of,
    shortened,
    to_json,
)
from lbrx.version import VERSION

OUTPUT_CHARACTERS = 4000  # of a failed step
INTERVAL = 5.0  # seconds between lines of progress
GRACE = 10.0  # seconds after its time until a step is killed; a step ends by itself before
Say = Callable[[str], None]


# Apple's debug layer and shader validation: without them misuse passes, or ends a kernel silently.
VALIDATED = {"MTL_DEBUG_LAYER": "1", "MTL_SHADER_VALIDATION": "1"}


@dataclass(frozen=True)
class Step:
    name: str
    title: str
    seconds: float  # it may take
    environment: Mapping[str, str] = field(default_factory=dict)


def command_of(step: Step, results: Path) -> list[str]:
    """The process of a step: it appends entries to the file `results`."""
    seconds = str(step.seconds)
    return [sys.executable, "-m", "lbrx.mac_report.steps", step.name, str(results), seconds]


def run_all(
    steps: Sequence[Step],
    say: Say,
    command: Callable[[Step, Path], list[str]] = command_of,
    earlier: Report | None = None,
    keep: Callable[[Report], object] = lambda report: None,
) -> Report:
    """Run all steps; a failure of one is a part of the report. What `earlier` has of them without
    a failure is taken from it. `keep` is called with the report after each step."""
    made: list[StepResult] = []
    for number, step in enumerate(steps, 1):
        known = earlier.step(step.name) if earlier is not None else None
        if known is not None and known.status is Status.OK:
            say(f"[{number}/{len(steps)}] {step.title}: as in the earlier report")
            made.append(known)
            continue
        say(f"[{number}/{len(steps)}] {step.title} (at most {step.seconds / 60:.1f} minutes)")
        result = _run(step, command, say)
        bad = sum(entry.status is Status.FAILED for entry in result.entries)
        counted = f"{len(result.entries)} entries, {bad} failed"
        say(f"    {result.status}, {counted}, {result.seconds:.0f} s")
        made.append(result)
        keep(_report(made))
    return _report(made)


def _report(made: Sequence[StepResult]) -> Report:
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Report(VERSION, day, tuple(made))


def _run(step: Step, command: Callable[[Step, Path], list[str]], say: Say) -> StepResult:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lbrx-report-") as folder:
        results, output = Path(folder) / "results", Path(folder) / "output"
        results.touch()
        progress = _Progress(results, say)
        try:
            with output.open("wb") as log:
                status, text = _wait(step, command(step, results), log, progress)
        except OSError as problem:
            status, text = Status.CRASHED, f"its process did not start: {problem}"
        entries = entries_of(results.read_text("utf-8", "replace").splitlines())
        said = output.read_text("utf-8", "replace") if output.exists() else ""
    if status is Status.OK and any(entry.status is Status.FAILED for entry in entries):
        status = Status.FAILED
    if status is not Status.OK:
        text = f"{text}\n{said[-OUTPUT_CHARACTERS:]}".strip()
    return StepResult(step.name, status, time.monotonic() - began, _short(entries), shortened(text))


def _short(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple(Entry(e.name, e.status, shortened(e.text), e.values) for e in entries)


class _Progress:
    """Says how far a step is, by the entries that it has written."""

    def __init__(self, results: Path, say: Say) -> None:
        self._results = results
        self._say = say
        self._count = 0

    def __call__(self) -> None:
        lines = self._results.read_text("utf-8", "replace").splitlines()
        if len(lines) > self._count:
            self._count = len(lines)
            known = entries_of(lines[-1:])
            self._say(f"    {len(lines)} done" + (f", last {known[0].name}" if known else ""))


def _wait(
    step: Step, command: Sequence[str], log: IO[bytes], progress: Callable[[], None]
) -> tuple[Status, str]:
    """Run a process with its output in the log."""
    seconds = step.seconds + GRACE
    end = time.monotonic() + seconds
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **step.environment},
        start_new_session=True,  # so that its own children end with it
    )
    try:
        while (code := process.poll()) is None and time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(INTERVAL, max(0.0, end - time.monotonic())))
            progress()
    finally:  # also after Ctrl-C
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code is None:
        return Status.TIMED_OUT, f"stopped after {seconds:.0f} s"
    if code < 0:
        return Status.CRASHED, f"ended by signal {-code} ({signal.Signals(-code).name})"
    return (Status.OK, "") if code == 0 else (Status.FAILED, f"ended with status {code}")


def save(report: Report, path: Path) -> None:
    """Write the report without what identifies a person or a machine."""
    data = cleaned(to_json(report), secrets_of_this_machine())
    path.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
