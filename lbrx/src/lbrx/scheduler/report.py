"""Reports of profiles: tables, traces and plots."""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from lbrx.memory.pool import PoolStatistics
    from lbrx.scheduler.profiler import Record
    from lbrx.scheduler.roofline import Roofline

WIDTH, HEIGHT, MARGIN = 760, 480, 60  # of the plot


def table(records: Sequence[Record], roofline: Roofline) -> str:
    """One row for each kernel, variant and shapes, in order of decreasing time."""
    total = sum(record.time for record in records) or 1.0
    made = _table(
        f"{_title(roofline)}, measured",
        *("kernel", "shapes", "chosen", "grid", "runs", "time"),
        *("share", "delay", "bytes", "flop/B", "roofline"),
    )
    for group in _grouped(records):
        first = group[0]
        best = min(group, key=lambda record: record.time)
        spent = sum(record.time for record in group)
        made.add_row(
            f"{first.kernel}:{first.variant}",
            first.shapes,
            first.choice,
            "x".join(map(str, first.grid)),
            str(len(group)),
            _seconds(spent),
            f"{spent / total:.0%}",
            _seconds(sum(record.delay for record in group) / len(group)),
            _count(first.nbytes, "B"),
            f"{first.intensity:.2f}",
            f"{best.share(roofline):.0%}",
        )
    return _rendered(made)


def modelled_table(records: Sequence[Record], roofline: Roofline) -> str:
    """The best time that the table of chips allows, for each kernel."""
    made = _table(_title(roofline), "kernel", "shapes", "runs", "modelled time", "bound by")
    for group in _grouped(records):
        first = group[0]
        time = sum(roofline.time(r.nbytes, r.operations) for r in group)
        bound = "arithmetic" if first.intensity > roofline.ridge else "memory"
        row = (f"{first.kernel}:{first.variant}", first.shapes, str(len(group)))
        made.add_row(*row, _seconds(time), bound)
    return _rendered(made)


def _title(roofline: Roofline) -> str:
    speeds = f"{_count(roofline.bandwidth, 'B/s')}, {_count(roofline.peak, 'FLOP/s')}"
    return f"{roofline.device}: {speeds}"


def _grouped(records: Iterable[Record]) -> list[list[Record]]:
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.kernel, record.variant, record.shapes), []).append(record)
    return sorted(groups.values(), key=lambda group: -sum(record.time for record in group))


def _table(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i < 3 else "right", overflow="fold")
    return made


def _rendered(made: Table) -> str:
    out = io.StringIO()
    Console(file=out, width=180).print(made)
    return out.getvalue()


def trace(records: Sequence[Record], device: str, pool: PoolStatistics) -> str:
    """Events in Chrome's tracing format, in microseconds: rows for the device and for memory."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": device}},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "kernels"}},
    ]
    for record in records:
        begin = record.start * 1e6
        arguments = {
            "variant": record.variant,
            "shapes": record.shapes,
            "chosen": record.choice,
            "grid": list(record.grid),
            "bytes": record.nbytes,
            "operations": record.operations,
            "delay us": record.delay * 1e6,
        }
        common = {"pid": 1, "tid": 1, "ts": begin}
        duration = {"dur": record.time * 1e6, "args": arguments}
        events.append({"ph": "X", "name": record.kernel, "cat": "kernel", **common, **duration})
        memory = {"args": {"bytes in use": record.memory, "bytes cached": record.cached}}
        events.append({"ph": "C", "name": "pool", "pid": 1, "ts": begin, **memory})
    other = {f"pool {name}": value for name, value in asdict(pool).items()}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other})


def plot(records: Sequence[Record], roofline: Roofline) -> str:
    """Operations per second over operations per byte, both logarithmic, with the roofline."""
    shown = [group[0] for group in _grouped(records) if group[0].intensity and group[0].time]
    intensities = [record.intensity for record in shown] + [roofline.ridge]
    speeds = [record.operations / record.time for record in shown] + [roofline.peak]
    x0, x1 = _decades(intensities)
    y0, y1 = _decades(speeds)

    def place(intensity: float, speed: float) -> tuple[float, float]:
        x = (math.log10(intensity) - x0) / (x1 - x0)
        y = (math.log10(speed) - y0) / (y1 - y0)
        return MARGIN + x * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN - y * (HEIGHT - 2 * MARGIN)

    low = max(10**x0, 10**y0 / roofline.bandwidth)
    roof = [
        (low, low * roofline.bandwidth),
        (roofline.ridge, roofline.peak),
        (10**x1, roofline.peak),
    ]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*at) for at in roof))
    parts = [f'<polyline points="{points}" fill="none" stroke="#c33" stroke-width="2"/>']
    for decade in range(x0, x1 + 1):
        x, _ = place(10.0**decade, 10.0**y0)
        parts.append(_text(x, HEIGHT - MARGIN + 18, f"1e{decade}", "middle"))
    for decade in range(y0, y1 + 1):
        _, y = place(10.0**x0, 10.0**decade)
        parts.append(_text(MARGIN - 6, y + 4, _count(10.0**decade, "FLOP/s"), "end"))
    for record in shown:
        x, y = place(record.intensity, record.operations / record.time)
        label = f"{record.kernel}:{record.variant} {record.share(roofline):.0%}"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#36c"/>')
        parts.append(_text(x + 7, y + 4, label, "start"))
    title = f"{roofline.device}: operations a second over operations a byte"
    return _picture(title, parts)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.01))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(title: str, parts: Sequence[str]) -> str:
    frame = (
        f'<rect x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}" '
        f'height="{HEIGHT - 2 * MARGIN}" fill="none" stroke="#888"/>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">'
    )
    white = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, white, _text(MARGIN, 30, title, "start"), frame, *parts, "</svg>", ""])


def save(path: str | Path, text: str) -> None:
    """Write to a temporary file, then rename it."""
    target = Path(path)
    with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, target)


def _seconds(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def _count(value: float, unit: str) -> str:
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
