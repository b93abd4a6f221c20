"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from lbrx.errors import FormatError
from lbrx.formats.descriptor import Outgoing

BUFFER = 1 << 20


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes its name at the end; after an error nothing is left of it."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    temporary = Path(name)
    try:
        with open(handle, "w+b", buffering=BUFFER) as file:
            yield file
            # Temporary files are private; this gives it the rights that open() would have.
            os.fchmod(file.fileno(), 0o666 & ~_mask())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise


@contextmanager
def filling(folder: Path, stale: Sequence[str] = ()) -> Iterator[Path]:
    """A folder to write into, which takes its name at the end. If there is one already, files move
    into it, and what matches a `stale` pattern there and is not among them goes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    name = tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o777 & ~_mask())
        settle(temporary, folder, stale)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def settle(temporary: Path, folder: Path, stale: Sequence[str] = ()) -> None:
    """Give a complete folder its name, or move its files into the one that has it."""
    names = [file.name for file in temporary.iterdir()]
    if not folder.exists():
        os.replace(temporary, folder)
        return
    for name in names:
        os.replace(temporary / name, folder / name)
    for old in [file for pattern in stale for file in folder.glob(pattern)]:
        if old.name not in names:
            old.unlink(missing_ok=True)


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_tensor(file: IO[bytes], tensor: Outgoing) -> None:
    """The bytes of one tensor, which must be as many as its shape says."""
    written = 0
    for chunk in tensor.chunks():
        written += file.write(chunk)
    if written != tensor.nbytes:
        raise FormatError(
            f"tensor {tensor.name!r}: {written:,} bytes came for {tensor.encoding} of shape "
            f"{tensor.shape}, which takes {tensor.nbytes:,}"
        )
