"""The interface of executors, which run command lists. `cpu` defines what a kernel computes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from softmetal.types import Artifact, Command, Completion, Hardware

if TYPE_CHECKING:
    from softmetal.compiler.target import Target


class Executor(Protocol):
    """A device that runs kernels.

    Kernels, queues, events and tickets are integer handles, memory is an integer address. The
    caller keeps the objects behind them alive until the work that uses them is done. Methods may
    be called from any thread; `unload`, `free` and `free_event`
    also from a finaliser.
    """

    name: str
    target: Target  # what `load` takes is compiled for
    hardware: Hardware | None  # None is this machine's processor and its memory
    unified: bool  # the host and the device have the same memory, at the same addresses

    @property
    def lost(self) -> bool:
        """Whether a fault has ended the device: its lists fail, and a new executor is needed."""

    def load(self, artifact: Artifact) -> int:
        """Load a compiled kernel and return its handle; raises ExecutionError.

        Loading the same path again returns the same handle. Each call needs an `unload`.
        """

    def unload(self, kernel: int) -> None:
        """Undo one `load`. After the last one no command list may still use the kernel."""

    def max_threads(self, kernel: int) -> int:
        """The largest threadgroup that the kernel can have."""

    def allocate(self, length: int, private: bool = False) -> int:
        """The address of `length` zeroed bytes, aligned to 16 KiB; raises MemoryError. The host
        never asks for its side of a private allocation."""

    def host_side(self, address: int, length: int, host: int = 0) -> int:
        """The address at which the host reads and writes an allocation; raises MemoryError.

        It is `address` itself if memory is unified. Otherwise the host's side is `host` if that is
        given, or new memory with what the device has. From then on what the host wrote is on the
        device before a command list runs that is submitted later and uses the allocation, and what
        that list wrote is on the host's side once it has run, and before an event is signalled.
        """

    def free(self, address: int, length: int) -> None:
        """Free an allocation and its host's side. No command list may still use it."""

    def submit(self, queue: int, commands: Sequence[Command]) -> int:
        """Append a command list to a queue without waiting, and return a ticket for it. After an
        error in a list only its signals still execute."""

    def wait(self, ticket: int, timeout: float | None) -> Completion | None:
        """Wait for a ticket, at most `timeout` seconds (None: no limit).

        Returns the times, the error text and the log, or None if it has not finished.
        """

    def forget(self, ticket: int) -> None:
        """Release a ticket; its command list still runs."""

    def new_queue(self) -> int:
        """A new queue. Its command lists run in order; different queues run concurrently."""

    def free_queue(self, queue: int) -> None:
        """Release a queue; pending command lists still run."""

    def new_event(self) -> int:
        """A new monotonic counter, at 0, that the host and command lists signal and wait for."""

    def free_event(self, event: int) -> None:
        """Release an event. No queue may still wait for it."""

    def event_value(self, event: int) -> int:
        """The highest value signalled."""

    def signal_event(self, event: int, value: int) -> None:
        """Signal from the host."""

    def wait_event(self, event: int, value: int, timeout: float | None) -> bool:
        """Wait on the host until the event reaches `value`; False after `timeout` seconds."""


_ELSEWHERE = {"discrete": "cpu"}  # names of executors in another one's module


def find(name: str) -> Executor | None:
    """A new executor; None if no module has one of this name. `NAME` and `NAME:...` are made by the
    function `executor` of the module NAME in this package."""
    kind = name.partition(":")[0]
    module = f"{__name__}.{_ELSEWHERE.get(kind, kind)}"
    if not kind.isidentifier() or find_spec(module) is None:
        return None
    make = getattr(import_module(module), "executor", None)
    found: Executor | None = make(name) if make is not None else None
    return found
