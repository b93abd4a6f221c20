"""Kernels as PTX, which NVIDIA's driver or ptxas turns into machine code."""

from __future__ import annotations

import json
import re
from pathlib import Path

from softmetal.compiler.target import KernelSource, arguments
from softmetal.errors import CompileError
from softmetal.toolchain import disk_cache
from softmetal.types import Artifact, Function, Mode

INCLUDE = Path(__file__).parent / "include"
CODE, _INFO = "kernel.ptx", "info"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")  # newer GPUs run the code of older ones
_CODE_GENERATORS = tuple(Path(__file__).with_name(n) for n in ("codegen.py", "stopping.py"))


def newest_architecture(major: int, minor: int) -> str:
    """The newest of ARCHITECTURES that a GPU of this compute capability runs."""
    usable = [name for name in ARCHITECTURES if int(name[3:]) <= major * 10 + minor]
    return usable[-1] if usable else f"sm_{major}{minor}"


def entry_name(kernel: str) -> str:
    """What a kernel's entry is called in its PTX: its name, as profilers show it."""
    return "metal_" + re.sub(r"\W", "_", kernel, flags=re.ASCII)


class PtxTarget:
    """See `Target` for the methods."""

    def __init__(
        self, architecture: str, runs_machine_code: bool = True, stoppable: bool = True
    ) -> None:
        self.architecture = architecture
        self._stoppable = stoppable  # loops look whether they have to end
        # A GPU runs machine code of its own major version, and PTX of older ones too.
        self.runs_machine_code = runs_machine_code
        sources = (*sorted(INCLUDE.rglob("*.h")), *_CODE_GENERATORS)
        self.key: tuple[str, ...] = (
            architecture,
            "stoppable" if stoppable else "",
            disk_cache.key_of(*(file.read_bytes() for file in sources)),
        )

    def build(self, source: KernelSource, folder: Path) -> None:
        if source.checked:
            raise CompileError(
                "error: the checking modes need the CPU: unset SOFTMETAL_CHECK or the device\n"
            )
        from softmetal.executors.cuda import codegen

        text, words = codegen.generate(source, self.architecture, self._stoppable)
        (folder / CODE).write_text(text)
        logs = "log_block" in text
        (folder / _INFO).write_text(json.dumps([words, _threadgroup_bytes(text), logs]))

    def describe(self, function: Function, folder: Path, checks: frozenset[str]) -> Artifact:
        words, threadgroup, logs = json.loads((folder / _INFO).read_text())
        _, _, _, limit, *rest = words
        known = arguments(function, tuple(rest))
        return Artifact(
            *(function.name, folder / CODE, Mode.FLAT, known, threadgroup, limit, checks), logs=logs
        )


def _threadgroup_bytes(ptx: str) -> int:
    """The sizes of a kernel's threadgroup variables together."""
    arrays = re.findall(r"^\s*\.shared \.align \d+ \.b8 \S+\[(\d+)\];", ptx, re.MULTILINE)
    scalars = re.findall(r"^\s*\.shared \.align \d+ \.[bu](\d+) ([^\s\[]+);", ptx, re.MULTILINE)
    return sum(map(int, arrays)) + sum(int(b) // 8 for b, n in scalars if "log_block" not in n)
