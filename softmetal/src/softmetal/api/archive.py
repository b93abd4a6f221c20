"""MTLBinaryArchive: compiled kernels in a file that the program names."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from softmetal import compiler
from softmetal.api import enums
from softmetal.api.foundation import NSURL, NSError, file_path
from softmetal.api.library import MTLFunction
from softmetal.api.objects import Descriptor, Labelled, anything, table
from softmetal.errors import CompileError
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
    return compiler.artifact_key(function._library._program, function._name, function._constants)


# Raised when a kernel is read and the file's records about it are wrong.
_DAMAGED = (KeyError, zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError)


def open_archive(path: Path) -> zipfile.ZipFile:
    """Raises ValueError or OSError for a file that is not an archive."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError) as problem:
        raise ValueError(f"{path} is not a softmetal binary archive: {problem}") from None


class MTLBinaryArchive(Labelled):
    """Compiled kernels by key: those of a file, each read at its first use, and new ones."""

    __slots__ = ("_added", "_device", "_stored")

    def __init__(self, device: MTLDevice, stored: zipfile.ZipFile | None) -> None:
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
                function._library._program, function._name, function._constants
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
        try:
            with (
                tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file,
                zipfile.ZipFile(file, "w") as stored,
            ):
                for key in self._keys():
                    if (code := self._code(key)) is not None:
                        stored.writestr(key, code)
            os.replace(file.name, path)
        except OSError as problem:
            return False, archive_error(enums.MTLBinaryArchiveErrorInvalidFile, str(problem))
        return True, None

    def _find(self, function: MTLFunction) -> Artifact | None:
        code = self._code(function_key(function))
        return compiler.artifact_from_bytes(code) if code is not None else None

    def _keys(self) -> list[str]:
        stored = self._stored.namelist() if self._stored is not None else []
        return list(dict.fromkeys([*stored, *self._added]))

    def _code(self, key: str) -> bytes | None:
        """The kernel, None if it is missing or damaged in the file."""
        if key in self._added or self._stored is None:
            return self._added.get(key)
        try:
            member = self._stored.getinfo(key)
            whole = member.compress_type == zipfile.ZIP_STORED  # as they are written
            return self._stored.read(member) if whole else None
        except _DAMAGED:
            return None
