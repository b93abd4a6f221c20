"""Commands as data, which a queue encodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, repeat
from typing import Any

import numpy as np

from lbrx.metal.binding import Metal
from lbrx.metal.buffer import Buffer
from lbrx.metal.hazards import Access
from lbrx.metal.library import Pipeline

Size = tuple[int, int, int]
Argument = Buffer | bytes | None  # bound at its index in the list of arguments
Check = Callable[[], Exception | None]


class NumberSlot(bytes):
    """The bytes of a number that is another one in each run of a list."""

    number: int  # its index among the numbers of a run
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, value: bytes, number: int, dtype: np.dtype[Any]) -> NumberSlot:
        """A slot for a number, with the value that it had when the list was made."""
        made = cls(value)
        made.number = number
        made.dtype = dtype
        return made

    def holding(self, value: float) -> bytes:
        """The bytes of another number in the same dtype."""
        return np.array(value).astype(self.dtype).tobytes()


@dataclass(frozen=True)
class Work:
    """What a command computes, as a profiler shows it."""

    shapes: str  # of operands and results
    nbytes: int  # the least that must be read and written
    operations: float  # floating-point
    choice: str = ""  # the reason for the variant
    scope: int = 0  # the same for all commands that do this work together
    part: int = 0  # the position of this command among them


@dataclass(frozen=True)
class Dispatch:
    """A kernel over a grid of threads."""

    pipeline: Pipeline
    arguments: tuple[Argument, ...]
    grid: Size
    group: Size
    threadgroup_memory: tuple[int, ...] = ()
    kernel: str = ""
    variant: str = ""
    check: Check | None = None
    work: Work | None = None

    @cached_property
    def label(self) -> str:
        """The name that it is counted under."""
        name = self.kernel or self.pipeline.name
        return f"{name}:{self.variant}" if self.variant else name

    @cached_property
    def sizes(self) -> tuple[Any, Any]:
        """Grid and threadgroup as Metal takes them."""
        return Metal.MTLSizeMake(*self.grid), Metal.MTLSizeMake(*self.group)

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each `kernel:variant` is run."""
        return {self.label: 1}

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers among the arguments."""
        return [x for x in self.arguments if isinstance(x, Buffer)]

    @property
    def accesses(self) -> list[Access]:
        """The buffers among the arguments."""
        places = self.pipeline.written
        return [
            (i, x, places is None or i in places)
            for i, x in enumerate(self.arguments)
            if isinstance(x, Buffer)
        ]

    @property
    def values(self) -> list[tuple[int, bytes | None]]:
        """The other arguments with their indices."""
        return [(i, x) for i, x in enumerate(self.arguments) if not isinstance(x, Buffer)]

    @property
    def written(self) -> list[Buffer]:
        """The buffers that the kernel may write."""
        return [buffer for _, buffer, written in self.accesses if written]


@dataclass(frozen=True)
class Encoded:
    """Work that encodes itself into an MTLCommandBuffer, such as an MPS product."""

    name: str
    buffers: tuple[Buffer, ...]
    encode: Callable[[Any, Sequence[Buffer]], object]
    variant: str = ""
    work: Work | None = None
    kernels: Mapping[str, int] | None = None
    """The kernels to count in its place, if it is a list of them."""
    written_at: frozenset[int] | None = None
    """Indices of the buffers that it writes; None for all."""
    seconds: float = 0.0
    """How long the device takes, modelled; 0 if that is not known."""

    @cached_property
    def label(self) -> str:
        """`name:variant`, as statistics show it."""
        return f"{self.name}:{self.variant}" if self.variant else self.name

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How often each `kernel:variant` is run."""
        return {self.label: 1} if self.kernels is None else self.kernels

    def accesses_to(self, buffers: Sequence[Buffer]) -> list[Access]:
        """What it does with buffers in place of its own."""
        written = self.written_at
        writes = repeat(True) if written is None else map(written.__contains__, count())
        return [*zip(count(), buffers, writes, strict=False)]

    @property
    def written(self) -> list[Buffer]:
        """The buffers that the command writes."""
        return [buffer for _, buffer, written in self.accesses_to(self.buffers) if written]


Command = Dispatch | Encoded
