"""The report as Markdown, for a README."""

from __future__ import annotations

from collections.abc import Sequence

from lbrx.bench.report import Report, Row


def markdown(report: Report) -> str:
    """A heading with the machine, and a table."""
    facts = report.machine
    form = "short form" if report.short else "full form"
    head = ["case", "dtype", "shape", "time", "rate", "of the ceiling"]
    peers = peer_names(report.rows)
    head += [f"{name} / lbrx" for name in peers]
    lines = [
        f"Measured by `lbrx bench` ({form}) on {facts.get('date')}: {facts.get('device')}, "
        f"{facts.get('processor')}, {facts.get('threads')} threads.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    lines += [f"| {' | '.join(cells(row, peers))} |" for row in report.rows]
    lines += ["", *(f"- {note}" for note in report.notes)] if report.notes else []
    return "\n".join(lines) + "\n"


def peer_names(rows: Sequence[Row]) -> list[str]:
    """The peers that some row has, in the order of their first row."""
    return list(dict.fromkeys(name for row in rows for name in row.peers))


def cells(row: Row, peers: Sequence[str]) -> list[str]:
    """A row of the table: times with their spread, and how many times as long peers take."""
    rate, unit = row.rate
    share = row.share_of_ceiling
    return [
        row.name,
        row.dtype,
        "x".join(map(str, row.shape)),
        f"{duration(row.seconds)} ±{row.spread:.0%}",
        f"{rate:,.1f} {unit}" if rate else "",
        "" if share is None else f"{share:.0%}",
        *(f"{row.peers[name] / row.seconds:.2f}" if name in row.peers else "" for name in peers),
    ]


def duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
