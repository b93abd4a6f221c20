"""MTLBinaryArchive: compiled kernels in a file of the program's own."""

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


def read_archive(path: Path) -> dict[str, bytes]:
    """Raises ValueError or OSError for a file that is not an archive."""
    try:
        with zipfile.ZipFile(path) as stored:
            return {name: stored.read(name) for name in stored.namelist()}
    except zipfile.BadZipFile as problem:
        raise ValueError(f"{path} is not a softmetal binary archive: {problem}") from None


class MTLBinaryArchive(Labelled):
    """Compiled kernels by key."""

    __slots__ = ("_artifacts", "_device")

    def __init__(self, device: MTLDevice, artifacts: dict[str, bytes]) -> None:
        super().__init__()
        self._device = device
        self._artifacts = artifacts

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
        self._artifacts[function_key(function)] = compiler.artifact_to_bytes(artifact)
        return True, None

    # MTL: -serializeToURL:error:
    def serializeToURL_error_(
        self, url: NSURL | str | os.PathLike[str], error: None
    ) -> tuple[bool, NSError | None]:
        """Written aside, then put in place: a reader never sees half a file."""
        path = file_path(url)
        try:
            with (
                tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file,
                zipfile.ZipFile(file, "w") as stored,
            ):
                for key, data in self._artifacts.items():
                    stored.writestr(key, data)
            os.replace(file.name, path)
        except OSError as problem:
            return False, archive_error(enums.MTLBinaryArchiveErrorInvalidFile, str(problem))
        return True, None

    def _find(self, function: MTLFunction) -> Artifact | None:
        code = self._artifacts.get(function_key(function))
        return compiler.artifact_from_bytes(code) if code is not None else None
