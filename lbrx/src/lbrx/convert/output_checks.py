"""Checks of a conversion's target before anything is written."""

from __future__ import annotations

import os
from pathlib import Path

from lbrx.convert.partial import partial_folder
from lbrx.errors import FormatError
from lbrx.files.formats.writing import OLD_WEIGHTS, Output


def replaced_files(output: Output) -> list[Path]:
    """The existing files that the output would replace or remove."""
    if not output.is_folder:
        return [output.path] if os.path.lexists(output.path) else []
    written = [output.path / name for name in (*output.layouts, *output.files)]
    old = [file for pattern in OLD_WEIGHTS for file in output.path.glob(pattern)]
    return [file for file in dict.fromkeys((*written, *old)) if os.path.lexists(file)]


def check_not_replacing(output: Output) -> None:
    """Raises FormatError if a file would be replaced."""
    if existing := replaced_files(output):
        raise FormatError(
            f"{existing[0]} exists: add --force to replace it (force=True from Python)"
        )


def check_space(output: Output, resume: bool) -> None:
    """Raises FormatError if the disk has less space than the output takes."""
    folder = output.path.absolute().parent
    while not folder.exists():
        folder = folder.parent
    disk = os.statvfs(folder)
    written = _used(partial_folder(output)) if resume else 0
    needed = sum(layout.nbytes for layout in output.layouts.values())
    needed += sum(map(len, output.files.values()))
    free = disk.f_bavail * disk.f_frsize + written
    # Some file systems do not tell their size.
    if disk.f_blocks and needed > free:
        raise FormatError(
            f"{output.path} needs {needed:,} bytes, and {free:,} are free on its disk: make room "
            "or write elsewhere"
        )


def _used(folder: Path) -> int:
    """The bytes on the disk of an unfinished output."""
    files = (path.lstat() for path in folder.rglob("*"))
    return sum(512 * state.st_blocks for state in files)
