"""Files and folders that get their names when they are complete."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from lbrx.errors import FormatError
from lbrx.files.formats.descriptor import Outgoing

BUFFER = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that gets its name at the end; after an error it is removed. Where it
    replaces another, it is on the disk before, so that a power failure leaves one of the two."""
    replaces = os.path.lexists(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    temporary = Path(name)
    try:
        with open(handle, "w+b", buffering=BUFFER) as file:
            yield file
            # Temporary files are private; this sets the permissions that open() would set.
            os.fchmod(file.fileno(), 0o666 & ~umask())
            if replaces:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if replaces:
            sync(path.parent)
    except BaseException as problem:
        with suppress(FileNotFoundError):
            temporary.unlink()
        _name_target(problem, path)
        raise


@contextmanager
def filling(folder: Path, stale: Sequence[str] = ()) -> Iterator[Path]:
    """A folder to write into that gets its name at the end. If the folder exists, files move into
    it, as with `replacing`, and its other files that match a `stale` pattern are removed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    name = tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o777 & ~umask())
        replaces = folder.exists()
        for path in [*temporary.iterdir(), temporary] if replaces else []:
            sync(path)
        settle(temporary, folder, stale)
        if replaces:
            sync(folder)
    except BaseException as problem:
        _name_target(problem, folder)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _name_target(problem: BaseException, path: Path) -> None:
    """Add the path to the error of a full disk: a failed write does not say of which file."""
    if isinstance(problem, OSError) and problem.errno in _NO_ROOM and not problem.filename:
        problem.filename = str(path)


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


def sync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def umask() -> int:
    """The permissions that new files of this process lack."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_tensor(file: IO[bytes], tensor: Outgoing) -> None:
    """Write one tensor. Raises FormatError if its chunks do not have the size of its shape."""
    written = 0
    for chunk in tensor.chunks():
        written += file.write(chunk)
    if written != tensor.nbytes:
        raise FormatError(
            f"tensor {tensor.name!r}: {written:,} bytes were given for {tensor.encoding} of shape "
            f"{tensor.shape}, which takes {tensor.nbytes:,}"
        )
