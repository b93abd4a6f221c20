"""The report as data, and as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from lbrx import stored_json
from lbrx.errors import FormatError

FORMAT = 1
MAX_BYTES = 64 << 20  # of a file that the reader accepts
MAX_TEXT = 20_000  # characters of a text that a report keeps


class Status(StrEnum):
    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"
    CRASHED = "crashed"
    """The process of a step ended by a signal, or without a result."""
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Entry:
    """One thing that a step looked at."""

    name: str
    status: Status
    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)  # numbers and short texts


@dataclass(frozen=True)
class StepResult:
    name: str
    status: Status
    seconds: float
    entries: tuple[Entry, ...] = ()
    text: str = ""  # why it failed, or the end of its output


@dataclass(frozen=True)
class Report:
    version: str  # of lbrx
    day: str  # in UTC
    steps: tuple[StepResult, ...]

    def step(self, name: str) -> StepResult | None:
        return next((step for step in self.steps if step.name == name), None)


def shortened(text: str, limit: int = MAX_TEXT) -> str:
    """Start and end of a text that is too long."""
    if len(text) <= limit:
        return text
    left_out = f"\n... {len(text) - limit} characters left out ...\n"
    return text[: limit // 2] + left_out + text[-limit // 2 :]


def to_line(entry: Entry) -> str:
    return json.dumps(asdict(entry))


def entries_of(lines: Iterable[str]) -> list[Entry]:
    """Entries that a step wrote, one on each line; a line that is cut short is left out."""
    found = []
    for line in lines:
        try:
            found.append(_entry(stored_json.parsed(line)))
        except (ValueError, TypeError, KeyError):
            continue
    return found


def to_json(report: Report) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(report)}


def load(path: Path) -> Report:
    """Read a report. Raises FormatError if it is not one."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FormatError(f"{path} is larger than any report: give a report's JSON file")
        data = stored_json.parsed(path.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise FormatError(f"{path} has format {data['format']!r}: this lbrx reads {FORMAT}")
        return Report(
            version=str(data["version"]),
            day=str(data["day"]),
            steps=tuple(_step(step) for step in data["steps"]),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
        raise FormatError(f"{path} is not a report of lbrx: {problem!r}") from problem


def _step(data: dict[str, Any]) -> StepResult:
    return StepResult(
        name=str(data["name"]),
        status=Status(data["status"]),
        seconds=float(data["seconds"]),
        entries=tuple(_entry(entry) for entry in data["entries"]),
        text=str(data["text"]),
    )


def _entry(data: dict[str, Any]) -> Entry:
    return Entry(str(data["name"]), Status(data["status"]), str(data["text"]), dict(data["values"]))
