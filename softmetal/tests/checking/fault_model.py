"""What a seeded fault is: a kernel with one known mistake, and its corrected twin.

The two are written as one text, like a diff: a line that starts with `-` is only in the faulty
kernel, one with `+` only in the corrected one. `//!` marks the lines that a finding may name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fault_host import Host

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
MARK = "//!"

Size = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Buffer:
    """A buffer argument: its bytes, and where the binding starts."""

    array: NDArray[np.generic]
    offset: int = 0
    inline: bool = False  # by setBytes


def zeros(count: int, dtype: str = "f4", offset: int = 0) -> Buffer:
    return Buffer(np.zeros(count, dtype), offset)


def values(count: int, dtype: str = "f4", offset: int = 0, inline: bool = False) -> Buffer:
    return Buffer(np.arange(count).astype(dtype), offset, inline)


def filled(array: object, dtype: str = "u4") -> Buffer:
    return Buffer(np.asarray(array, dtype))


@dataclass(frozen=True)
class Launch:
    """One dispatch: buffer k is argument k, threadgroup[k] the length of threadgroup argument k."""

    buffers: tuple[Buffer, ...]
    threads: Size = (64,)
    groups: Size = (1,)
    grid: Size | None = None  # dispatchThreads instead of dispatchThreadgroups
    threadgroup: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fault:
    """One mistake and the mode that must find it."""

    name: str
    about: str  # one line for the table in the docs
    mode: str
    text: str  # both kernels, as above; the faulty one is called `faulty`
    names: str = ""  # what the finding must name: "buffer 0", "threadgroup memory 's'"
    launch: Launch | None = None
    host: Callable[[Host, bool], None] | None = None  # steps instead of a launch; True: corrected
    kernels: tuple[str, ...] = ("faulty",)  # those that the finding must name
    prelude: str = ""  # MSL that both kernels share

    def _variant(self, keep: str) -> str:
        drop = "-" if keep == "+" else "+"
        lines = []
        for line in self.text.strip("\n").splitlines():
            kept = "" if line.startswith(drop) else line
            lines.append(" " + kept[1:] if kept.startswith(keep) else kept)
        return "\n".join(lines) + "\n"

    @property
    def faulty(self) -> str:
        return self._variant("-")

    @property
    def fixed(self) -> str:
        """The corrected kernel; the same text where the mistake is the host's."""
        return self._variant("+").replace("faulty(", "fixed(")

    @property
    def source(self) -> str:
        """The library with both kernels, the faulty one first."""
        start = HEAD + self.prelude.strip("\n") + "\n" + self.faulty
        return start if self.host is not None else start + self.fixed

    @property
    def lines(self) -> set[int]:
        """The marked lines of the faulty kernel within the library."""
        start = HEAD.count("\n") + self.prelude.strip("\n").count("\n") + 2
        return {
            number
            for number, line in enumerate(self.faulty.splitlines(), start)
            if line.rstrip().endswith(MARK)
        }
