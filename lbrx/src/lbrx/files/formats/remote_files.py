"""Models at URLs: sparse copies in the cache that are filled when tensors are used.

`mirrored` lists a folder with fsspec and creates files of the same sizes. Small files and the
headers of safetensors are fetched at once, other files of weights too; of safetensors only the
tensors that are read, by whichever process reads them. A file's ranges that are there are listed
beside it, each after its bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbrx import env
from lbrx.errors import FormatError
from lbrx.extras import install
from lbrx.files.formats.checks import MAX_HEADER

_CHUNK = 64 << 20  # bytes of one request
_MOST_SHOWN = 200  # characters of a host's error
_BESIDE = (".json", ".jinja", ".model", ".txt")
# Hosts that a URL alone names. fsspec has more schemes, such as archives in other files and caches,
# which need arguments, or read other URLs and files than the one that is given.
_SCHEMES = (
    *("abfs", "abfss", "adl", "az", "file", "ftp", "gcs", "gs", "hdfs", "http", "https", "memory"),
    *("oci", "oss", "s3", "s3a", "sftp", "smb", "ssh", "webhdfs"),
)
_WEIGHTS = (".safetensors", ".gguf", ".npz", ".bin")  # the first kind that a folder has is used


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL. `version` changes with its content, as far as its host tells."""

    url: str
    size: int
    version: str

    @property
    def path(self) -> Path:
        """Where this machine has its copy."""
        # Files of one folder stay together, and its name is that of the model.
        folder, _, name = self.url.rpartition("/")
        key = hashlib.sha256(f"{folder}\0{self.version}".encode()).hexdigest()[:24]
        shown = re.sub(r"[^\w.-]", "_", folder.rpartition("/")[2]).lstrip(".") or "model"
        return env.cache_dir() / "remote" / key / shown / name


_KNOWN: dict[Path, RemoteFile] = {}
_LOCKS: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


def is_url(text: str) -> bool:
    return "://" in text


def mirrored(url: str) -> Path:
    """The local path of the model at a URL: a file, or a folder with the files of a model.

    Raises FormatError if the URL cannot be read or has no model.
    """
    system, root = _opened(url)
    with _host_errors(url):
        found = system.info(root)
        entries = [found] if found["type"] == "file" else system.ls(root, detail=True)
    every = [one for one in entries if one["type"] == "file"]
    groups = ([one for one in every if one["name"].endswith(end)] for end in _WEIGHTS)
    weights = next(filter(None, groups), [])
    files = weights + [one for one in every if one["name"].endswith(_BESIDE)]
    if not weights:
        raise FormatError(f"{url} has no files of a model: give the URL of its folder or file")
    for one in files:
        if not isinstance(one.get("size"), int):
            problem = f"its host does not say the size of {one['name']}"
            raise FormatError(f"{url}: {problem}: download the model, and give the local path")
    version = _version(system, files)
    remotes = [
        RemoteFile(system.unstrip_protocol(one["name"]), int(one["size"]), version) for one in files
    ]
    for remote in remotes:
        _add(remote)
        _fetch_header(remote)
    path = remotes[0].path
    return path if found["type"] == "file" else path.parent


def _opened(url: str) -> tuple[Any, str]:
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES or "::" in url:  # which joins schemes
        remedy = f"give a local path, or a URL of one of {', '.join(_SCHEMES)}"
        raise FormatError(f"{url}: no models are read from such URLs: {remedy}")
    try:
        import fsspec  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        problem = f"models at URLs need fsspec: {install('remote')}"
        raise FormatError(f"{url}: {problem}, or give a local path") from None
    with _host_errors(url):
        system, root = fsspec.core.url_to_fs(url)
    return system, root


