"""Kernels compiled ahead of time, for NVIDIA GPUs that need not be in this machine.

A kernel's PTX begins with two comments: the key that binary archives know it by, and its
description. Machine code lies beside it in a file of the same name.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

from softmetal import compiler, profiles
from softmetal.api.archive import MTLBinaryArchive
from softmetal.api.device import MTLDevice
from softmetal.api.library import MTLFunction
from softmetal.errors import SettingError
from softmetal.executors.cuda.target import ARCHITECTURES, PtxTarget
from softmetal.executors.null import NullExecutor
from softmetal.toolchain import ownership, ptxas

_MARK = b"// softmetal "


def modelled_gpu() -> MTLDevice:
    """A device that runs nothing and reports a GPU's features, to plan kernels for one."""
    return MTLDevice(NullExecutor(), profiles.find("apple-m3-max"))


def compile_for(function: MTLFunction, architecture: str, output: Path) -> list[Path]:
    """Write a kernel as `output`.ptx and, where ptxas is installed, as `output`.cubin; returns the
    files."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise SettingError(f"{architecture!r} is not a target: give one of {known}")
    target = PtxTarget(architecture)
    program, name = function._program, function._name
    artifact = compiler.compile_kernel(program, name, function._constants, target=target)
    key = compiler.artifact_key(program, name, function._constants, target)
    description, _, code = compiler.artifact_to_bytes(artifact).partition(b"\n")
    text = output.with_name(f"{output.name}.ptx")
    lines = (_MARK + key.encode(), _MARK + description, code)
    text.write_bytes(b"\n".join(lines))
    if ptxas.path() is None:
        return [text]
    machine_code = output.with_name(f"{output.name}.cubin")
    ptxas.assemble(text, architecture, machine_code)
    return [text, machine_code]


def built_archive(device: MTLDevice, folder: Path) -> MTLBinaryArchive | None:
    """The kernels that `compile_for` wrote into a folder, for this device's pipelines; None if the
    device is not an NVIDIA GPU. Kernels of other targets and versions of softmetal are not found.

    Raises SettingError for a folder that other users can write.
    """
    target = device._executor.target
    if not isinstance(target, PtxTarget):
        return None
    if (why := ownership.distrusted_folder(folder)) is not None:
        raise SettingError(f"kernels in {folder} are not loaded because {why}: make it yours alone")
    return MTLBinaryArchive(device, BuiltKernels(folder, target.runs_machine_code))


class BuiltKernels:
    """The files of a folder as a binary archive's kernels, by key."""

    def __init__(self, folder: Path, machine_code: bool) -> None:
        self._folder = folder
        self._machine_code = machine_code  # whether the GPU runs that of the target

    @cached_property
    def _files(self) -> dict[str, Path]:
        heads = {file: file.open("rb").readline() for file in sorted(self._folder.glob("*.ptx"))}
        return {
            line[len(_MARK) :].strip().decode(errors="replace"): file
            for file, line in heads.items()
            if line.startswith(_MARK)
        }

    def keys(self) -> list[str]:
        """The keys of all kernels in the folder."""
        return list(self._files)

    def read(self, key: str) -> bytes:
        """One kernel with its description; raises KeyError, ValueError or OSError."""
        text = self._files[key]
        _, described, code = text.read_bytes().split(b"\n", 2)
        fields = json.loads(described.removeprefix(_MARK))
        machine_code = text.with_suffix(".cubin")
        if self._machine_code and machine_code.exists():
            code, fields["file"] = machine_code.read_bytes(), "kernel.cubin"
        return json.dumps(fields).encode() + b"\n" + code
