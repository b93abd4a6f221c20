"""MTLBinaryArchive: compiled kernels in a file that the program names."""

from __future__ import annotations

import os
import secrets
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from softmetal import compiler
from softmetal.api import enums, host
from softmetal.api.foundation import NSURL, NSError, file_path
from softmetal.api.library import MTLFunction
from softmetal.api.objects import Descriptor, Labelled, anything, table
from softmetal.errors import CompileError
from softmetal.toolchain import ownership
from softmetal.types import Artifact

if TYPE_CHECKING:
    from softmetal.api.device import MTLDevice
    from softmetal.api.pipeline import MTLComputePipelineDescriptor


class MTLBinaryArchiveDescriptor(Descriptor):
    __slots__ = ()
    properties = table(url=anything())


def archive_error(code: int, description: str) -> NSError:
    return NSError.described(enums.MTLBinaryArchiveDomain, code, description)


def function_key(function: MTLFunction) -> str:
    """What names a compiled kernel; it holds everything that the code depends on."""
    library = function._library
    target = library._device._executor.target
    return compiler.artifact_key(function._program, function._name, function._constants, target)


# Raised when a kernel is read and the file's records about it are wrong.
_DAMAGED = (KeyError, zipfile.BadZipFile, OSError, EOFError, ValueError, struct.error)


class Kernels(Protocol):
    """Compiled kernels by key."""

    def keys(self) -> list[str]: ...

    def read(self, key: str) -> bytes:
        """One kernel; raises one of `_DAMAGED` if it is missing or damaged."""


class StoredKernels:
    """The kernels in an archive's file, by key.

    The file is open during a call only: a program may have more archives than a process may have
    open files. It is read again when it has been replaced.
    """

    def __init__(self, path: Path) -> None:
        """Raises ValueError or OSError for a file that is not an archive or is not trusted."""
        self._path = path
        self._version: tuple[int, ...] = ()
        self._members: dict[str, zipfile.ZipInfo] = {}
        if (why := ownership.distrusted_folder(path.parent)) is not None:
            raise ValueError(_untrusted(path, why))
        with self._opened():
            pass

    def keys(self) -> list[str]:
        with self._opened():
            return list(self._members)

    def read(self, key: str) -> bytes:
        """One kernel; raises one of `_DAMAGED` if it is missing or damaged."""
        with self._opened() as file:
            member = self._members[key]
            stored = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
            if not stored or member.compress_size != member.file_size:
                raise zipfile.BadZipFile(f"{key} is not stored as archives store kernels")
            file.seek(member.header_offset)
            head = file.read(_LOCAL_HEAD.size)
            signature, name_length, extra_length = _LOCAL_HEAD.unpack(head)
            file.seek(name_length + extra_length, os.SEEK_CUR)
            rest = os.fstat(file.fileno()).st_size - file.tell()
            data = file.read(member.file_size) if member.file_size <= rest else b""
        if signature != b"PK\3\4" or zlib.crc32(data) != member.CRC:
            raise zipfile.BadZipFile(f"the data of {key} are damaged")
        return data

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            if (why := ownership.distrusted(status)) is not None:
                raise ValueError(_untrusted(self._path, f"it {why}"))
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            if version != self._version:
                self._members = self._directory(file)
                self._version = version
            yield file

    def _directory(self, file: IO[bytes]) -> dict[str, zipfile.ZipInfo]:
        try:
            return {member.filename: member for member in zipfile.ZipFile(file).infolist()}
        except (zipfile.BadZipFile, NotImplementedError) as problem:
            text = f"{self._path} is not a softmetal binary archive: {problem}"
            raise ValueError(text) from None


def _created(path: Path) -> IO[bytes]:
    """A new file with the permissions of the umask, except that only its owner can write it: an
    archive that others can write is not loaded."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o644))


_LOCAL_HEAD = struct.Struct("<4s22xHH")  # of a ZIP member: signature, lengths of name and extra


def _untrusted(path: Path, why: str) -> str:
    return (
        f"{path} holds native code and is not loaded because {why}: keep archives in files and "
        "folders that only you can write"
    )


class MTLBinaryArchive(Labelled):
    """Compiled kernels by key: those of files, each read at its first use, and new ones."""

    __slots__ = ("_added", "_device", "_stored")

    def __init__(self, device: MTLDevice, stored: Kernels | None) -> None:
        super().__init__()
        self._device = device
        self._stored = stored
        self._added: dict[str, bytes] = {}

    # MTL: -device
    def device(self) -> MTLDevice:
        return self._device

    # MTL: -addComputePipelineFunctionsWithDescriptor:error:
    def addComputePipelineFunctionsWithDescriptor_error_(
        self, descriptor: MTLComputePipelineDescriptor, error: None
    ) -> tuple[bool, NSError | None]:
        function: MTLFunction = descriptor.computeFunction()
        try:
            artifact = compiler.compile_kernel(
                function._program,
                function._name,
                function._constants,
                target=self._device._executor.target,
            )
        except CompileError as problem:
            code = enums.MTLBinaryArchiveErrorCompilationFailure
            return False, archive_error(code, str(problem))
        self._added[function_key(function)] = compiler.artifact_to_bytes(artifact)
        return True, None

    # MTL: -serializeToURL:error:
    def serializeToURL_error_(
        self, url: NSURL | str | os.PathLike[str], error: None
    ) -> tuple[bool, NSError | None]:
        """Write a temporary file and rename it: a reader never sees half a file."""
        path = file_path(url)
        if reason := host.archive_refusal(self._keys()):
            return False, archive_error(enums.MTLBinaryArchiveErrorInvalidFile, reason)
        temporary = path.parent / f".softmetal-{secrets.token_hex(8)}.partial"
        try:
            with _created(temporary) as file:
                file.write(host.archive_head())
                with zipfile.ZipFile(file, "w") as stored:
                    for key in self._keys():
                        if (code := self._code(key)) is not None:
                            stored.writestr(key, code)
            os.replace(temporary, path)
        except OSError as problem:
            return False, archive_error(enums.MTLBinaryArchiveErrorInvalidFile, str(problem))
        finally:
            with suppress(OSError):
                temporary.unlink()
        return True, None

    def _find(self, function: MTLFunction) -> Artifact | None:
        code = self._code(function_key(function))
        return compiler.artifact_from_bytes(code) if code is not None else None

    def _keys(self) -> list[str]:
        try:
            stored = self._stored.keys() if self._stored is not None else []
        except _DAMAGED:  # the file was removed or damaged meanwhile
            stored = []
        return list(dict.fromkeys([*stored, *self._added]))

    def _code(self, key: str) -> bytes | None:
        """The kernel, None if it is missing or damaged in the file."""
        if key in self._added or self._stored is None:
            return self._added.get(key)
        try:
            return self._stored.read(key)
        except _DAMAGED:
            return None
