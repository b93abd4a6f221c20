"""The process of one step: python -m lbrx.mac_report.steps NAME RESULTS SECONDS.

A step writes each entry to the file as soon as it has it, so that a crash costs only the rest.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from lbrx.mac_report.report import Entry, Status, to_line


class Recorder:
    """Takes the entries of a step, and knows how long it may go on."""

    def __init__(self, results: Path, seconds: float) -> None:
        self._file = results
        self._end = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        return self._end - time.monotonic()

    def add(self, name: str, status: Status, text: str = "", /, **values: Any) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(to_line(Entry(name, status, text, values)) + "\n")

    @contextmanager
    def trying(self, name: str) -> Iterator[dict[str, Any]]:
        """Records an entry with the values that the block puts into the dictionary, or with the
        exception that it raised. Without time left the block must not be entered: see `skips`."""
        values: dict[str, Any] = {}
        try:
            yield values
        except Exception as problem:  # whatever a Mac may raise is what the report is for
            text = "".join(traceback.format_exception(problem)[-6:])
            self.add(name, Status.FAILED, text, **values)
        else:
            self.add(name, Status.OK, **values)

    def skips(self, name: str) -> bool:
        """Whether the time is over; records that this is skipped."""
        if self.seconds_left > 0:
            return False
        self.add(name, Status.SKIPPED, "no time was left")
        return True


def _run(module: str, function: str, record: Recorder) -> None:
    """Imported when it runs: an import that fails is the failure of one step."""
    getattr(import_module(f"lbrx.mac_report.{module}"), function)(record)


STEPS: dict[str, Callable[[Recorder], None]] = {
    "system": partial(_run, "system", "record_system"),
    "shaders": partial(_run, "shaders", "record_shaders"),
    "results": partial(_run, "results", "record_results"),
    "assumptions": partial(_run, "assumptions", "record_assumptions"),
    # Under Metal's own validation, which ends the process: running.py sets it.
    "validation": partial(_run, "results", "record_results"),
    "tests": partial(_run, "suite", "record_tests"),
    "speed": partial(_run, "speed", "record_speed"),
    "costs": partial(_run, "costs", "record_costs"),
    "calibration": partial(_run, "measures", "record_calibration"),
    "model": partial(_run, "measures", "record_model"),
    "neural engine": partial(_run, "neural_engine", "record_neural_engine"),
}


def main(name: str, results: str, seconds: str) -> None:
    STEPS[name](Recorder(Path(results), float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
