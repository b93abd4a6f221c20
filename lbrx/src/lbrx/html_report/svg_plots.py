"""Line plots and heat maps as SVG text, coloured by the CSS of the page they are in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Values = Sequence[float | None]

_WIDTH, _HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 34
_TICKS = 5
_CELL = 18
COLOURS = 8
"""The page has the classes c0 to c7; further lines use them again."""


@dataclass(frozen=True)
class Line:
    """A named row of values; None leaves a gap."""

    label: str
    values: Values


def line_plot(title: str, axis: str, xs: Sequence[int], lines: Sequence[Line]) -> str:
    """Lines over a common axis of whole numbers, with a legend and a tooltip for each point."""
    known = [v for line in lines for v in line.values if v is not None]
    if not known:
        return ""
    low, high = _span(min(known), max(known))
    marks = [low + (high - low) * i / (_TICKS - 1) for i in range(_TICKS)]
    parts = [_tick(value, _y(value, low, high)) for value in marks]
    parts += [
        f'<text class="tick mid" x="{_x(x, xs):.1f}" y="{_HEIGHT - 16}">{x}</text>'
        for x in _thinned(xs)
    ]
    parts.append(
        f'<text class="tick mid" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 2}">'
        f"{escape(axis)}</text>"
    )
    for number, line in enumerate(lines):
        parts += _drawn(line, xs, low, high, number % COLOURS)
    return figure(title, svg(_WIDTH, _HEIGHT, parts, title), legend([line.label for line in lines]))


def legend(labels: Sequence[str]) -> str:
    """The labels beside their colours."""
    items = "".join(
        f'<span><i class="c{n % COLOURS}"></i>{escape(label)}</span>'
        for n, label in enumerate(labels)
    )
    return f'<div class="legend">{items}</div>'


def heat_map(title: str, axis: str, xs: Sequence[int], rows: Sequence[Line]) -> str:
    """Shares from 0 to 1 as cells, darker for larger ones relative to the largest."""
    known = [v for row in rows for v in row.values if v is not None]
    if not known:
        return ""
    top = max(known) or 1.0
    left = 8 + 7 * max(len(row.label) for row in rows)
    parts = []
    for number, row in enumerate(rows):
        y = number * _CELL
        parts.append(
            f'<text class="tick end" x="{left - 6}" y="{y + 13}">{escape(row.label)}</text>'
        )
        for i, value in enumerate(row.values):
            if value is None:
                continue
            label = f"{row.label}, {axis} {xs[i]}: {value:.1%}"
            parts.append(
                f'<rect class="cell" x="{left + i * _CELL}" y="{y}" width="{_CELL - 1}" '
                f'height="{_CELL - 1}" fill-opacity="{0.06 + 0.94 * value / top:.3f}">'
                f"<title>{escape(label)}</title></rect>"
            )
    bottom = len(rows) * _CELL
    for x in _thinned(xs):
        place = left + (xs.index(x) + 0.5) * _CELL
        parts.append(f'<text class="tick mid" x="{place}" y="{bottom + 14}">{x}</text>')
    width = left + len(xs) * _CELL
    return figure(title, svg(width, bottom + 20, parts, title), f"the darkest cell is {top:.1%}")


def figure(title: str, picture: str, below: str) -> str:
    """A picture as HTML, with a title above it and HTML below it."""
    return f"<figure><h3>{escape(title)}</h3>{picture}<figcaption>{below}</figcaption></figure>"


def svg(width: float, height: float, parts: Sequence[str], title: str) -> str:
    """A picture that is as wide as its place allows, and no wider than it was drawn."""
    inner = "".join(parts)
    size = f'viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px"'
    return f'<svg {size} role="img" aria-label="{escape(title)}">{inner}</svg>'


def _drawn(line: Line, xs: Sequence[int], low: float, high: float, colour: int) -> list[str]:
    """A path through the known values, and a point with its value as a tooltip at each."""
    path, points, pen = [], [], "M"
    for x, value in zip(xs, line.values, strict=True):
        if value is None:
            pen = "M"
            continue
        place = f"{_x(x, xs):.1f} {_y(value, low, high):.1f}"
        path.append(f"{pen}{place}")
        pen = "L"
        cx, cy = place.split()
        tip = escape(f"{line.label}, {x}: {value:.4g}")
        points.append(
            f'<circle class="c{colour}" cx="{cx}" cy="{cy}" r="3"><title>{tip}</title></circle>'
        )
    return [f'<path class="line c{colour}" d="{" ".join(path)}"/>', *points]


def _tick(value: float, y: float) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4:.1f}">{value:.3g}</text>'
    )


def _span(low: float, high: float) -> tuple[float, float]:
    """The range of an axis: the values' with a margin; from 0 if they are near it."""
    if 0 <= low < 0.5 * high:
        return 0.0, high * 1.05
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def _x(x: int, xs: Sequence[int]) -> float:
    first, last = xs[0], xs[-1]
    share = (x - first) / (last - first) if last > first else 0.5
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, low: float, high: float) -> float:
    return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)


def _thinned(xs: Sequence[int]) -> Sequence[int]:
    """At most about sixteen of the axis' numbers."""
    return xs[:: max(1, math.ceil(len(xs) / 16))]
