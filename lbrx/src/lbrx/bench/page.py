"""The report as one HTML file, with a section for each question that it answers."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from html import escape

from lbrx.bench.comparison import Change, Compared
from lbrx.bench.markdown import cells, duration, peer_names
from lbrx.bench.report import Report, Row
from lbrx.html_report.bars import Bar, Point, bar_plot, ratio_plot, scatter
from lbrx.html_report.document import document, facts, table
from lbrx.html_report.svg_plots import Line, line_plot
from lbrx.scheduler.profiler import chip_roofline

CHIPS = "M1", "M2 Pro", "M3 Max", "M4 Max"
_HOW = (
    "Each time is the median of several rounds in which lbrx, its CPU device, the peers and the "
    "ceilings take turns; ± is half of the interquartile range. A time covers one call from "
    "Python until the result is ready, without the first call, which compiles. Inputs are the same "
    "and lie in the memory of each library before the time starts. PyTorch, TensorFlow and "
    "llama.cpp get as many threads as lbrx has; numpy's BLAS, JAX and MLX take all cores. The "
    "ceiling of a row is the least time in which a copy moves its bytes or a matrix product "
    "computes its operations, measured beside it at the size of its working set; inputs count as "
    "read once and results as written once."
)
_SOFT = (
    "The Metal device of this run is softmetal, which runs Metal kernels on the processor. No "
    "figure of this report comes from Apple hardware."
)


def page(report: Report, compared: Sequence[Compared] = ()) -> str:
    """HTML of a report, with what changed since an earlier one if that is given."""
    kernels = [row for row in report.rows if row.suite == "kernels"]
    sections = {
        "Changes": _changes(compared),
        "Performance": _performance(kernels),
        "Peers": _peers(report),
        "Correctness": _correctness(report.rows),
        "Memory": _memory(report),
        "Scaling": _scaling(report),
        "Energy": _energy(report.rows),
        "Models, formats and merging": _others(report),
        "Apple chips (modelled)": _modelled(kernels),
        "All measurements": _all(report),
        "Machine": _machine(report),
    }
    shown = {name: text for name, text in sections.items() if text}
    links = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in shown)
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    parts = [
        "<h1>lbrx benchmark</h1>",
        _summary(report),
        f"<nav>{links}</nav>",
        f"<p>{escape(_HOW)}</p>",
        f"<p>{escape(_SOFT)}</p>" if report.machine.get("software_metal") else "",
        f"<ul>{notes}</ul>" if notes else "",
    ]
    parts += [f'<h2 id="{_anchor(name)}">{escape(name)}</h2>{text}' for name, text in shown.items()]
    return document("lbrx benchmark", parts)


def _anchor(name: str) -> str:
    return re.sub("[^a-z]+", "-", name.lower()).strip("-")


def _title(row: Row) -> str:
    return f"{row.name}, {row.dtype} {'x'.join(map(str, row.shape))}"


def _summary(report: Report) -> str:
    shares = [row.share_of_ceiling for row in report.rows if row.share_of_ceiling is not None]
    judged = [row.right for row in report.rows if row.right is not None]
    known: dict[str, object | None] = {
        "device": report.machine.get("device"),
        "measurements": len(report.rows),
        "median share of the ceiling": f"{statistics.median(shares):.0%}" if shares else None,
        "at 90% of the ceiling or more": _count_of([s >= 0.9 for s in shares]) if shares else None,
        "results within tolerance": _count_of(judged) if judged else None,
        "date": report.machine.get("date"),
    }
    for name in peer_names(report.rows):
        ratios = [row.peers[name] / row.seconds for row in report.rows if name in row.peers]
        known[f"median speed beside {name}"] = f"{statistics.median(ratios):.2f}x"
    return facts(known)


def _count_of(yes: Sequence[bool]) -> str:
    return f"{sum(yes)} of {len(yes)}"


def _performance(rows: Sequence[Row]) -> str:
    """Shares as bars, and the rows under the roofline of the run."""
    known = [row for row in rows if row.share_of_ceiling is not None]
    if not known:
        return ""
    bars = [
        Bar(_title(row), row.share_of_ceiling or 0.0, 1 if row.operations else 0)
        for row in sorted(known, key=lambda row: -(row.share_of_ceiling or 0.0))
    ]
    kinds = "limited by memory", "with matrix products"
    plots = [bar_plot("Share of the ceiling; the dashed line is 0.9", bars, 0.9, kinds)]
    plots.append(_roofline(known))
    plots.append(_bandwidths(known))
    return f'<div class="plots">{"".join(plots)}</div>'


def _roofline(rows: Sequence[Row]) -> str:
    points = [
        Point(
            f"{_title(row)}: {row.operations / row.seconds / 1e9:.1f} GFLOP/s",
            row.operations / row.nbytes,
            row.operations / row.seconds,
        )
        for row in rows
        if row.operations and row.nbytes
    ]
    peaks = [row.peak for row in rows if row.peak]
    bandwidths = [row.bandwidth for row in rows if row.bandwidth and row.operations]
    if not points or not peaks or not bandwidths:
        return ""
    peak, bandwidth = max(peaks), max(bandwidths)
    ridge, last = peak / bandwidth, max(max(p.x for p in points), 10 * peak / bandwidth)
    roof = [(ridge / 10, peak / 10), (ridge, peak), (last, peak)]
    axes = "operations per byte", "operations per second"
    return scatter("Roofline of kernels with products", axes, points, ["kernels"], roof)


def _bandwidths(rows: Sequence[Row]) -> str:
    """Memory kernels and the copy ceiling by bytes: caches make small working sets faster."""
    memory = [row for row in rows if not row.operations and row.nbytes and row.bandwidth]
    points = [
        Point(f"{_title(row)}: {row.rate[0]:.1f} GB/s", row.nbytes, row.nbytes / row.seconds, 0)
        for row in memory
    ]
    points += [
        Point(f"ceiling of {_title(row)}", row.nbytes, row.bandwidth or 0.0, 1) for row in memory
    ]
    axes = "bytes that must move", "bytes per second"
    return scatter("Bandwidth by working set", axes, points, ["kernels", "ceilings"])


def _peers(report: Report) -> str:
    parts = []
    for name in peer_names(report.rows):
        rows = [row for row in report.rows if name in row.peers]
        rows.sort(key=lambda row: -row.peers[name] / row.seconds)
        bars = [Bar(_title(row), row.peers[name] / row.seconds) for row in rows]
        version = report.peers.get(name, "")
        title = f"{name} {version}".strip()
        below = "Its time divided by lbrx's: right of the line lbrx is faster."
        parts.append(ratio_plot(title, bars, below))
    return f'<div class="plots">{"".join(parts)}</div>' if parts else ""


def _correctness(rows: Sequence[Row]) -> str:
    judged = [row for row in rows if row.right is not None]
    if not judged:
        return ""
    head = ("case", "largest error", "allowed", "result")
    content = [
        (
            _title(row),
            f"{row.error:.2e}",
            f"{row.tolerance:.0e}",
            "within" if row.right else "OUTSIDE",
        )
        for row in sorted(judged, key=lambda row: -(row.error or 0.0) / (row.tolerance or 1.0))
    ]
    note = (
        "Each result is compared, in this run, with numpy's in float64 of the same inputs. The "
        "error is the largest difference as a share of the largest value."
    )
    return f"<p>{note}</p>{table(head, content)}"


def _memory(report: Report) -> str:
    memory = report.memory
    rows = [row for row in report.rows if row.peak_memory]
    if not memory and not rows:
        return ""
    hits, misses = memory.get("pool_hits", 0), memory.get("pool_misses", 0)
    reuse = f"{hits / (hits + misses):.1%}" if hits + misses else None
    known = {
        "buffers taken from the pool": f"{hits + misses:,}",
        "of them reused": reuse,
        "most in use at once": _megabytes(memory.get("bytes_high_water")),
        "free in the pool at the end": _megabytes(memory.get("bytes_cached")),
        "idle in heaps at the end": _megabytes(memory.get("bytes_heaps_idle")),
        "planned for the language model": _megabytes(memory.get("model_planned")),
        "most that its buffers took": _megabytes(memory.get("model_peak")),
    }
    content = [
        (
            _title(row),
            _megabytes(row.peak_memory) or "",
            _megabytes(row.nbytes) or "",
            f"{(row.peak_memory or 0) / row.nbytes:.2f}" if row.nbytes else "",
        )
        for row in rows
    ]
    head = ("case", "in use while it runs", "bytes that must move", "ratio")
    return facts(known) + table(head, content)


def _megabytes(size: float | None) -> str | None:
    return None if size is None else f"{size / 2**20:,.1f} MiB"


def _scaling(report: Report) -> str:
    if not report.scaling:
        return ""
    threads = sorted({int(one["threads"]) for one in report.scaling})
    names = list(dict.fromkeys(one["name"] for one in report.scaling))
    seconds = {(one["name"], int(one["threads"])): one["seconds"] for one in report.scaling}
    lines = []
    for name in names:
        first = seconds.get((name, threads[0]))
        values = [seconds.get((name, count)) for count in threads]
        speeds = [first / value * threads[0] if first and value else None for value in values]
        lines.append(Line(name, speeds))
    lines.append(Line("ideal", [float(count) for count in threads]))
    title = "Speed relative to one thread"
    return f'<div class="plots">{line_plot(title, "threads", threads, lines)}</div>'


def _energy(rows: Sequence[Row]) -> str:
    known = [row for row in rows if row.joules]
    if not known:
        return ""
    content = [
        (
            _title(row),
            f"{(row.joules or 0) * 1e3:.3g} mJ",
            f"{(row.joules or 0) / row.seconds:.1f} W",
        )
        for row in known
    ]
    note = "Of the whole processor package during lbrx's calls, by RAPL."
    return f"<p>{note}</p>{table(('case', 'energy of a call', 'power'), content)}"


def _others(report: Report) -> str:
    rows = [row for row in report.rows if row.suite != "kernels"]
    return _table_of(rows) if rows else ""


def _modelled(rows: Sequence[Row]) -> str:
    """The least times of the float32 rows on chips of the table."""
    known = [row for row in rows if row.nbytes and row.dtype == "float32"]
    if not known:
        return ""
    roofs = [chip_roofline(name) for name in CHIPS]
    content = [
        [_title(row), *(duration(roof.time(row.nbytes, row.operations)) for roof in roofs)]
        for row in known
    ]
    note = (
        "Modelled, not measured: the least time that the bandwidth and the float32 peak of a "
        "chip's data sheet allow. Real kernels take longer, and caches are left out."
    )
    return f"<p>{note}</p>{table(['case', *(roof.device for roof in roofs)], content)}"


def _all(report: Report) -> str:
    return _table_of(report.rows)


def _table_of(rows: Sequence[Row]) -> str:
    peers = peer_names(rows)
    head = ["case", "dtype", "shape", "time", "rate", "of the ceiling"]
    head += [f"{name} / lbrx" for name in peers] + ["variant"]
    return table(head, [[*cells(row, peers), row.variant] for row in rows])


def _changes(compared: Sequence[Compared]) -> str:
    if not compared:
        return ""
    changed = [one for one in compared if one.change is not Change.SAME]
    same = f"{len(compared) - len(changed)} of {len(compared)} rows are the same within the spread."
    head = ("case", "before", "now", "ratio", "")
    content = [
        (
            _title(one.row),
            duration(one.before.seconds),
            duration(one.row.seconds),
            f"{one.ratio:.2f}",
            one.change,
        )
        for one in changed
    ]
    return f"<p>{same}</p>" + (table(head, content) if content else "")


def _machine(report: Report) -> str:
    content = [(name, str(value)) for name, value in report.machine.items()]
    content += [(f"{name}, peer", version) for name, version in report.peers.items()]
    form = "short" if report.short else "full"
    content += [("form", form), ("seconds of the run", f"{report.seconds:.0f}")]
    return table(("fact", "value"), content)
