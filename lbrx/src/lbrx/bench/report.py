"""The results of a run, and their JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from lbrx import stored_json
from lbrx.errors import FormatError

VERSION = 1
JSON_NAME, HTML_NAME, MARKDOWN_NAME = "report.json", "report.html", "report.md"


@dataclass(frozen=True)
class Row:
    """One measured case. Times are seconds of a call, the median of the rounds."""

    suite: str
    name: str
    dtype: str
    shape: list[int]
    variant: str
    """Kernels and their variants that ran, or how the work was done."""
    seconds: float
    spread: float
    """Half of the interquartile range, as a share of `seconds`."""
    rounds: int
    share_of_ceiling: float | None = None
    """The least time that the ceilings of the same run allow, divided by `seconds`."""
    family: str = ""
    nbytes: float = 0.0
    operations: float = 0.0
    bandwidth: float | None = None
    """The ceiling in bytes per second."""
    peak: float | None = None
    """The ceiling in operations per second."""
    peers: dict[str, float] = field(default_factory=dict)
    peer_spreads: dict[str, float] = field(default_factory=dict)
    peak_memory: int | None = None
    """Bytes of the device's pool in use while it ran, inputs included."""
    error: float | None = None
    """The largest difference from the reference, relative to its largest value."""
    tolerance: float | None = None
    joules: float | None = None

    @property
    def key(self) -> tuple[str, str, str, tuple[int, ...]]:
        """What makes rows of two reports the same measurement."""
        return self.suite, self.name, self.dtype, tuple(self.shape)

    @property
    def rate(self) -> tuple[float, str]:
        """Operations per second of a case with arithmetic, else bytes per second."""
        if self.operations:
            return self.operations / self.seconds / 1e9, "GFLOP/s"
        return self.nbytes / self.seconds / 1e9, "GB/s"

    @property
    def right(self) -> bool | None:
        """Whether the result is within its tolerance; None if it was not compared."""
        if self.error is None or self.tolerance is None:
            return None
        return self.error <= self.tolerance


@dataclass(frozen=True)
class Report:
    """A run: its machine, its rows, and figures that belong to no row."""

    machine: dict[str, Any]
    rows: list[Row]
    peers: dict[str, str] = field(default_factory=dict)
    """Versions of the peers."""
    short: bool = False
    complete: bool = True
    """False if the run was interrupted."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    scaling: list[dict[str, Any]] = field(default_factory=list)
    version: int = VERSION

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def read(path: Path) -> Report:
    """A report from its file. Raises FormatError for content that is not one."""
    try:
        content = stored_json.parsed(path.read_text())
    except OSError as problem:
        raise FormatError(
            f"{path} cannot be read: {problem.strerror}: give a report.json of lbrx bench"
        ) from problem
    except ValueError as problem:
        raise FormatError(f"{path} is not JSON: give a report.json of lbrx bench") from problem
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise FormatError(f"{path} has no rows: give a report.json of lbrx bench")
    if content.get("version") != VERSION:
        raise FormatError(
            f"{path} is a report of version {content.get('version')}, not {VERSION}: make a new one"
        )
    try:
        rows = [_built(Row, row) for row in content.pop("rows")]
        for row in rows:
            if not isinstance(row.seconds, int | float) or row.seconds <= 0:
                raise TypeError(f"{row.name} took {row.seconds!r} seconds")
        report: Report = _built(Report, {**content, "rows": rows})
        return report
    except TypeError as problem:
        raise FormatError(f"{path}: {problem}: give a report.json of lbrx bench") from problem


def _built(kind: type[Any], content: Any) -> Any:
    """A dataclass of a mapping; unknown keys are those of a later version and are left out."""
    if not isinstance(content, dict):
        raise TypeError(f"{content!r} is not a row")
    known = {one.name for one in fields(kind)}
    return kind(**{key: value for key, value in content.items() if key in known})
