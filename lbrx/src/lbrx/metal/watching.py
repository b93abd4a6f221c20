"""Watching one evaluation, so that it can be repeated with other memory.

A watcher is told of the buffers that its thread takes from the pool and of the commands that it
runs. Everything else that the host does with memory cannot be repeated from these two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lbrx.metal.buffer import Buffer
    from lbrx.metal.commands import Command


class Watcher(Protocol):
    """Is told what this thread does with a device."""

    def allocated(self, buffer: Buffer, label: str) -> None:
        """A buffer was taken from the pool."""

    def ran(self, command: Command) -> None:
        """A command is about to be encoded."""

    def refuse(self) -> None:
        """The host did something else with memory, such as reading a buffer."""


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
watcher = _watcher.get


@contextmanager
def watching(told: Watcher) -> Iterator[None]:
    """A context within which a watcher is told what this thread does."""
    token = _watcher.set(told)
    try:
        yield
    finally:
        _watcher.reset(token)


def unrepeatable() -> None:
    """Called where the host reads, writes or shares memory."""
    told = watcher()
    if told is not None:
        told.refuse()
