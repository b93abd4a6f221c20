"""What a device's kernels are compiled to.

A target is light: what generates code is imported when something must be compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from softmetal.types import Argument, Artifact, Function, Program

if TYPE_CHECKING:
    from softmetal.compiler.diagnostics import SourceMap
    from softmetal.compiler.instrument import Site


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One kernel with its function constants, to be compiled."""

    program: Program
    function: Function
    constants: Mapping[int, bytes]
    checked: bool  # instrumented for the checking modes
    places: SourceMap

    def columns(self, sites: Iterable[Site]) -> list[tuple[str, int, int]]:
        """Sites in the user's own columns."""
        column = self.places.column
        return [(s.file, s.line, column(s.file, s.line, s.column)) for s in sites]


class Target(Protocol):
    """A device's compile target: it generates code and describes it."""

    key: tuple[str, ...]  # what the code depends on besides the kernel, for caches

    def build(self, source: KernelSource, folder: Path) -> None:
        """Write a kernel's code into a folder; raises CompileError."""

    def describe(self, function: Function, folder: Path, checks: frozenset[str]) -> Artifact:
        """What was built into a folder."""


def arguments(function: Function, words: tuple[int, ...]) -> tuple[Argument, ...]:
    """The arguments of a kernel, from the words that `describe` in entry.h put after the head."""
    found = []
    for position, parameter in enumerate(function.parameters):
        kind, index, size, alignment, writable, reference = words[position * 6 : position * 6 + 6]
        if kind < 2:
            name = ("buffer", "threadgroup")[kind]
            found.append(
                Argument(parameter.name, name, index, parameter.type, size, alignment,
                         bool(writable), bool(reference))
            )  # fmt: skip
    return tuple(found)
