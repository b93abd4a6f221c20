"""The report of a merge as one HTML file that needs nothing else: no scripts, no other hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lbrx.html_report.document import document, facts, table
from lbrx.html_report.svg_plots import Line, heat_map, line_plot

Numbers = Mapping[str, Any]


def page(report: Numbers) -> str:
    """HTML of the content of merge-report.json."""
    title = f"Merge report: {report['title']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        _facts(report),
        _plots(report),
        _models(report),
        _tensors(report),
        f"<h2>Configuration</h2><pre>{escape(report['configuration'])}</pre>",
    ]
    return document(title, parts)


def _facts(report: Numbers) -> str:
    total = report["total"]
    return facts(
        {
            "merged tensors": f"{len(report['tensors']):,}",
            "parameters": f"{total['values']:,}",
            "sign conflicts": _percent(total.get("sign_conflicts")),
            "density kept": _percent(total.get("density")),
            "base model": report["base"],
        }
    )


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
    return f"<h2>Models</h2>{table(head, rows)}"


def _tensors(report: Numbers) -> str:
    names = report["models"]
    head = ["tensor", "shape", "method", "norm", "conflicts", "density"]
    head += [f"cosine to {name}" for name in names]
    rows = []
    for one in report["tensors"]:
        key = "cosine" if one["density"] is None else "change_cosine"
        cosines = {parent["model"]: parent[key] for parent in one["parents"]}
        shape = " x ".join(map(str, one["shape"]))
        cells = [one["name"], shape, one["method"], _number(one["norm"])]
        cells += [_percent(one["sign_conflicts"]), _percent(one["density"]) or ""]
        rows.append(cells + [_number(cosines.get(i)) for i in range(len(names))])
    note = "Cosines are those of the changes where there is a base."
    return f"<h2>Tensors</h2><p>{note}</p>{table(head, rows)}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
