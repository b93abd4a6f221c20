"""Kernels compiled ahead of time, for NVIDIA GPUs that need not be in this machine."""

from __future__ import annotations

from pathlib import Path

from softmetal import compiler, profiles
from softmetal.api.device import MTLDevice
from softmetal.api.library import MTLFunction
from softmetal.errors import SettingError
from softmetal.executors.cuda.target import ARCHITECTURES, PtxTarget
from softmetal.executors.null import NullExecutor
from softmetal.toolchain import ptxas


def modelled_gpu() -> MTLDevice:
    """A device that runs nothing and reports a GPU's features, to plan kernels for one."""
    return MTLDevice(NullExecutor(), profiles.find("apple-m3-max"))


def compile_for(function: MTLFunction, architecture: str, output: Path) -> list[Path]:
    """Write a kernel as `output`.ptx and, where ptxas is installed, as `output`.cubin."""
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise SettingError(f"{architecture!r} is not a target: give one of {known}")
    target = PtxTarget(architecture)
    program, name = function._library._program, function._name
    artifact = compiler.compile_kernel(program, name, function._constants, target=target)
    text = output.with_name(output.name + ".ptx")
    text.write_bytes(artifact.path.read_bytes())
    if ptxas.path() is None:
        return [text]
    code = output.with_name(output.name + ".cubin")
    ptxas.assemble(text, architecture, code)
    return [text, code]
