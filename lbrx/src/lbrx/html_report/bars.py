"""Bars and logarithmic scatter plots as SVG text, for measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from lbrx.html_report.svg_plots import COLOURS, figure, legend, svg

_WIDTH, _BAR, _GAP = 640, 12, 3
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 64, 16, 12, 40
_CHARACTER = 6.2  # average width of a character of the labels


@dataclass(frozen=True)
class Bar:
    """A labelled value; `colour` is one of the page's classes."""

    label: str
    value: float
    colour: int = 0


@dataclass(frozen=True)
class Point:
    """A place in a scatter plot; `group` is its entry of the legend."""

    label: str
    x: float
    y: float
    group: int = 0


def bar_plot(
    title: str, bars: Sequence[Bar], mark: float | None = None, groups: Sequence[str] = ()
) -> str:
    """Horizontal bars from 0, with a dashed line at `mark`. `groups` are the colours' labels."""
    if not bars:
        return ""
    left = _label_width(bars)
    top = max([bar.value for bar in bars] + ([mark] if mark else []))
    scale = (_WIDTH - left - 40) / (top or 1.0)
    parts = [_bar(n, bar, left, left, left + bar.value * scale) for n, bar in enumerate(bars)]
    if mark is not None:
        parts.append(_upright(left + mark * scale, len(bars)))
    return _bar_figure(title, parts, len(bars), legend(groups) if groups else "")


def ratio_plot(title: str, bars: Sequence[Bar], below: str = "") -> str:
    """Ratios as bars on a logarithmic scale, to both sides of a dashed line at 1."""
    if not bars:
        return ""
    left = _label_width(bars)
    logs = [math.log2(bar.value) for bar in bars]
    low, high = min(0.0, *logs), max(0.0, *logs)
    scale = (_WIDTH - left - 40) / max(high - low, 1e-9)
    middle = left - low * scale
    parts = [
        _bar(n, bar, left, *sorted((middle, left + (log - low) * scale)))
        for n, (bar, log) in enumerate(zip(bars, logs, strict=True))
    ]
    parts.append(_upright(middle, len(bars)))
    return _bar_figure(title, parts, len(bars), escape(below))


def _label_width(bars: Sequence[Bar]) -> float:
    return 10 + _CHARACTER * max(len(bar.label) for bar in bars)


def _bar(number: int, bar: Bar, left: float, start: float, end: float) -> str:
    """A bar with its label in front of all bars and its value behind it."""
    y = 4 + number * (_BAR + _GAP)
    text = f"{bar.value:.2f}"
    return (
        f'<text class="tick end" x="{left - 6:.1f}" y="{y + 10}">{escape(bar.label)}</text>'
        f'<rect class="c{bar.colour % COLOURS}" x="{start:.1f}" y="{y}" '
        f'width="{max(0.5, end - start):.1f}" height="{_BAR}">'
        f"<title>{escape(f'{bar.label}: {text}')}</title></rect>"
        f'<text class="tick" x="{end + 4:.1f}" y="{y + 10}">{text}</text>'
    )


def _upright(x: float, count: int) -> str:
    return f'<path class="roof" d="M{x:.1f} 0V{_bars_height(count)}"/>'


def _bars_height(count: int) -> int:
    return count * (_BAR + _GAP) + 8


def _bar_figure(title: str, parts: Sequence[str], count: int, below: str) -> str:
    return figure(title, svg(_WIDTH, _bars_height(count), parts, title), below)


def scatter(
    title: str,
    axes: tuple[str, str],
    points: Sequence[Point],
    groups: Sequence[str],
    roof: Sequence[tuple[float, float]] = (),
) -> str:
    """Points over two logarithmic axes, with a dashed line through the points of `roof`."""
    if not points:
        return ""
    x0, x1 = _decades([p.x for p in points] + [x for x, _ in roof])
    y0, y1 = _decades([p.y for p in points] + [y for _, y in roof])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x0) / (x1 - x0)
        up = (math.log10(y) - y0) / (y1 - y0)
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [_tick(*place(10.0**n, 10.0**y0), f"1e{n}", across=True) for n in range(x0, x1 + 1)]
    parts += [_tick(*place(10.0**x0, 10.0**n), f"1e{n}", across=False) for n in range(y0, y1 + 1)]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text class="tick mid" x="{middle}" y="{_HEIGHT - 6}">{escape(axes[0])}</text>'
        f'<text class="tick" x="{_LEFT + 6}" y="{_TOP + 10}">{escape(axes[1])}</text>'
    )
    if roof:
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in (place(*at) for at in roof))
        parts.append(f'<path class="roof" d="M{path}"/>')
    for point in points:
        x, y = place(point.x, point.y)
        parts.append(
            f'<circle class="c{point.group % COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="4">'
            f"<title>{escape(point.label)}</title></circle>"
        )
    return figure(title, svg(_WIDTH, _HEIGHT, parts, title), legend(groups))


def _tick(x: float, y: float, text: str, across: bool) -> str:
    if across:
        line = f'<path class="grid" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
        return f'{line}<text class="tick mid" x="{x:.1f}" y="{y + 16:.1f}">{text}</text>'
    line = f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
    return f'{line}<text class="tick end" x="{x - 6:.1f}" y="{y + 4:.1f}">{text}</text>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)
