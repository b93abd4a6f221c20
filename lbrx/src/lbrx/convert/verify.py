"""Comparison of a converted model with its source, and a table of its errors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbrx.convert.conversion_plan import ConversionPlan, PlannedTensor
from lbrx.convert.pieces import THREADS, Checksums, Progress, TensorPiece, pieces_of, total_of
from lbrx.convert.source import TensorReader, scheme_of
from lbrx.errors import FormatError
from lbrx.files import formats
from lbrx.files.formats import file_formats
from lbrx.files.formats.recipe import Recipe

_NUMBER = re.compile(r"\.\d+(?=\.)")


@dataclass(frozen=True)
class ErrorSums:
    """Sums over values: their number, their squares, the errors' squares, and the largest error."""

    values: int
    squares: float
    error_squares: float
    largest: float

    def __add__(self, other: ErrorSums) -> ErrorSums:
        return ErrorSums(
            self.values + other.values,
            self.squares + other.squares,
            self.error_squares + other.error_squares,
            max(self.largest, other.largest),
        )


@dataclass(frozen=True)
class ClassError:
    """The errors of tensors with the same name except for numbers, and the same types."""

    name: str
    before: str
    after: str
    tensors: int
    sums: ErrorSums

    @property
    def rmse(self) -> float:
        return math.sqrt(self.sums.error_squares / self.sums.values) if self.sums.values else 0.0

    @property
    def relative(self) -> float:
        """The error relative to the values' root mean square."""
        sums = self.sums
        return math.sqrt(sums.error_squares / sums.squares) if sums.squares else 0.0


def verify(
    plan: ConversionPlan,
    checksums: Checksums,
    progress: Progress,
    target_path: Path | None = None,
    device: str | None = None,
) -> list[ClassError]:
    """Compare target and source; returns the rounding errors.

    `target_path` is where the target is as long as it does not have its name, and `device` what
    computed it. Raises FormatError
    if the target is not what was planned and written.
    """
    target = formats.read(target_path or plan.output.path)
    written = _recipes(plan, target)
    before, after = TensorReader(device), TensorReader()
    totals: dict[tuple[str, str, str], ErrorSums] = {}
    counts: dict[tuple[str, str, str], set[str]] = {}

    def compare(number: int, piece: TensorPiece) -> tuple[TensorPiece, ErrorSums]:
        recipe, rows = written[piece.item.name], slice(piece.start, piece.stop)
        if total_of(piece, after.read(recipe, rows)) != checksums[number]:
            raise _wrong(piece)
        return piece, _compared(before, after, piece, recipe)

    pieces = pieces_of(plan.items)
    with ThreadPoolExecutor(THREADS) as pool:
        for piece, sums in pool.map(compare, range(len(pieces)), pieces):
            item = piece.item
            key = class_of(item.name), str(item.recipe.encoding), item.stored_as
            totals[key] = totals[key] + sums if key in totals else sums
            counts.setdefault(key, set()).add(item.name)
            if piece.stop == item.rows:
                before.forget(item.recipe)
                after.forget(written[item.name])
            progress(piece.nbytes)
    return [ClassError(*key, len(counts[key]), sums) for key, sums in totals.items()]


def class_of(name: str) -> str:
    return _NUMBER.sub(".*", name)


def _recipes(plan: ConversionPlan, target: formats.ModelFiles) -> dict[str, Recipe]:
    """The written tensors. Raises FormatError if their types or shapes differ from the plan."""
    found = dict(file_formats.find(plan.format).conventions.whole(target))
    if unplanned := found.keys() - {item.name for item in plan.items}:
        raise FormatError(f"{target.path}: tensor {min(unplanned)!r} was not planned")
    for item in plan.items:
        recipe = found.get(item.name)
        if recipe is None:
            raise FormatError(f"{target.path}: tensor {item.name!r} is missing")
        if (recipe.shape, str(recipe.encoding)) != (item.recipe.shape, item.stored_as):
            raise FormatError(
                f"{target.path}: tensor {item.name!r} is {recipe.encoding} of shape "
                f"{recipe.shape}, not {item.stored_as} of {item.recipe.shape}"
            )
    return found


def _wrong(piece: TensorPiece) -> FormatError:
    name, rows = piece.item.name, f"rows {piece.start} to {piece.stop}"
    return FormatError(f"tensor {name!r}: {rows} differ from what was written")


def _compared(
    before: TensorReader, after: TensorReader, piece: TensorPiece, written: Recipe
) -> ErrorSums:
    item, rows = piece.item, slice(piece.start, piece.stop)
    expected, found = before.values(item.recipe, rows), after.values(written, rows)
    if not _agree(item, before, after, rows, expected, found, written):
        raise _wrong(piece)
    with np.errstate(invalid="ignore", over="ignore"):
        values = expected.astype(np.float64).reshape(-1)
        errors = np.abs(found.astype(np.float64).reshape(-1) - values)
        # Infinity minus infinity is NaN and counts as no error; other NaN stay.
        errors[np.isnan(errors) & ~np.isfinite(values)] = 0
        values[~np.isfinite(values)] = 0
        largest = float(errors.max(initial=0))
        return ErrorSums(values.size, float(values @ values), float(errors @ errors), largest)


def _agree(
    item: PlannedTensor,
    before: TensorReader,
    after: TensorReader,
    rows: slice,
    expected: NDArray[Any],
    found: NDArray[Any],
    written: Recipe,
) -> bool:
    """Whether copied tensors have equal bytes and cast ones the nearest values. Quantized values
    only have to be finite."""
    if item.is_kept:
        old, new = before.read(item.recipe, rows), after.read(written, rows)
        return all(old[name].tobytes() == new[name].tobytes() for name in old)
    if scheme_of(written) is not None:
        return bool(np.isfinite(found).all())
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = expected.astype(found.dtype)
    return np.array_equal(nearest, found, equal_nan=True)


def table(rows: Iterable[ClassError]) -> str:
    """The errors as a table of text."""
    types = f"{'tensors':<48} {'':>4} {'from':>9} {'to':>9}"
    lines = [f"{types} {'RMSE':>10} {'relative':>9} {'largest':>9}"]
    for row in sorted(rows, key=lambda row: (row.after, row.name)):
        what = f"{row.name:<48} {row.tensors:>4} {row.before:>9} {row.after:>9}"
        error = f"{row.rmse:>10.3g} {row.relative:>9.3%} {row.sums.largest:>9.3g}"
        lines.append(f"{what} {error}" if row.sums.largest else f"{what} {'exact':>10}")
    return "\n".join(lines)
