"""What became slower or faster since an earlier report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from lbrx.bench.report import Report, Row

LEAST = 0.05  # share below which a change is never marked: clocks differ by this between runs


class Change(StrEnum):
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"


@dataclass(frozen=True)
class Compared:
    """A row beside the same row of an earlier report."""

    row: Row
    before: Row

    @property
    def ratio(self) -> float:
        """Times as long as before."""
        return self.row.seconds / self.before.seconds

    @property
    def allowed(self) -> float:
        """The change that the spreads of both runs explain."""
        return max(LEAST, 2 * (self.row.spread + self.before.spread))

    @property
    def change(self) -> Change:
        if self.ratio > 1 + self.allowed:
            return Change.SLOWER
        return Change.FASTER if 1 / self.ratio > 1 + self.allowed else Change.SAME


def compare(new: Report, old: Report) -> list[Compared]:
    """The rows that both have, those that became slower first."""
    known = {row.key: row for row in old.rows}
    found = [Compared(row, known[row.key]) for row in new.rows if row.key in known]
    return sorted(found, key=lambda one: -one.ratio)


def lines(new: Report, old: Report) -> Iterator[str]:
    """For a terminal: what changed beyond the spread, then how many did not."""
    compared = compare(new, old)
    if not compared:
        yield "no row is in both reports: compare runs of the same suite and form"
        return
    for key in ("device", "processor", "threads"):
        if new.machine.get(key) != old.machine.get(key):
            yield f"{key} differs: {old.machine.get(key)} before, {new.machine.get(key)} now"
    changed = [one for one in compared if one.change is not Change.SAME]
    for one in changed:
        row = one.row
        shape = "x".join(map(str, row.shape))
        times = f"{one.before.seconds * 1e3:.3f} ms before, {row.seconds * 1e3:.3f} ms now"
        variants = (
            f", {one.before.variant} before, {row.variant} now"
            if one.before.variant != row.variant
            else ""
        )
        yield (
            f"{one.change}: {row.name} {row.dtype} {shape}: {times} "
            f"({one.ratio:.2f} times, spread allows {1 + one.allowed:.2f}){variants}"
        )
    yield f"{len(compared) - len(changed)} of {len(compared)} rows are the same within their spread"
