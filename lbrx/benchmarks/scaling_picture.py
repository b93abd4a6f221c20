"""The picture of a scaling measurement: for each case, how many times faster than one thread.

python lbrx/benchmarks/scaling_picture.py scaling.json docs/assets/scaling.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

PANEL, GAP, COLUMNS = 190, 46, 3  # side of a plot, space around it
TOP = 40
COLOURS = {"lbrx": "#4269d0", "torch": "#ff725c", "OpenBLAS": "#3ca951", "triad": "#9498a0"}


def picture(record: dict[str, Any]) -> str:
    """All cases as small plots over the same numbers of threads."""
    names = list(dict.fromkeys(row["name"] for row in record["rows"]))
    lines = -(-len(names) // COLUMNS)
    width, height = COLUMNS * (PANEL + GAP) + GAP, TOP + lines * (PANEL + GAP) + GAP // 2
    title = f"{record['device']}, {record['date']}: speed over threads, lbrx on one thread is 1"
    parts = [text(GAP, 20, title, 13)]
    x = GAP
    for side, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="28" width="10" height="10" fill="{colour}"/>')
        parts.append(text(x + 14, 37, side, 11))
        x += 90
    for number, name in enumerate(names):
        rows = [row for row in record["rows"] if row["name"] == name]
        left = GAP + number % COLUMNS * (PANEL + GAP)
        top = TOP + GAP // 2 + number // COLUMNS * (PANEL + GAP)
        parts += panel(name, rows, left, top)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" fill="#222">'
    )
    return "\n".join(
        [head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""]
    )


def panel(name: str, rows: Sequence[dict[str, Any]], left: int, top: int) -> list[str]:
    """One case. Threads are equally spaced, since they double."""
    first = rows[0]["seconds"]["lbrx"]
    speeds = {
        side: [first / row["seconds"][side] for row in rows if side in row["seconds"]]
        for side in COLOURS
    }
    top_speed = max(max(values, default=0.0) for values in speeds.values())
    step = (PANEL - 20) / max(len(rows) - 1, 1)

    def place(number: int, speed: float) -> str:
        return (
            f"{left + number * step:.1f},{top + PANEL - 36 - speed / top_speed * (PANEL - 60):.1f}"
        )

    parts = [text(left, top + 10, name, 11)]
    bottom = top + PANEL - 36
    parts.append(f'<path d="M{left} {bottom}h{PANEL - 20}" stroke="#bbb"/>')
    parts.append(text(left - 4, top + 28, f"{top_speed:.0f}", 9, "end"))
    parts.append(text(left - 4, bottom, "0", 9, "end"))
    for number, row in enumerate(rows):
        parts.append(text(left + number * step, bottom + 12, str(row["threads"]), 9, "middle"))
    for side, values in speeds.items():
        if values:
            points = " ".join(place(number, speed) for number, speed in enumerate(values))
            line = f'fill="none" stroke="{COLOURS[side]}" stroke-width="2"'
            parts.append(f'<polyline points="{points}" {line}/>')
    return parts


def text(x: float, y: float, content: str, size: int, anchor: str = "start") -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}>{escape(content)}</text>"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(picture(json.loads(source.read_text("utf-8"))), "utf-8")
