"""The executor seam: what runs command lists. `cpu` is the definition of what a kernel means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from softmetal.types import Artifact, Command, Completion


class Executor(Protocol):
    """A device. Handles and addresses are integers; the caller keeps what they name alive."""

    name: str

    def load(self, artifact: Artifact) -> int:
        """Make a compiled kernel runnable; returns its handle. The same path twice is cheap."""

    def allocate(self, length: int) -> int:
        """The address of `length` zeroed bytes, page-aligned; raises MemoryError."""

    def free(self, address: int, length: int) -> None:
        """Give an allocation back."""

    def submit(self, queue: int, commands: Sequence[Command]) -> int:
        """Start a command list after those already in the queue; returns a ticket."""

    def wait(self, ticket: int, timeout: float | None) -> Completion | None:
        """The outcome of a finished ticket, until `forget`; None after `timeout` seconds."""

    def forget(self, ticket: int) -> None:
        """The ticket will not be asked about again."""

    def new_queue(self) -> int:
        """A queue: its command lists run in order; different queues run at once."""

    def free_queue(self, queue: int) -> None:
        """No more command lists will come; pending ones still run."""

    def new_event(self) -> int:
        """A monotonic counter that the host and command lists signal and wait for, at 0."""

    def free_event(self, event: int) -> None:
        """Give an event back."""

    def event_value(self, event: int) -> int:
        """The last value signalled."""

    def signal_event(self, event: int, value: int) -> None:
        """Signal from the host."""

    def wait_event(self, event: int, value: int, timeout: float | None) -> bool:
        """Wait on the host until the event reaches `value`; False after `timeout` seconds."""
