"""A folder that one process has for itself. Links in it are removed or refused, never followed.

Everything is opened relative to the folder's descriptor, so another folder that takes its name
meanwhile is not written to. A lock on a file in the folder keeps other processes away; it is held
until the folder is removed, and after locking, the file must still have its name, because another
process may have removed it before.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from lbrx.errors import FormatError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
# Each attempt fails because another process has finished in between.
_ATTEMPTS = 100


class PrivateFolder:
    """A folder of owner-only files; `lock` is the descriptor of the locked file in it."""

    def __init__(self, path: Path, handle: int, lock: int, name: str) -> None:
        self.path = path
        self.handle = handle
        self.lock = lock
        self._lock_name = name

    @classmethod
    def locked(cls, path: Path, name: str) -> Self:
        """Create or open a folder and lock the file `name` in it.

        Raises FormatError if another process holds the lock, or if the folder or the file is a
        link or can be written by other users. OSError passes.
        """
        for _ in range(_ATTEMPTS):
            handle = open_folder(path)
            try:
                lock = _locked_file(path, handle, name)
            except BaseException:
                os.close(handle)
                raise
            if lock is not None:
                return cls(path, handle, lock, name)
            os.close(handle)
        raise FormatError(f"{path} is removed again and again by other processes: try again")

    def remove(self) -> None:
        """Remove everything in the folder and the folder, then release the lock."""
        try:
            clear(self.handle, keep=self._lock_name)
            os.unlink(self._lock_name, dir_fd=self.handle)
            # Another process may have created a new file in it, and then uses the folder.
            with suppress(OSError):
                os.rmdir(self.path)
        finally:
            self.close()

    def close(self) -> None:
        """Release the lock and leave the files."""
        for handle in (self.lock, self.handle):
            os.close(handle)


def _locked_file(path: Path, folder: int, name: str) -> int | None:
    """The locked file; None if the file or the folder was removed meanwhile."""
    try:
        lock = os.open(name, _FILE | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise _unusable(path / name, problem) from problem
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_named(lock, name, folder) and _is_named(folder, path):
            _check_own_file(path / name, lock)
            return lock
    except BlockingIOError:
        os.close(lock)
        raise FormatError(f"{path} is being written by another process") from None
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _is_named(handle: int, name: str | Path, folder: int | None = None) -> bool:
    """Whether a descriptor's file still has this name."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(handle))


def open_folder(path: Path | str, within: int | None = None) -> int:
    """The descriptor of an owner-only folder, which is created if it does not exist."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=within)
    try:
        handle = os.open(path, _FOLDER, dir_fd=within)
    except OSError as problem:
        raise _unusable(path, problem) from problem
    state = os.fstat(handle)
    if state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.fchmod(handle, 0o700)
        return handle
    os.close(handle)
    raise FormatError(f"{path} cannot be used, as others can write to it: remove it")


def create_file(folder: int, name: str) -> int:
    """A new owner-only file."""
    return os.open(name, _FILE | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)


def open_file(path: Path, folder: int, name: str) -> int:
    """An existing file of this user with one name. Raises FormatError for a link."""
    try:
        handle = os.open(name, _FILE, dir_fd=folder)
    except OSError as problem:
        raise _unusable(path / name, problem) from problem
    try:
        _check_own_file(path / name, handle)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _check_own_file(path: Path, handle: int) -> None:
    state = os.fstat(handle)
    if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_nlink != 1:
        raise FormatError(f"{path} is not a file that lbrx has created: remove it")


def _unusable(path: Path | str, problem: OSError) -> FormatError:
    """An error about a link, or about a file in the place of a folder."""
    return FormatError(f"{path} cannot be used ({problem.strerror}): remove it")


def clear(folder: int, keep: str = "") -> None:
    """Remove everything in a folder except the file `keep`. Links are removed, not followed."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if is_folder:
            shutil.rmtree(name, dir_fd=folder)
        elif name != keep:
            os.unlink(name, dir_fd=folder)
