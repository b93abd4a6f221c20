"""Reports of profiles: tables, traces and plots."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from lbrx.memory.pool import PoolStatistics
    from lbrx.scheduler.profiler import Record
    from lbrx.scheduler.roofline import Roofline

WIDTH, HEIGHT = 760, 480  # of the plot
LEFT, RIGHT, TOP, BOTTOM = 90, 20, 60, 50  # its margins
CHARACTER = 6.5  # average width of a character of the plot's font
WIDE_TABLE = 140  # columns of a terminal that all columns of the table fit


def table(
    records: Sequence[Record], roofline: Roofline, width: int | None = None, note: str = ""
) -> str:
    """One row for each kernel, variant and shapes, in order of decreasing time, with a note below.
    A narrow terminal gets shapes below the kernel's name, and fewer columns."""
    width = width or _terminal()
    wide = width >= WIDE_TABLE
    total = sum(record.time for record in records) or 1.0
    details = ("shapes", "chosen", "grid") if wide else ()
    more = ("delay", "bytes", "flop/B") if wide else ("bytes",)
    date = f", measured {roofline.date}" if roofline.date else ""
    drawn = _table(_title(roofline) + date, ("kernel", *details), "runs", "time", "share", *more)
    drawn.add_column("roofline", justify="right", no_wrap=True)
    groups = _grouped(records)
    cached = any(_best(group).share(roofline) > 1 for group in groups)
    notes = ["Above 100% of the roofline: the data was in caches."] if cached else []
    drawn.caption = "\n".join([*notes, *([note] if note else [])]) or None
    for group in groups:
        best = _best(group)
        name = f"{best.kernel}:{best.variant}"
        grid = "x".join(map(str, best.grid))
        spent = sum(record.time for record in group)
        delay = _seconds(sum(record.delay for record in group) / len(group))
        nbytes, intensity = _count(best.nbytes, "B"), f"{best.intensity:.2f}"
        drawn.add_row(
            *((name, best.shapes, best.choice, grid) if wide else (_indented(name, best.shapes),)),
            *(str(len(group)), _seconds(spent), f"{spent / total:.0%}"),
            *((delay, nbytes, intensity) if wide else (nbytes,)),
            f"{best.share(roofline):.0%}",
        )
    return _rendered(drawn, width)


def modelled_table(records: Sequence[Record], roofline: Roofline, width: int | None = None) -> str:
    """The best time that the table of chips allows, for each kernel."""
    drawn = _table(_title(roofline), ("kernel",), "runs", "modelled time", "bound by")
    for group in _grouped(records):
        first = group[0]
        time = sum(roofline.time(r.nbytes, r.operations) for r in group)
        bound = "arithmetic" if first.intensity > roofline.ridge else "memory"
        name = _indented(f"{first.kernel}:{first.variant}", first.shapes)
        drawn.add_row(name, str(len(group)), _seconds(time), bound)
    return _rendered(drawn, width or _terminal())


def _title(roofline: Roofline) -> str:
    speeds = f"{_count(roofline.bandwidth, 'B/s')}, {_count(roofline.peak, 'FLOP/s')}"
    return f"{roofline.device}: {speeds}"


def _grouped(records: Iterable[Record]) -> list[list[Record]]:
    """Runs of the same kernel, variant and shapes. A run may consist of several commands."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        group = groups.setdefault((record.kernel, record.variant, record.shapes), [])
        last = group[-1] if group else None
        if last and record.scope == last.scope and record.part > last.part:
            group[-1] = _joined(last, record)
        else:
            group.append(record)
    return sorted(groups.values(), key=lambda group: -sum(record.time for record in group))


def _joined(first: Record, second: Record) -> Record:
    """Two commands of the same run as one."""
    return replace(
        first,
        time=first.time + second.time,
        nbytes=first.nbytes + second.nbytes,
        operations=first.operations + second.operations,
        part=second.part,
    )


def _best(group: Sequence[Record]) -> Record:
    """The fastest run, which table and plot compare with the roofline."""
    return min(group, key=lambda record: record.time)


def _terminal() -> int:
    return shutil.get_terminal_size().columns


def _indented(name: str, shapes: str) -> str:
    return f"{name}\n  {shapes}" if shapes else name


def _table(title: str, texts: Sequence[str], *numbers: str) -> Table:
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in texts:
        drawn.add_column(column, overflow="fold")
    for column in numbers:
        drawn.add_column(column, justify="right", no_wrap=True)
    return drawn


def _rendered(made: Table, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(made)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


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
    best = map(_best, _grouped(records))
    shown = [record for record in best if record.intensity and record.time]
    x0, x1 = _decades([record.intensity for record in shown] + [roofline.ridge])
    y0, y1 = _decades([record.operations / record.time for record in shown] + [roofline.peak])

    def place(intensity: float, speed: float) -> tuple[float, float]:
        x = (math.log10(intensity) - x0) / (x1 - x0)
        y = (math.log10(speed) - y0) / (y1 - y0)
        return LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)

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
        parts.append(_text(x, HEIGHT - BOTTOM + 18, f"1e{decade}", "middle"))
    for decade in range(y0, y1 + 1):
        _, y = place(10.0**x0, 10.0**decade)
        parts.append(_text(LEFT - 6, y + 4, _count(10.0**decade, "FLOP/s"), "end"))
    parts.append(_text(WIDTH / 2, HEIGHT - 12, "operations per byte", "middle"))
    for record in shown:
        x, y = place(record.intensity, record.operations / record.time)
        label = f"{record.kernel}:{record.variant} {record.share(roofline):.0%}"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#36c"/>')
        parts.append(_label(x, y + 4, label))
    return _picture(f"{roofline.device}: operations per second over operations per byte", parts)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.01))


def _label(x: float, y: float, text: str) -> str:
    """Text beside a point: on the side with more room, and no longer than that."""
    right = x < WIDTH / 2
    room = int(((WIDTH - x if right else x) - 12) / CHARACTER)
    if len(text) > room:  # the end, with the variant and the share, tells more than the middle
        text = f"{text[: room // 2]}…{text[len(text) - (room - room // 2 - 1) :]}"
    return _text(x + 7, y, text, "start") if right else _text(x - 7, y, text, "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(title: str, parts: Sequence[str]) -> str:
    frame = (
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - TOP - BOTTOM}" fill="none" stroke="#888"/>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">'
    )
    white = '<rect width="100%" height="100%" fill="white"/>'
    lines = textwrap.wrap(title, int((WIDTH - 2 * RIGHT) / CHARACTER))[:2]
    titles = [_text(RIGHT, 24 + 16 * i, line, "start") for i, line in enumerate(lines)]
    return "\n".join([head, white, *titles, frame, *parts, "</svg>", ""])


def save(path: str | Path, text: str) -> None:
    """Write to a temporary file, then rename it. The file's mode is that of the umask."""
    target = Path(path)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        aside = Path(folder) / "report"
        aside.write_text(text)
        os.replace(aside, target)


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
