"""The null executor: it records what is launched and computes nothing."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from threading import Condition

from softmetal import compiler
from softmetal.compiler.target import Target
from softmetal.errors import ExecutionError
from softmetal.types import MAX_THREADS, Artifact, Command, Completion, Hardware, Signal, Wait

_PAGE = 16 << 10


def executor(name: str) -> NullExecutor | None:
    return NullExecutor() if name == "null" else None


class NullExecutor:
    """Performs signals and waits, so that programs end. See `Executor` for the methods."""

    name = "null"
    hardware: Hardware | None = None
    unified = True
    lost = False

    def __init__(self) -> None:
        self.target: Target = compiler.native()
        self.commands: list[Command] = []  # everything launched, in order of execution
        self._changed = Condition()
        self._handles = count(1)
        self._kernels: dict[Path, int] = {}
        self._memory: dict[int, mmap.mmap] = {}
        self._queues: dict[int, deque[tuple[int, deque[Command]]]] = {}
        self._events: dict[int, int] = {}
        self._tickets: dict[int, Completion | None] = {}
        self._started: dict[int, float] = {}

    def load(self, artifact: Artifact) -> int:
        with self._changed:
            return self._kernels.setdefault(artifact.path, next(self._handles))

    def unload(self, kernel: int) -> None:
        """Kernels are numbers here."""

    def max_threads(self, kernel: int) -> int:
        return MAX_THREADS

    def allocate(self, length: int, private: bool = False) -> int:
        try:
            memory = mmap.mmap(-1, max(length, 1) + _PAGE)
        except (OSError, OverflowError):
            raise MemoryError(f"no memory for a buffer of {length} bytes") from None
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        address = (start + _PAGE - 1) // _PAGE * _PAGE
        self._memory[address] = memory
        return address

    def host_side(self, address: int, length: int, host: int = 0) -> int:
        return address

    def free(self, address: int, length: int) -> None:
        del self._memory[address]

    def new_queue(self) -> int:
        with self._changed:
            queue = next(self._handles)
            self._queues[queue] = deque()
            return queue

    def free_queue(self, queue: int) -> None:
        """Pending command lists still run."""

    def submit(self, queue: int, commands: Sequence[Command]) -> int:
        with self._changed:
            ticket = next(self._handles)
            self._tickets[ticket] = None
            self._queues[queue].append((ticket, deque(commands)))
            self._advance()
            return ticket

    def wait(self, ticket: int, timeout: float | None) -> Completion | None:
        with self._changed:
            if ticket not in self._tickets:
                raise ExecutionError(f"ticket {ticket} is unknown or was forgotten")
            self._changed.wait_for(lambda: self._tickets[ticket], timeout)
            return self._tickets[ticket]

    def forget(self, ticket: int) -> None:
        with self._changed:
            if ticket not in self._tickets:
                raise ExecutionError(f"ticket {ticket} is unknown or was forgotten")
            del self._tickets[ticket]

    def new_event(self) -> int:
        with self._changed:
            event = next(self._handles)
            self._events[event] = 0
            return event

    def free_event(self, event: int) -> None:
        with self._changed:
            del self._events[event]

    def event_value(self, event: int) -> int:
        return self._events[event]

    def signal_event(self, event: int, value: int) -> None:
        with self._changed:
            self._events[event] = max(self._events[event], value)
            self._advance()

    def wait_event(self, event: int, value: int, timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._events[event] >= value, timeout)

    def _advance(self) -> None:
        """Advance every queue as far as possible, until no signal releases another."""
        moved = True
        while moved:
            moved = False
            for queue in self._queues.values():
                moved |= self._run(queue)
        self._changed.notify_all()

    def _run(self, queue: deque[tuple[int, deque[Command]]]) -> bool:
        moved = False
        while queue:
            ticket, commands = queue[0]
            start = self._started.setdefault(ticket, time.monotonic())
            while commands:
                command = commands[0]
                if isinstance(command, Wait) and self._events[command.event] < command.value:
                    return moved
                if isinstance(command, Signal):
                    event = command.event
                    self._events[event] = max(self._events[event], command.value)
                self.commands.append(commands.popleft())
                moved = True
            queue.popleft()
            del self._started[ticket]
            if ticket in self._tickets:
                self._tickets[ticket] = Completion(start, time.monotonic(), None, ())
            moved = True
        return moved
