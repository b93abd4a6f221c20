"""The frame of a report: one HTML file that needs nothing else, neither scripts nor other hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

_STYLE = """
:root { --paper: #fff; --ink: #1b1f24; --soft: #5b6673; --rule: #d9dee4; --cell: #b3402a;
  --c0: #1f6fb4; --c1: #c4571b; --c2: #2c8a57; --c3: #8a3fa0; --c4: #a58400; --c5: #c2336b;
  --c6: #12828c; --c7: #6b6b6b; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e6e9ec; --soft: #9aa5b1;
  --rule: #333a42; --cell: #ff8a6b; --c0: #6cb2f0; --c1: #f0965c; --c2: #6fd09a; --c3: #cf8fe3;
  --c4: #e0c14a; --c5: #f07fab; --c6: #5fd0da; --c7: #b0b0b0; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
.facts { display: flex; flex-wrap: wrap; gap: 1rem 2rem; padding: 0; list-style: none; }
.facts b { display: block; font-size: 1.3rem; } .facts span, figcaption { color: var(--soft); }
.plots { display: grid; gap: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); }
figure { margin: 0; overflow-x: auto; } svg { width: 100%; height: auto; }
.tick { fill: var(--soft); font-size: 11px; } .mid { text-anchor: middle; }
.end { text-anchor: end; } .grid { stroke: var(--rule); } .cell { fill: var(--cell); }
.roof { fill: none; stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; } a { color: var(--c0); }
.line { fill: none; stroke-width: 2; } .legend { display: flex; flex-wrap: wrap; gap: .3rem 1rem; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
table { border-collapse: collapse; font-size: 13px; } .wide { overflow-x: auto; }
th, td { border-bottom: 1px solid var(--rule); padding: .25rem .6rem; text-align: right;
  white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
pre { background: color-mix(in srgb, var(--rule) 40%, transparent); padding: 1rem;
  overflow-x: auto; }
"""
_COLOURS = "".join(
    f"path.c{i} {{ stroke: var(--c{i}); }} "
    f"circle.c{i}, rect.c{i} {{ fill: var(--c{i}); }} "
    f"i.c{i} {{ background: var(--c{i}); }}\n"
    for i in range(8)
)


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page in light or dark colours, as the reader's system asks."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_COLOURS}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def facts(known: Mapping[str, object | None]) -> str:
    """Large figures with a caption below each; None is left out."""
    items = [
        f"<li><b>{escape(str(value))}</b><span>{escape(name)}</span></li>"
        for name, value in known.items()
        if value is not None
    ]
    return f'<ul class="facts">{"".join(items)}</ul>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls sideways where the page is narrow."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    content = f"<table><thead>{row(head, 'th')}</thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{content}</div>'
