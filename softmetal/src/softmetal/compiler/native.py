"""Kernels as shared objects for the processor of this machine."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from softmetal import registers
from softmetal.compiler.elf import OBJECT, TLS, Elf
from softmetal.compiler.target import KernelSource, arguments
from softmetal.toolchain import targets
from softmetal.types import Artifact, CheckMap, Function, Mode, Variable

_CODE = "kernel.so"


class NativeTarget:
    """See `Target` for the methods."""

    def __init__(self, fibers: bool = False) -> None:
        """With `fibers`, threads that meet are fibers even where loops could run them."""
        host = targets.host()
        self.fibers = fibers
        self.key = (host.triple, host.cpu, *host.flags, *(("fibers",) if fibers else ()))

    def build(self, source: KernelSource, folder: Path) -> None:
        from softmetal.compiler import native_build

        native_build.build(source, folder / _CODE, folder / "sites", self.fibers)

    def describe(self, function: Function, folder: Path, checks: frozenset[str]) -> Artifact:
        elf = Elf.read(folder / _CODE)
        _, mode, _, limit, *words = elf.words("softmetal_info")
        known, size = arguments(function, tuple(words)), elf.thread_local_size()
        stack = elf.largest_frame()
        if mode in (Mode.REGIONS, Mode.SIMDGROUPS):
            (stack,) = elf.words("softmetal_kept")
        taken = registers.modelled_registers(stack, Mode(mode))
        artifact = Artifact(
            *(function.name, folder / _CODE, Mode(mode), known, size, limit), registers=taken
        )
        if not checks:
            return artifact
        sites = tuple(tuple(site) for site in json.loads((folder / "sites").read_text()))
        check_map = _check_map(elf, sites)
        used = sum(variable.size for variable in check_map.threadgroup)  # without gaps between them
        return replace(artifact, checks=checks, check_map=check_map, static_threadgroup_memory=used)


def _check_map(elf: Elf, sites: tuple[tuple[str, int, int], ...]) -> CheckMap:
    threadgroup, anchor = [], 0
    for symbol, offset, size in elf.sized_symbols(TLS):
        if "softmetal_anchor" in symbol:
            anchor = offset
        elif "softmetal_guard" not in symbol:
            threadgroup.append(Variable(local_name(symbol), offset, size))
    constants = [
        Variable(local_name(symbol), address, size)
        for symbol, address, size in elf.sized_symbols(OBJECT)
        if not symbol.startswith("softmetal_")
    ]
    return CheckMap(sites, tuple(threadgroup), tuple(constants), anchor)


def local_name(symbol: str) -> str:
    """The last component of a mangled name: `_ZZL1kPfjE4tile` is tile."""
    found = [symbol[m.end() :][: int(m[0])] for m in re.finditer(r"\d+", symbol)]
    return next((n for n in reversed(found) if n.isidentifier()), symbol)
