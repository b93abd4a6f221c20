"""Pieces computed on a Ray cluster, with the same bytes as in one process.

A task computes some pieces, and is run again elsewhere if its worker dies. It writes them itself
where it sees the folder of the unfinished output, on a shared disk or the same machine; otherwise
it sends the bytes. The journal is the driver's alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lbrx.convert.compute import compute_on
from lbrx.convert.partial import FILES, JOURNAL, PartialOutput, write_all
from lbrx.convert.pieces import (
    PIECE,
    Checksums,
    PieceEngine,
    Progress,
    TensorPiece,
    encoded,
    write_piece,
)
from lbrx.convert.source import StoredRows, TensorReader
from lbrx.errors import DeviceError, LbrxError
from lbrx.extras import install
from lbrx.files.formats import FileRange
from lbrx.files.formats.recipe import stored
from lbrx.files.formats.remote_files import RemoteFile, adopt, remotes_among
from lbrx.files.stored.notes import Notes, collecting_notes

_GROUP = 4 * PIECE  # values of a task; the pieces of one tensor stay together
_TASKS_PER_CPU = 2  # in flight, so that a worker has the next one while it computes
_RETRIES = 10  # of a task whose worker died

Numbered = tuple[int, TensorPiece]


@dataclass(frozen=True)
class SharedFiles:
    """The files of an unfinished output, for workers that see their folder."""

    folder: Path
    fingerprint: str
    places: dict[str, tuple[str, int]]
    """For each stored tensor its file and the offset of its first byte."""
    remotes: dict[Path, RemoteFile] = field(default_factory=dict)
    """Sources that are copies of files at URLs: a worker fetches what it needs itself."""

    def is_seen(self) -> bool:
        """Whether this machine has the folder, and not another of the same name."""
        try:
            with (self.folder / JOURNAL).open("rb") as file:
                lines = islice((line for line in file if line.strip()), 1)
                return any(json.loads(line) == {"fingerprint": self.fingerprint} for line in lines)
        except (OSError, ValueError):
            return False

    def write(self, slot: str, at: int, data: memoryview) -> None:
        """Write bytes of a stored tensor, starting at offset `at` within it."""
        name, offset = self.places[slot]
        handle = os.open(self.folder / FILES / name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            write_all(handle, data, offset + at)
        finally:
            os.close(handle)


@dataclass(frozen=True)
class PieceResult:
    """A computed piece: the checksum of what was written, or the bytes to write."""

    number: int
    notes: Notes
    checksum: int | None
    parts: StoredRows | None


def ray_engine(address: str | None = None) -> PieceEngine:
    """An engine that computes pieces on the Ray cluster at `address`, "auto" for the one that this
    machine belongs to, or on a new one of this machine's processors.

    Raises LbrxError if ray is not installed or the cluster is not reached.
    """
    ray = _ray()

    def run(
        device: str,
        partial: PartialOutput,
        pieces: Sequence[TensorPiece],
        done: Checksums,
        progress: Progress,
    ) -> Checksums:
        started = _connect(ray, address)
        try:
            return _run(ray, device, partial, pieces, done, progress)
        finally:
            if started:
                ray.shutdown()

    return run


def _ray() -> Any:
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        raise LbrxError(f"--engine ray needs the package ray: {install('ray')}") from None
    return ray


def _connect(ray: Any, address: str | None) -> bool:
    """Whether this call has connected, and the connection is to be closed."""
    if ray.is_initialized():
        return False
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address is None:
        options["include_dashboard"] = False
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as problem:
        reason = str(problem).splitlines()[0]
        raise LbrxError(
            f"the Ray cluster at {address or 'this machine'} is not reached: {reason}: start it "
            "with `ray start --head`, or leave --address out"
        ) from problem
    return True


def _run(
    ray: Any,
    device: str,
    partial: PartialOutput,
    pieces: Sequence[TensorPiece],
    done: Checksums,
    progress: Progress,
) -> Checksums:
    task = ray.remote(max_retries=_RETRIES, num_cpus=1)(compute_group)
    shared = ray.put(_shared_files(partial, pieces))
    waiting = _groups([(i, piece) for i, piece in enumerate(pieces) if i not in done])
    most = max(1, int(_TASKS_PER_CPU * ray.cluster_resources().get("CPU", 1)))
    running = [task.remote(group, device, shared) for group in islice(waiting, most)]
    sums: Checksums = {}
    try:
        while running:
            (ready,), running = ray.wait(running, num_returns=1)
            for result in _result(ray, ready):
                sums[result.number] = _finished(partial, pieces[result.number], result)
                progress(pieces[result.number].nbytes)
            running += [task.remote(group, device, shared) for group in islice(waiting, 1)]
    except BaseException:
        for one in running:
            ray.cancel(one)
        raise
    return sums


def _result(ray: Any, ready: Any) -> list[PieceResult]:
    try:
        found: list[PieceResult] = ray.get(ready)
    except ray.exceptions.RayTaskError as problem:
        raise problem.cause from None
    except ray.exceptions.RayError as problem:
        reason = str(problem).splitlines()[0]
        raise DeviceError(
            f"a task of the Ray cluster was lost: {reason}: add --resume"
        ) from problem
    return found


def _finished(partial: PartialOutput, piece: TensorPiece, result: PieceResult) -> int:
    """Write what a worker could not write, and the line of the journal."""
    total = result.checksum
    if total is None:
        assert result.parts is not None
        total = write_piece(partial.write, piece, result.parts)
    partial.notes[result.number] = result.notes
    partial.finished(result.number, total)
    return total


def _shared_files(partial: PartialOutput, pieces: Sequence[TensorPiece]) -> SharedFiles:
    places = {
        slot.name: (name, offset)
        for name, layout in partial.output.layouts.items()
        for slot, offset in layout.tensors
    }
    items = {piece.item.name: piece.item for piece in pieces}.values()
    sources = {info.source for item in items for info in stored(item.recipe)}
    files = {source.file for source in sources if isinstance(source, FileRange)}
    return SharedFiles(partial.folder.resolve(), partial.fingerprint, places, remotes_among(files))


def _groups(pieces: Sequence[Numbered]) -> Iterator[list[Numbered]]:
    """Pieces for one task each: those of a tensor together, so that it is computed once, and small
    tensors with their neighbours."""
    group: list[Numbered] = []
    values = 0
    for number, piece in pieces:
        is_same = bool(group) and group[-1][1].item is piece.item
        if group and values >= _GROUP and not is_same:
            yield group
            group, values = [], 0
        group.append((number, piece))
        values += (piece.stop - piece.start) * piece.item.columns
    if group:
        yield group


def compute_group(group: Sequence[Numbered], device: str, shared: SharedFiles) -> list[PieceResult]:
    """What a worker does: compute pieces, and write them where it can."""
    adopt(shared.remotes)
    source, compute = _reader(device), compute_on(device)
    is_seen = shared.is_seen()
    results = []
    for number, piece in group:
        with collecting_notes() as notes:
            parts = encoded(source, compute, piece)
        if is_seen:
            total = write_piece(shared.write, piece, parts)
            results.append(PieceResult(number, notes, total, None))
        else:
            own = {name: np.ascontiguousarray(part) for name, part in parts.items()}
            results.append(PieceResult(number, notes, None, own))
    for item in {piece.item.name: piece.item for _, piece in group}.values():
        source.forget(item.recipe)
    return results


@cache
def _reader(device: str) -> TensorReader:
    """The process' reader: files stay mapped between tasks."""
    return TensorReader(device)
