"""What a run leaves for people: a log of its steps as JSONL, and a report as one HTML file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from lbrx.html_report.document import document, facts
from lbrx.html_report.svg_plots import Line, line_plot
from lbrx.stored_json import parsed

LOG = "train-log.jsonl"
REPORT = "train-report.html"
MOST_POINTS = 400
"""Points of a curve: means of steps where there are more."""


class Log:
    """The lines of a run's log: of steps and of evaluations."""

    def __init__(self, folder: Path, step: int) -> None:
        """Go on with the log of a folder, without what is after a step."""
        self.path = folder / LOG
        self.lines = [line for line in _read(self.path) if line.get("step", 0) <= step]
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line) + "\n" for line in self.lines)
        own = self.path.with_suffix(".new")
        own.write_text(text, "utf-8")
        os.replace(own, self.path)
        self._file = self.path.open("a", encoding="utf-8", buffering=1)

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        self.lines.append(dict(line))
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _read(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; one that a killed run has left unfinished is dropped."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        try:
            value = parsed(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def page(
    title: str,
    known: Mapping[str, object | None],
    lines: Sequence[Mapping[str, Any]],
    samples: Sequence[tuple[str, str, str]],
    options: Mapping[str, Any],
) -> str:
    """The report. Samples are prompts with what the model said before and after."""
    steps = [line for line in lines if "loss" in line]
    checks = [line for line in lines if "valid_loss" in line]
    xs, losses = _thinned(steps, "loss")
    plots = [
        line_plot("Loss", "step", xs, [Line("training", losses)]),
        line_plot(
            "Loss of the validation data",
            "step",
            [line["step"] for line in checks],
            [Line("validation", [line["valid_loss"] for line in checks])],
        )
        if len(checks) > 1
        else "",
        *(
            line_plot(name, "step", xs, [Line(label, _thinned(steps, key)[1])])
            for name, label, key in (
                ("Learning rate", "rate", "rate"),
                ("Norm of the gradient", "norm", "norm"),
                ("Tokens a second", "tokens", "tokens_per_second"),
            )
        ),
    ]
    parts = [
        f"<h1>{escape(title)}</h1>",
        facts(known),
        f'<div class="plots">{"".join(plots)}</div>' if xs else "",
        _samples(samples),
        f"<h2>Options</h2><pre>{escape(json.dumps(dict(options), indent=2))}</pre>",
    ]
    return document(title, parts)


def _samples(samples: Sequence[tuple[str, str, str]]) -> str:
    if not samples:
        return ""
    parts = [
        f"<h3>{escape(prompt)}</h3><p>before</p><pre>{escape(before)}</pre>"
        f"<p>after</p><pre>{escape(after)}</pre>"
        for prompt, before, after in samples
    ]
    return f"<h2>Samples</h2>{''.join(parts)}"


def _thinned(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Steps and values, of means over as many steps as a picture shows."""
    width = max(-(-len(lines) // MOST_POINTS), 1)
    groups = [lines[i : i + width] for i in range(0, len(lines), width)]
    values = [sum(line[key] for line in group) / len(group) for group in groups]
    return [group[-1]["step"] for group in groups], values
