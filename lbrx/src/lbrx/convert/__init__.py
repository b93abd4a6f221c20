"""Conversion of models between formats, in bounded memory."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from lbrx.convert.compute import compute_on
from lbrx.convert.conversion_plan import ConversionPlan, Settings, make_plan
from lbrx.convert.pieces import Checksums, Progress, run

__all__ = ["ConversionPlan", "Result", "Settings", "convert", "make_plan", "perform"]


@dataclass(frozen=True)
class Result:
    """The outcome of a conversion."""

    plan: ConversionPlan
    seconds: float
    reused: int
    """Bytes that an earlier, interrupted run had written."""
    checksums: Checksums = field(repr=False)


def convert(
    source: str | PathLike[str],
    target: str | PathLike[str],
    settings: Settings | None = None,
    *,
    resume: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Convert the model at `source` to `target`, which appears when it is complete.

    An interruption leaves a hidden folder beside the target, from which `resume` continues.
    `progress` is called with numbers of written bytes. Raises FormatError, DtypeError or
    QuantizationError for what cannot be converted.

        convert("folder", "model.gguf", Settings(quantize="q4_k_m"))
    """
    plan = make_plan(Path(source), Path(target), settings or Settings())
    return perform(plan, resume=resume, device=device, progress=progress)


def perform(
    plan: ConversionPlan,
    *,
    resume: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Carry out a plan."""
    start = time.perf_counter()
    reused, sums = run(plan, compute_on(device), resume, progress or (lambda written: None))
    return Result(plan, time.perf_counter() - start, reused, sums)
