"""Pictures of real runs: the kernels of an expression, a roofline plot and a timeline.

python docs/scripts/run_pictures.py

The times are of the machine that runs this, which the titles name. Its limits are measured anew.
"""

from __future__ import annotations

import datetime
import os
import tempfile
from html import escape
from pathlib import Path
from typing import Any

import lbrx

ASSETS = Path(__file__).parents[1] / "assets"
WIDTH, LEFT, RIGHT, ROW, TOP = 760, 190, 40, 22, 54  # of the timeline
STEP, BOX = 170, 56  # of the tree
ROUNDS = 12  # the plot shows the best
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#9c6b4e")


def expression(x: lbrx.Tensor, w: lbrx.Tensor) -> lbrx.Tensor:
    """The one that the pages explain."""
    return ((x - x.mean(axis=-1, keepdims=True)) @ w).gelu() * 0.5


def profiled(rounds: int) -> Any:
    """A profile of kernels of several kinds, which have run once before."""
    # Large enough not to fit caches, and to count as measurements of the machine's limits.
    x, w = lbrx.random.normal((4096, 4096)), lbrx.random.normal((4096, 512))
    lbrx.eval(x, w)

    def run() -> None:
        lbrx.eval(expression(x, w))
        lbrx.eval(x.softmax(axis=-1))
        lbrx.eval(x.gelu() * 0.5 + 1)

    run()
    with lbrx.profile() as seen:
        for _ in range(rounds):
            run()
    return seen


def tree(explained: Any) -> str:
    """The kernels as boxes from top to bottom, with their operations from left to right."""
    places: dict[int, tuple[float, float]] = {}
    parts: list[str] = []
    for row, kernel in enumerate(explained.kernels):
        y = 16 + row * (BOX + 60)
        saved = f", saves {kernel.saved / 1e3:.0f} kB of traffic" if kernel.saved else ""
        wide = len(kernel.steps) * (STEP + 30) + 10
        parts.append(
            f'<rect x="16" y="{y}" width="{max(wide, 420)}" height="{BOX + 30}" rx="8" '
            f'fill="{COLOURS[row % len(COLOURS)]}22" stroke="{COLOURS[row % len(COLOURS)]}"/>'
        )
        right = 16 + max(wide, 420) - 12
        parts.append(_text(right, y + 20, f"kernel {row + 1}: {kernel.name}{saved}", 12, "end"))
        for column, step in enumerate(kernel.steps):
            x = 28 + column * (STEP + 30)
            places[step.number] = x, y + 30
            box = f'x="{x}" y="{y + 30}" width="{STEP}" height="{BOX - 10}"'
            parts.append(f'<rect {box} rx="5" fill="#fff" stroke="#888"/>')
            parts.append(_text(x + STEP / 2, y + 49, step.name, 13, "middle"))
            parts.append(_text(x + STEP / 2, y + 66, step.result, 10, "middle"))
    for kernel in explained.kernels:
        for step in kernel.steps:
            parts += [_arrow(places[below], places[step.number]) for below in step.sources]
    width = 40 + max(len(k.steps) for k in explained.kernels) * (STEP + 30)
    return _svg(max(width, 470), len(explained.kernels) * (BOX + 60) + 10, parts)


def _arrow(source: tuple[float, float], target: tuple[float, float]) -> str:
    (x0, y0), (x1, y1) = source, target
    if y0 == y1:
        x0, y0, x1, y1 = x0 + STEP, y0 + BOX / 2 - 5, x1, y1 + BOX / 2 - 5
        line = f"M{x0:g} {y0:g}H{x1 - 6:g}"
        head = f"M{x1:g} {y1:g}l-7 -4v8z"
    else:
        x0, y0, x1 = x0 + STEP / 2, y0 + BOX - 10, x1 + STEP / 2
        middle = (y0 + y1) / 2
        line = f"M{x0:g} {y0:g}C{x0:g} {middle:g} {x1:g} {middle:g} {x1:g} {y1 - 6:g}"
        head = f"M{x1:g} {y1:g}l-4 -7h8z"
    return f'<path d="{line}" fill="none" stroke="#444"/><path d="{head}" fill="#444"/>'


def _svg(width: int, height: int, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" fill="#222">'
    )
    back = '<rect width="100%" height="100%" rx="6" fill="white"/>'
    return "\n".join([head, back, *parts, "</svg>", ""])


def timeline(records: list[Any], device: str) -> str:
    """Kernels over time, a row for each kernel."""
    names = list(dict.fromkeys(f"{r.kernel}:{r.variant}" for r in records))
    begin = min(r.start for r in records)
    length = max(r.start + r.time for r in records) - begin
    scale = (WIDTH - LEFT - RIGHT) / length
    height = TOP + ROW * len(names) + 40
    date = datetime.date.today().isoformat()
    parts = [_text(14, 22, f"{device}, {date}: kernels of a run over time", 13)]
    for row, name in enumerate(names):
        y = TOP + row * ROW
        parts.append(_text(LEFT - 8, y + 15, name, 11, "end"))
        parts.append(f'<path d="M{LEFT} {y + ROW - 1}H{WIDTH - RIGHT}" stroke="#ddd"/>')
    for record in records:
        row = names.index(f"{record.kernel}:{record.variant}")
        x = LEFT + (record.start - begin) * scale
        wide = max(record.time * scale, 1)
        colour = COLOURS[row % len(COLOURS)]
        box = f'x="{x:.1f}" y="{TOP + row * ROW + 3}" width="{wide:.1f}" height="{ROW - 7}"'
        parts.append(f'<rect {box} rx="2" fill="{colour}"/>')
    for tick in range(5):
        x = LEFT + (WIDTH - LEFT - RIGHT) * tick / 4
        parts.append(_text(x, height - 14, f"{length * tick / 4 * 1e3:.2f} ms", 11, "middle"))
    return _svg(WIDTH, height, parts)


def _text(x: float, y: float, text: str, size: int, anchor: str = "start") -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}>{escape(text)}</text>"


def main() -> None:
    explained = lbrx.explain(expression(lbrx.ones((256, 1024)), lbrx.ones((1024, 1024))))
    (ASSETS / "fusion_tree.svg").write_text(tree(explained), "utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LBRX_CACHE"] = folder  # where measured limits would be found
        profiled(ROUNDS).save_plot(ASSETS / "roofline.svg")
    picture = timeline(profiled(1).records, lbrx.metal.devices()[0].name)
    (ASSETS / "timeline.svg").write_text(picture, "utf-8")


if __name__ == "__main__":
    main()
