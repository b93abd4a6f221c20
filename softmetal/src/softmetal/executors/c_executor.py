"""What executors share whose command lists are run by C code: the CPU's runtime, CUDA's driver."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from ctypes import byref, c_bool, c_char_p, c_size_t, c_uint, c_uint64, c_void_p
from types import SimpleNamespace

from softmetal.errors import ExecutionError
from softmetal.executors.findings import Finding, Findings, with_findings
from softmetal.executors.loading import LoadedKernels
from softmetal.executors.outcome import Outcome
from softmetal.executors.packing import Packer
from softmetal.executors.process import Process, Tickets, refuse_fork, wait_in_slices
from softmetal.types import Artifact, Command, Completion

Signatures = Mapping[str, tuple[type | None, Sequence[type]]]
ERROR_BYTES = 8192
# The functions that both libraries have, after a prefix; a device or its pool comes first.
SHARED: Signatures = {
    "share": (c_bool, [c_void_p, c_void_p, c_size_t]),
    "host_side": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "new_queue": (c_void_p, [c_void_p]),
    "free_queue": (None, [c_void_p]),
    "submit": (c_void_p, [c_void_p, c_char_p, c_size_t]),
    "wait": (c_bool, [c_void_p, c_void_p, c_uint64]),
    "forget": (None, [c_void_p]),
    "findings": (c_uint, [c_void_p, c_void_p]),
    "event_value": (c_uint64, [c_void_p]),
    "signal_event": (None, [c_void_p, c_uint64]),
    "wait_event": (c_bool, [c_void_p, c_uint64, c_uint64]),
}


def functions(library: ctypes.CDLL, prefix: str, own: Signatures) -> SimpleNamespace:
    """The functions of a library, by their names without the prefix."""
    found = SimpleNamespace()
    for name, (result, arguments) in {**SHARED, **own}.items():
        function = getattr(library, prefix + name)
        function.restype, function.argtypes = result, arguments
        setattr(found, name, function)
    return found


class CExecutor(ABC):
    """Runs command lists in C. See `Executor` for the methods."""

    unified = False
    memory = "memory"  # what allocations are of, for errors
    no_queue = "cannot start a thread for a command queue"

    def __init__(self, c: SimpleNamespace, device: int, owner: tuple[int, ...] = ()) -> None:
        """`owner` is what comes first for functions that ask for the device on a GPU alone."""
        self._c = c
        self._device = device
        self._owner = owner
        self._packer = Packer()
        self._found = Findings()
        self._kernels = LoadedKernels(self._load, lambda kernel: c.unload(*owner, kernel))
        self._tickets = Tickets(lambda ticket: c.wait(ticket, None, 0), c.forget)

    @property
    def lost(self) -> bool:
        return False

    def load(self, artifact: Artifact) -> int:
        return self._kernels.load(artifact)

    @abstractmethod
    def _load(self, artifact: Artifact) -> int:
        """The handle of a kernel that is not loaded yet; raises ExecutionError."""

    # Findings name kernels that ran before, so those compiled for checking stay.
    def unload(self, kernel: int) -> None:
        if kernel not in self._found.artifacts:
            self._kernels.drop(kernel)

    def allocate(self, length: int, private: bool = False) -> int:
        address: int | None = self._c.allocate(*self._owner, max(length, 1))
        shared = address and not private and not self.unified
        if not address or (shared and not self._c.share(self._device, address, length)):
            raise MemoryError(f"no {self.memory} for a buffer of {length} bytes")
        return address

    def host_side(self, address: int, length: int, host: int = 0) -> int:
        if self.unified:
            return address
        made: int | None = self._c.host_side(self._device, address, host or None)
        if not made and self.lost:
            raise ExecutionError("a fault has ended this GPU's device: its memory cannot be read")
        if not made:
            raise MemoryError(f"no memory for the host's side of a buffer of {length} bytes")
        return made

    def new_queue(self) -> int:
        refuse_fork()
        queue: int | None = self._c.new_queue(self._device)
        if not queue:
            raise ExecutionError(self.no_queue)
        return queue

    def free_queue(self, queue: int) -> None:
        if not Process.forked:
            self._c.free_queue(queue)

    def submit(self, queue: int, commands: Sequence[Command]) -> int:
        if Process.forked:
            refuse_fork()
        data, blocks = self._packer.pack(commands)
        self._begin()
        self._tickets.collect()
        self._kernels.unload_dropped()
        ticket: int | None = self._c.submit(queue, data, len(data))
        if not ticket:
            raise MemoryError(f"no memory for a command list of {len(data)} bytes")
        self._tickets.add(ticket, blocks)
        if self._found.artifacts:
            self._found.submitted(ticket, commands)
        return ticket

    def _begin(self) -> None:  # noqa: B027
        """Called before each list."""

    def wait(self, ticket: int, timeout: float | None) -> Completion | None:
        self._tickets.require(ticket)
        outcome = Outcome()
        if not wait_in_slices(self._c.wait, (ticket, byref(outcome)), timeout):
            return None
        error = outcome.text(read_memory)
        if self._found.artifacts:
            error = with_findings(self._findings(ticket), error)
        return outcome.completion(error, read_memory)

    def _findings(self, ticket: int) -> list[str]:
        address = c_void_p()
        count = self._c.findings(ticket, byref(address))
        size = count * ctypes.sizeof(Finding)
        return self._found.lines(ticket, read_memory(address.value or 0, size) if count else b"")

    def forget(self, ticket: int) -> None:
        if Process.forked:
            return
        if self._found.artifacts:
            self._found.forget(ticket)
        self._tickets.forget(ticket)

    def new_event(self) -> int:
        event: int | None = self._c.new_event(*self._owner)
        if not event:
            raise MemoryError("no memory for an event")
        return event

    def free_event(self, event: int) -> None:
        if not Process.owns_nothing():
            self._c.free_event(*self._owner, event)

    def event_value(self, event: int) -> int:
        value: int = self._c.event_value(event)
        return value

    def signal_event(self, event: int, value: int) -> None:
        self._c.signal_event(event, value)

    def wait_event(self, event: int, value: int, timeout: float | None) -> bool:
        return wait_in_slices(self._c.wait_event, (event, value), timeout)


def read_memory(address: int, size: int) -> bytes:
    """Memory of the C code's process, which is this one unless a test emulates another."""
    return ctypes.string_at(address, size)
