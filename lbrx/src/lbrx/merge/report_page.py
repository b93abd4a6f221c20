"""The report of a merge as one HTML file that needs nothing else: no scripts, no other hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lbrx.merge.svg_plots import Line, heat_map, line_plot

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
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1.5rem; }
figure { margin: 0; overflow-x: auto; } svg { width: 100%; height: auto; }
.tick { fill: var(--soft); font-size: 11px; } .mid { text-anchor: middle; }
.end { text-anchor: end; } .grid { stroke: var(--rule); } .cell { fill: var(--cell); }
.line { fill: none; stroke-width: 2; } .legend { display: flex; flex-wrap: wrap; gap: .3rem 1rem; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
table { border-collapse: collapse; font-size: 13px; } .wide { overflow-x: auto; }
th, td { border-bottom: 1px solid var(--rule); padding: .25rem .6rem; text-align: right;
  white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
pre { background: color-mix(in srgb, var(--rule) 40%, transparent); padding: 1rem;
  overflow-x: auto; }
"""
_COLOURS = "".join(
    f"path.c{i} {{ stroke: var(--c{i}); }} circle.c{i} {{ fill: var(--c{i}); }} "
    f"i.c{i} {{ background: var(--c{i}); }}\n"
    for i in range(8)
)

Numbers = Mapping[str, Any]


def page(report: Numbers) -> str:
    """HTML of the content of merge-report.json."""
    title = escape(f"Merge report: {report['title']}")
    parts = [
        f"<h1>{title}</h1>",
        _facts(report),
        _plots(report),
        _models(report),
        _tensors(report),
        f"<h2>Configuration</h2><pre>{escape(report['configuration'])}</pre>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}{_COLOURS}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _facts(report: Numbers) -> str:
    total = report["total"]
    facts = [
        ("merged tensors", f"{len(report['tensors']):,}"),
        ("parameters", f"{total['values']:,}"),
        ("sign conflicts", _percent(total.get("sign_conflicts"))),
        ("density kept", _percent(total.get("density"))),
        ("base model", report["base"]),
    ]
    items = [
        f"<li><b>{escape(str(value))}</b><span>{name}</span></li>"
        for name, value in facts
        if value is not None
    ]
    return f'<ul class="facts">{"".join(items)}</ul>'


def _plots(report: Numbers) -> str:
    layers = report["layers"]
    if not layers:
        return ""
    xs = [one["layer"] for one in layers]
    change = report["base"] is not None
    cosine, norm = ("change_cosine", "change_norm") if change else ("cosine", "norm")
    of = "of the change from the base" if change else "of the weights"
    names = report["models"]
    cosines = [_of_parent(layers, i, cosine, name) for i, name in enumerate(names)]
    norms = [Line("merged", [one[norm] for one in layers])]
    norms += [_of_parent(layers, i, norm, name) for i, name in enumerate(names)]
    shares = [Line("sign conflicts", [one["sign_conflicts"] for one in layers])]
    if change:
        shares.append(Line("density kept", [one["density"] for one in layers]))
    figures = [
        line_plot(f"Cosine to each parent, {of}", "layer", xs, cosines),
        line_plot(f"Norm {of}", "layer", xs, norms),
        line_plot("Shares of elements", "layer", xs, shares),
        heat_map("Sign conflicts by kind of tensor", "layer", xs, _by_kind(report, xs)),
    ]
    return f'<h2>Layers</h2><div class="plots">{"".join(figures)}</div>'


def _of_parent(layers: Sequence[Numbers], index: int, key: str, label: str) -> Line:
    return Line(label, [one["parents"][index][key] for one in layers])


def _by_kind(report: Numbers, xs: Sequence[int]) -> list[Line]:
    rows: dict[str, dict[int, float]] = {}
    for one in report["tensors"]:
        if one["layer"] is not None:
            rows.setdefault(one["kind"], {})[one["layer"]] = one["sign_conflicts"]
    return [Line(kind, [row.get(x) for x in xs]) for kind, row in rows.items()]


def _models(report: Numbers) -> str:
    head = ("model", "norm", "cosine", "norm of the change", "cosine of the change")
    rows = [
        [
            report["models"][one["model"]],
            *map(_number, (one["norm"], one["cosine"], one["change_norm"], one["change_cosine"])),
        ]
        for one in report["total"]["parents"]
    ]
    if report["base"] is not None:
        total = report["total"]
        base = [f"{report['base']} (base)", _number(total["base_norm"])]
        rows.insert(0, [*base, _number(total["base_cosine"]), "", ""])
    return f"<h2>Models</h2>{_table(head, rows)}"


def _tensors(report: Numbers) -> str:
    names = report["models"]
    head = ["tensor", "shape", "method", "norm", "conflicts", "density"]
    head += [f"cosine to {name}" for name in names]
    rows = []
    for one in report["tensors"]:
        key = "cosine" if one["density"] is None else "change_cosine"
        cosines = {parent["model"]: parent[key] for parent in one["parents"]}
        shape = " x ".join(map(str, one["shape"]))
        facts = [one["name"], shape, one["method"], _number(one["norm"])]
        facts += [_percent(one["sign_conflicts"]), _percent(one["density"]) or ""]
        rows.append(facts + [_number(cosines.get(i)) for i in range(len(names))])
    note = "Cosines are those of the changes where there is a base."
    return f"<h2>Tensors</h2><p>{note}</p>{_table(head, rows)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    table = f"<table><thead>{row(head, 'th')}</thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
