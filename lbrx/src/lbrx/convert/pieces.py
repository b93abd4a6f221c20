"""Conversion in pieces: several threads each read, compute and write a piece of a tensor.

While one thread waits for the disk, others compute. A piece is some rows of about `PIECE` values,
or one longer row, so memory is bounded by the pieces of all threads.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lbrx import quant
from lbrx.convert.compute import Compute, compute_on
from lbrx.convert.conversion_plan import ConversionPlan, PlannedTensor
from lbrx.convert.fingerprint import fingerprint
from lbrx.convert.output_checks import check_not_replacing, check_space, replaced_files
from lbrx.convert.partial import PartialOutput, checksum, partial_output
from lbrx.convert.source import StoredRows, TensorReader
from lbrx.errors import QuantizationError
from lbrx.files.stored.notes import Notes, collecting_notes

PIECE = 1 << 22  # values
# One more than there are processors, as one thread waits for the disk.
THREADS = (os.cpu_count() or 1) + 1

Progress = Callable[[int], None]
"""A function that is called with numbers of written bytes."""


class TensorPiece(NamedTuple):
    item: PlannedTensor
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return sum(length for _, _, length in self.ranges())

    def ranges(self) -> Iterator[tuple[str, int, int]]:
        """For each stored part: the tensor's name, the offset within it, and the number of
        bytes."""
        for slot in self.item.slots.values():
            row = slot.nbytes // self.item.rows
            yield slot.name, self.start * row, (self.stop - self.start) * row


def pieces_of(items: Sequence[PlannedTensor]) -> list[TensorPiece]:
    result = []
    for item in items:
        if item.nbytes == 0:
            continue
        step = max(1, PIECE // item.columns)
        starts = range(0, item.rows, step)
        result += [TensorPiece(item, start, min(start + step, item.rows)) for start in starts]
    return result


Checksums = dict[int, int]
"""Checksums of pieces by number."""


@dataclass(frozen=True)
class RunOptions:
    """How a plan is carried out."""

    resume: bool = False
    force: bool = False
    """Whether existing files may be replaced."""
    durable: bool | None = None
    """Whether to wait until the disk has the files; None means where files are replaced."""


Check = Callable[[Path, Checksums], None]
"""A function that is called with the complete output before it has its name."""
LateFiles = Callable[[Notes], Mapping[str, bytes]]
"""Makes files of an output folder from what was noted while its tensors were computed."""


class Written(NamedTuple):
    """What `run` has written."""

    reused: int
    """Bytes that an earlier run had written."""
    checksums: Checksums
    notes: Notes
    """Those of all pieces, in their order."""


def run(
    plan: ConversionPlan,
    compute: Compute,
    options: RunOptions,
    progress: Progress,
    check: Check = lambda path, sums: None,
    late_files: LateFiles = lambda notes: {},
    engine: PieceEngine | None = None,
) -> Written:
    """Write the plan's output. `engine` computes and writes the pieces, by default threads of this
    process."""
    pieces = pieces_of(plan.items)
    if not options.force:
        check_not_replacing(plan.output)
    check_space(plan.output, options.resume)
    state = fingerprint(plan, compute.name, PIECE)
    with partial_output(plan.output, options.resume, state) as partial:
        done = _verified(partial, pieces)
        reused = sum(pieces[i].nbytes for i in done)
        progress(reused)
        done |= (engine or run_in_threads)(compute.name, partial, pieces, done, progress)
        notes = [fact for number in sorted(done) for fact in partial.notes.get(number, ())]
        partial.complete(late_files(notes) if plan.output.is_folder else {})
        check(partial.staged, done)
        replaced = replaced_files(plan.output)
        if replaced and not options.force:  # it appeared meanwhile: keep what is done
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(replaced[0]))
        partial.publish(bool(replaced) if options.durable is None else options.durable)
    return Written(reused, done, notes)


class PieceEngine(Protocol):
    """Computes and writes the pieces that are not done."""

    def __call__(
        self,
        device: str,
        partial: PartialOutput,
        pieces: Sequence[TensorPiece],
        done: Checksums,
        progress: Progress,
    ) -> Checksums:
        """The checksums of these pieces. `partial` has their notes, and its journal their ends."""


def run_in_threads(
    device: str,
    partial: PartialOutput,
    pieces: Sequence[TensorPiece],
    done: Checksums,
    progress: Progress,
) -> Checksums:
    """A `PieceEngine`: several threads of this process."""
    compute = compute_on(device)
    source, sums = TensorReader(device), {}
    left = Counter(piece.item.name for i, piece in enumerate(pieces) if i not in done)

    def work(number: int) -> tuple[int, int]:
        with collecting_notes() as partial.notes[number]:
            parts = encoded(source, compute, pieces[number])
        total = write_piece(partial.write, pieces[number], parts)
        partial.finished(number, total)
        return number, total

    with ThreadPoolExecutor(THREADS) as pool:
        try:
            waiting = [pool.submit(work, i) for i in range(len(pieces)) if i not in done]
            for future in as_completed(waiting):
                number, sums[number] = future.result()
                item = pieces[number].item
                left[item.name] -= 1
                if not left[item.name]:
                    source.forget(item.recipe)
                progress(pieces[number].nbytes)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return sums


def encoded(source: TensorReader, compute: Compute, piece: TensorPiece) -> StoredRows:
    """The rows of a piece in the form of the target."""
    item, rows = piece.item, slice(piece.start, piece.stop)
    if item.is_kept:
        return source.read(item.recipe, rows)
    values = source.values(item.recipe, rows)
    scheme = item.form.scheme
    if scheme is None:
        return {"data": compute.cast(values, item.form.dtype)}
    if quant.find(scheme).keeps_dtype:
        values = compute.cast(values, item.form.dtype)
    try:
        return compute.encode(values, scheme, _importance(piece))
    except QuantizationError as problem:
        where = f"tensor {item.name!r}, counted from row {piece.start}"
        raise QuantizationError(f"{where}: {problem}") from problem


def _importance(piece: TensorPiece) -> NDArray[np.float32] | None:
    """The importance of the piece's rows: one for all, or that of each row's matrix."""
    known = piece.item.importance
    if known is None or len(known) == 1:
        return None if known is None else known[0]
    each = piece.item.rows // len(known)
    rows: NDArray[np.float32] = known[np.arange(piece.start, piece.stop) // each]
    return rows


def write_piece(
    write: Callable[[str, int, memoryview], None], piece: TensorPiece, parts: StoredRows
) -> int:
    """Write a piece and return its checksum. `write` takes the name of a stored tensor, the offset
    within it, and bytes."""
    views = _bytes_of(piece, parts)
    for view, (slot, at, nbytes) in zip(views, piece.ranges(), strict=True):
        assert len(view) == nbytes
        write(slot, at, view)
    return checksum(views)


def _bytes_of(piece: TensorPiece, parts: StoredRows) -> list[memoryview]:
    """The bytes of the stored parts, in the order of the item's slots."""
    arrays = (np.ascontiguousarray(parts[name]) for name in piece.item.slots)
    return [array.reshape(-1).view(np.uint8).data for array in arrays]


def total_of(piece: TensorPiece, parts: StoredRows) -> int:
    """The checksum of a piece's stored parts."""
    return checksum(_bytes_of(piece, parts))


def _verified(partial: PartialOutput, pieces: Sequence[TensorPiece]) -> Checksums:
    """The pieces of an earlier run whose checksums are still right."""
    return {
        number: total
        for number, total in partial.done.items()
        if number < len(pieces)
        and checksum(partial.read(*place) for place in pieces[number].ranges()) == total
    }