@contextmanager
def _host_errors(url: str) -> Iterator[None]:
    """Turn what fsspec's file systems raise into FormatError: each has errors of its own."""
    try:
        yield
    except Exception as problem:
        reason = " ".join(str(problem).split())[:_MOST_SHOWN] or type(problem).__name__
        is_missing = isinstance(problem, ImportError)
        remedy = "install the package it needs" if is_missing else "give the URL of a model"
        raise FormatError(f"{url} cannot be read: {reason}: {remedy}") from None


def _version(system: Any, files: Iterable[dict[str, Any]]) -> str:
    """A hash of what the host says about the files: names, sizes, and tags or times."""
    digest = hashlib.sha256()
    for one in sorted(files, key=lambda each: str(each["name"])):
        marks = [one.get(key) for key in ("ETag", "etag", "mtime", "LastModified", "created")]
        digest.update(repr((one["name"], one["size"], *map(str, marks))).encode())
    return digest.hexdigest()


def remote_of(path: Path) -> RemoteFile | None:
    """What a local path is a copy of; None for ordinary files."""
    return _KNOWN.get(path)


def remotes_among(paths: Iterable[Path]) -> dict[Path, RemoteFile]:
    """The copies among paths, for another process to `adopt`."""
    return {path: _KNOWN[path] for path in paths if path in _KNOWN}


def adopt(remotes: dict[Path, RemoteFile]) -> None:
    """Know the copies of another process. They may be elsewhere on this machine."""
    for path, remote in remotes.items():
        _add(remote, path)


def _add(remote: RemoteFile, named: Path | None = None) -> None:
    """Create the sparse copy if it does not exist."""
    path = remote.path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(handle, remote.size)
    finally:
        os.close(handle)
    _KNOWN[path] = _KNOWN[named or path] = remote


def _fetch_header(remote: RemoteFile) -> None:
    path = remote.path
    if not remote.url.endswith(".safetensors") or remote.size < 8:
        ensure(path, 0, remote.size)
        return
    ensure(path, 0, 8)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length <= min(MAX_HEADER, remote.size - 8):  # otherwise the reader refuses it
        ensure(path, 0, 8 + length)


def local_path(path: Path) -> Path:
    """Where this process has a file: a path of another process' cache may differ."""
    remote = _KNOWN.get(path)
    return path if remote is None else remote.path


def ensure(path: Path, offset: int, nbytes: int) -> None:
    """Fetch a range of bytes of a copy unless it is there. Does nothing for ordinary files.

    Raises FormatError if the host gives fewer bytes.
    """
    remote = _KNOWN.get(path)
    if remote is None or nbytes == 0:
        return
    with _LOCKS[remote.path]:
        if any(first <= offset and offset + nbytes <= last for first, last in _ranges(remote)):
            return
        _fetch(remote, offset, nbytes)
        with _list_of(remote).open("a") as file:
            file.write(f"\n{offset} {offset + nbytes}\n")


def _list_of(remote: RemoteFile) -> Path:
    return remote.path.with_name(f"{remote.path.name}.ranges")


def _ranges(remote: RemoteFile) -> Iterator[tuple[int, int]]:
    """The ranges that are there. A line that was not completely written does not count."""
    listed = _list_of(remote)
    if not listed.exists():
        return
    for line in listed.read_text().splitlines():
        numbers = line.split()
        if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
            yield int(numbers[0]), int(numbers[1])


def _fetch(remote: RemoteFile, offset: int, nbytes: int) -> None:
    system, name = _opened(remote.url)
    handle = os.open(remote.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for start in range(offset, offset + nbytes, _CHUNK):
            end = min(start + _CHUNK, offset + nbytes)
            with _host_errors(remote.url):
                data = system.cat_file(name, start=start, end=end)
            if len(data) != end - start:
                raise FormatError(
                    f"{remote.url} gave {len(data):,} of {end - start:,} bytes: it has changed, or "
                    "its host is out of order"
                )
            view = memoryview(data)
            while view:
                written = os.pwrite(handle, view, start)
                view, start = view[written:], start + written
    finally:
        os.close(handle)
