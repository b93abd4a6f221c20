"""Commands as data: a queue encodes them at once, or appends them to a list for a replay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
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
    """The bytes of a number that a replay may change."""

    number: int  # its index among the numbers of the replay
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, value: bytes, number: int, dtype: np.dtype[Any]) -> NumberSlot:
        """A slot for a traced number, with the value that it had during tracing."""
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


class _Scope:
    """The commands within one `working`."""

    def __init__(self, work: Callable[[], Work]) -> None:
        self._describe = work
        self._number = next(_scopes)
        self._parts = itertools.count()

    @cached_property
    def _work(self) -> Work:  # as it is before the first command: later its inputs may be dropped
        return self._describe()

    def next_work(self) -> Work:
        return replace(self._work, scope=self._number, part=next(self._parts))


_scopes = itertools.count(1)
_work: ContextVar[_Scope | None] = ContextVar("work", default=None)


@contextmanager
def working(work: Callable[[], Work]) -> Iterator[None]:
    """Commands within it belong to this work; the function is called at most once, if it is
    needed."""
    token = _work.set(_Scope(work))
    try:
        yield
    finally:
        _work.reset(token)


_choice: ContextVar[Callable[[], str] | None] = ContextVar("choice", default=None)


@contextmanager
def chosen(why: Callable[[], str]) -> Iterator[None]:
    """Commands within it run a variant that was chosen for this reason."""
    token = _choice.set(why)
    try:
        yield
    finally:
        _choice.reset(token)


def current_work() -> Work | None:
    """The work that commands are charged to now; None where nobody profiles."""
    scope, why = _work.get(), _choice.get()
    work = scope.next_work() if scope is not None else None
    return replace(work, choice=why()) if work is not None and why is not None else work


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

    def with_arguments(self, arguments: tuple[Argument, ...]) -> Dispatch:
        """The same kernel and grid with other arguments."""
        made = object.__new__(Dispatch)  # `replace` takes several times as long
        made.__dict__.update(self.__dict__, arguments=arguments)
        return made

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

    @property
    def label(self) -> str:
        """`name:variant`, as statistics show it."""
        return f"{self.name}:{self.variant}" if self.variant else self.name

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each `kernel:variant` is run."""
        return {self.label: 1} if self.kernels is None else self.kernels

    def accesses_to(self, buffers: Sequence[Buffer]) -> list[Access]:
        """What it does with buffers in place of its own."""
        places = self.written_at
        return [(i, x, places is None or i in places) for i, x in enumerate(buffers)]

    @property
    def written(self) -> list[Buffer]:
        """The buffers that the command writes."""
        return [buffer for _, buffer, written in self.accesses_to(self.buffers) if written]


Command = Dispatch | Encoded


@dataclass(frozen=True)
class Recorded:
    """Recorded commands, and the memory that was allocated for them."""

    commands: list[Command] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    """Blocks by `id`, which the commands keep alive."""


_recorder: ContextVar[Recorded | None] = ContextVar("recorder", default=None)
recorder = _recorder.get
"""The list that this thread's commands are appended to, if it records, else None."""


def is_settled(buffers: Sequence[Buffer]) -> bool:
    """Whether these have their contents before a list begins that is being recorded: kernels of it
    may read them before the kernels in front of theirs have ended."""
    listed = recorder()
    if listed is None:
        return False
    blocks = {id(buffer.block) for buffer in buffers}
    return not any(id(b.block) in blocks for command in listed.commands for b in command.written)


@contextmanager
def recording() -> Iterator[Recorded]:
    """Commands of this thread within it are appended to a list and not run."""
    recorded = Recorded()
    token = _recorder.set(recorded)
    try:
        yield recorded
    finally:
        _recorder.reset(token)
