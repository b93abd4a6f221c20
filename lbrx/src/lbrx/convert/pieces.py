"""The work itself: pieces of tensors, each read, computed and written by one of several threads.

While one thread waits for the disk, others compute. Memory is bounded by the threads' pieces, and
a piece is some rows, or a single one that is longer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lbrx import quant
from lbrx.convert.compute import Compute
from lbrx.convert.conversion_plan import ConversionPlan, PlannedTensor
from lbrx.convert.partial import Partial, checksum, partial_output
from lbrx.convert.source import StoredRows, TensorReader
from lbrx.errors import QuantizationError

PIECE = 1 << 21  # values
# One more than there are processors, for the one that waits for the disk.
THREADS = (os.cpu_count() or 1) + 1

Progress = Callable[[int], None]
"""Is told of bytes that have been written."""


class Piece(NamedTuple):
    item: PlannedTensor
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return sum(length for _, _, length in self.ranges())

    def ranges(self) -> Iterator[tuple[str, int, int]]:
        """For each stored part: the slot's name, the first byte within it, and the bytes."""
        for slot in self.item.slots.values():
            row = slot.nbytes // self.item.rows
            yield slot.name, self.start * row, (self.stop - self.start) * row


def pieces_of(items: Sequence[PlannedTensor]) -> list[Piece]:
    result = []
    for item in items:
        if item.nbytes == 0:
            continue
        step = max(1, PIECE // item.columns)
        starts = range(0, item.rows, step)
        result += [Piece(item, start, min(start + step, item.rows)) for start in starts]
    return result


Checksums = dict[int, int]
"""Of the bytes of pieces, by number."""


def run(
    plan: ConversionPlan, compute: Compute, resume: bool, progress: Progress
) -> tuple[int, Checksums]:
    """Write the plan's output; returns how many bytes an earlier run had written, and sums of
    all."""
    pieces = pieces_of(plan.items)
    with partial_output(plan.output, resume, fingerprint(plan, compute)) as partial:
        done = _verified(partial, pieces)
        reused = sum(pieces[i].nbytes for i in done)
        progress(reused)
        done |= _run_pieces(plan, compute, partial, pieces, done, progress)
        partial.complete()
    return reused, done


def _run_pieces(
    plan: ConversionPlan,
    compute: Compute,
    partial: Partial,
    pieces: Sequence[Piece],
    done: Checksums,
    progress: Progress,
) -> Checksums:
    """What is not done."""
    source, sums = TensorReader(), {}
    left = Counter(piece.item.name for i, piece in enumerate(pieces) if i not in done)

    def work(number: int) -> tuple[int, int]:
        total = _write(partial, pieces[number], encoded(source, compute, pieces[number]))
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


def encoded(source: TensorReader, compute: Compute, piece: Piece) -> StoredRows:
    """The stored parts of some rows."""
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


def _importance(piece: Piece) -> NDArray[np.float32] | None:
    """Of the piece's rows: the same for all, or of the matrix that each belongs to."""
    known = piece.item.importance
    if known is None or len(known) == 1:
        return None if known is None else known[0]
    each = piece.item.rows // len(known)
    rows: NDArray[np.float32] = known[np.arange(piece.start, piece.stop) // each]
    return rows


def _write(partial: Partial, piece: Piece, parts: StoredRows) -> int:
    """Returns the checksum of what was written."""
    views = _bytes_of(piece, parts)
    for view, (slot, at, nbytes) in zip(views, piece.ranges(), strict=True):
        assert len(view) == nbytes
        partial.write(slot, at, view)
    return checksum(views)


def _bytes_of(piece: Piece, parts: StoredRows) -> list[memoryview]:
    """The stored parts in the order of the item's slots."""
    arrays = (np.ascontiguousarray(parts[name]) for name in piece.item.slots)
    return [array.reshape(-1).view(np.uint8).data for array in arrays]


def total_of(piece: Piece, parts: StoredRows) -> int:
    """The checksum that they should have if they were read again."""
    return checksum(_bytes_of(piece, parts))


def _verified(partial: Partial, pieces: Sequence[Piece]) -> Checksums:
    """The pieces that an earlier run has written, if they are still what it wrote."""
    return {
        number: total
        for number, total in partial.done.items()
        if number < len(pieces)
        and checksum(partial.read(*place) for place in pieces[number].ranges()) == total
    }


def fingerprint(plan: ConversionPlan, compute: Compute) -> str:
    """Of all that decides which bytes are written where."""
    tensors = [[item.name, str(item.recipe.encoding), item.stored_as] for item in plan.items]
    places = [
        [file, slot.name, slot.encoding.name, list(slot.shape), offset]
        for file, layout in plan.output.layouts.items()
        for slot, offset in layout.tensors
    ]
    states = [
        [str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns]
        for file in sorted([*plan.files.paths, *filter(None, [plan.imatrix])])
    ]
    all_of_it = [version("lbrx"), compute.name, PIECE, tensors, places, states]
    return hashlib.sha256(json.dumps(all_of_it).encode()).hexdigest()
