"""Kernels as PTX, which NVIDIA's driver or ptxas turns into machine code."""

from __future__ import annotations

import json
import re
from pathlib import Path

from softmetal.compiler.target import KernelSource, arguments
from softmetal.errors import CompileError
from softmetal.toolchain import disk_cache
from softmetal.types import Artifact, CheckMap, Function, Mode, Variable

INCLUDE = Path(__file__).parent / "include"
CODE, _INFO, _CHECKS = "kernel.ptx", "info", "checks"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")  # newer GPUs run the code of older ones
_CODE_GENERATORS = tuple(
    Path(__file__).with_name(f"{name}.py")
    for name in ("alignment", "codegen", "instrumentation", "stopping", "target")
)


_OUR_POINTERS = re.compile(r"softmetalL?\d+(?:log|check)_block")


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
        from softmetal.executors.cuda import codegen

        made = codegen.generate(source, self.architecture, self._stoppable)
        (folder / CODE).write_text(made.ptx)
        logs = "log_block" in made.ptx
        (folder / _INFO).write_text(json.dumps([made.words, _threadgroup_bytes(made.ptx), logs]))
        if (checked := made.checked) is not None:
            names = (checked.threadgroup, checked.constants)
            (folder / _CHECKS).write_text(json.dumps([source.columns(checked.sites), *names]))

    def describe(self, function: Function, folder: Path, checks: frozenset[str]) -> Artifact:
        if impossible := sorted(checks - {"bounds"}):
            raise CompileError(
                f"error: the checking mode {impossible[0]!r} needs the CPU, a GPU has 'bounds': "
                "change SOFTMETAL_CHECK, or SOFTMETAL_DEVICE\n"
            )
        words, threadgroup, logs = json.loads((folder / _INFO).read_text())
        _, _, _, limit, *rest = words
        known = arguments(function, tuple(rest))
        return Artifact(
            *(function.name, folder / CODE, Mode.FLAT, known, threadgroup, limit, checks),
            check_map=_check_map(folder) if checks else None,
            logs=logs,
        )


def _check_map(folder: Path) -> CheckMap:
    """What findings refer to by number; the kernel itself knows where its variables are."""
    sites, *names = json.loads((folder / _CHECKS).read_text())
    threadgroup, constants = (tuple(Variable(n, 0, 0) for n in group) for group in names)
    return CheckMap(tuple(tuple(site) for site in sites), threadgroup, constants, 0)


def _threadgroup_bytes(ptx: str) -> int:
    """The sizes of a kernel's threadgroup variables together."""
    arrays = re.findall(r"^\s*\.shared \.align \d+ \.b8 \S+\[(\d+)\];", ptx, re.MULTILINE)
    scalars = re.findall(r"^\s*\.shared \.align \d+ \.[bu](\d+) ([^\s\[]+);", ptx, re.MULTILINE)
    used = [int(bits) // 8 for bits, name in scalars if not _OUR_POINTERS.search(name)]
    return sum(map(int, arrays)) + sum(used)
