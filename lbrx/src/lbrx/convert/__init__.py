"""Conversion of models between formats, in bounded memory."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from lbrx.convert.compute import compute_on
from lbrx.convert.conversion_plan import ConversionPlan, Settings, make_plan
from lbrx.convert.pieces import Checksums, LateFiles, PieceEngine, Progress, RunOptions, run
from lbrx.files.formats.packaged_models import target_path
from lbrx.files.stored.notes import Notes

if TYPE_CHECKING:
    from lbrx.convert.verify import ClassError

__all__ = ["ConversionPlan", "Result", "RunOptions", "Settings", "convert", "make_plan", "perform"]


@dataclass(frozen=True)
class Result:
    """The outcome of a conversion."""

    plan: ConversionPlan = field(repr=False)
    seconds: float
    reused: int
    """Bytes that an earlier, interrupted run had written."""
    checksums: Checksums = field(repr=False)
    errors: tuple[ClassError, ...] = field(default=(), repr=False)
    """The rounding errors, if the target was verified."""
    notes: Notes = field(default_factory=list, repr=False)
    """What the functions of computed tensors noted."""


def convert(
    source: str | PathLike[str],
    target: str | PathLike[str],
    settings: Settings | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    durable: bool | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Convert the model at `source` to `target`, which appears when it is complete.

    An interruption leaves a hidden folder beside the target, from which `resume` continues.
    Existing files are replaced only with `force`. `durable` waits until the disk has the files; by
    default where files are replaced. `progress` is called with numbers of written bytes. Raises
    FormatError, DtypeError or QuantizationError for what cannot be converted, and FileExistsError,
    with what is done kept for `resume`, if the target appears meanwhile.

        convert("folder", "model.gguf", Settings(quantize="q4_k_m"))
    """
    plan = make_plan(Path(source), target_path(target), settings or Settings())
    options = RunOptions(resume, force, durable)
    return perform(plan, options, device=device, progress=progress)


def perform(
    plan: ConversionPlan,
    options: RunOptions | None = None,
    *,
    device: str | None = None,
    progress: Progress | None = None,
    verifying: Progress | None = None,
    late_files: LateFiles = lambda notes: {},
    engine: PieceEngine | None = None,
) -> Result:
    """Carry out a plan. With `verifying`, the progress of the verification, the target is compared
    with the source before it gets its name. `late_files` makes further files of an output folder
    from what was noted while the tensors were computed. `engine` computes the pieces elsewhere
    than in this process."""
    start = time.perf_counter()
    seconds = 0.0
    errors: list[ClassError] = []

    def check(path: Path, sums: Checksums) -> None:
        nonlocal seconds
        seconds = time.perf_counter() - start
        if verifying is not None:
            from lbrx.convert.verify import verify

            errors.extend(verify(plan, sums, verifying, path, device))

    shown = progress or (lambda written: None)
    chosen = options or RunOptions()
    done = run(plan, compute_on(device), chosen, shown, check, late_files, engine)
    return Result(plan, seconds, done.reused, done.checksums, tuple(errors), done.notes)
