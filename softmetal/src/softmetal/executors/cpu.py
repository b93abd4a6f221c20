"""The CPU executor: kernels as native code, run by the C runtime in softmetal/runtime."""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
import time
from collections import deque
from collections.abc import Sequence
from ctypes import c_bool, c_char_p, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from threading import Lock

from softmetal import checks, env
from softmetal.errors import ExecutionError
from softmetal.executors import openblas
from softmetal.executors.findings import Describer, Finding
from softmetal.executors.packing import Packer
from softmetal.executors.runtime_build import build
from softmetal.types import (
    Artifact,
    CheckMap,
    Command,
    Completion,
    Dispatch,
    LogMessage,
    Region,
    Resources,
)

# ---- loading the runtime --------------------------------------------------------------------

_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "softmetal_new_pool": (c_void_p, [c_uint, c_uint64]),
    "softmetal_set_blas": (None, [c_char_p]),
    "softmetal_shutdown": (None, []),
    "softmetal_load": (c_void_p, [c_char_p, c_char_p, c_char_p, c_size_t]),
    "softmetal_unload": (None, [c_void_p]),
    "softmetal_allocate": (c_void_p, [c_size_t]),
    "softmetal_free": (None, [c_void_p, c_size_t]),
    "softmetal_new_queue": (c_void_p, [c_void_p]),
    "softmetal_free_queue": (None, [c_void_p]),
    "softmetal_submit": (c_void_p, [c_void_p, c_char_p, c_size_t]),
    "softmetal_wait": (c_bool, [c_void_p, c_uint64]),
    "softmetal_result": (c_char_p, [c_void_p, c_void_p]),
    "softmetal_log_entries": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "softmetal_forget": (None, [c_void_p]),
    "softmetal_set_checks": (c_bool, [c_void_p, c_uint, c_uint64, c_char_p, c_uint]),
    "softmetal_set_seed": (None, [c_uint64]),
    "softmetal_findings": (c_uint, [c_void_p, c_void_p]),
    "softmetal_new_event": (c_void_p, []),
    "softmetal_free_event": (None, [c_void_p]),
    "softmetal_event_value": (c_uint64, [c_void_p]),
    "softmetal_signal_event": (None, [c_void_p, c_uint64]),
    "softmetal_wait_event": (c_bool, [c_void_p, c_uint64, c_uint64]),
}


class _Process:
    """Events after which the runtime's threads cannot be used."""

    forked = False
    exiting = False


@cache
def _library() -> ctypes.CDLL:
    # RTLD_GLOBAL: kernels find softmetal_barrier and the like in it.
    library = ctypes.CDLL(str(build()), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.softmetal_set_blas(os.fsencode(openblas.library_path() or ""))
    os.register_at_fork(after_in_child=_after_fork)
    atexit.register(_at_exit, library)
    return library


def _after_fork() -> None:
    _Process.forked = True


def _at_exit(library: ctypes.CDLL) -> None:
    _Process.exiting = True
    if not _Process.forked:
        library.softmetal_shutdown()


# ---- the executor ---------------------------------------------------------------------------

_SLICE_NS = 50_000_000  # the longest wait in C: Python handles Ctrl-C between two
_ERROR_BYTES = 4096
_FAULT_LEVEL = 5  # MTLLogLevelFault
_LOG_HEAD = struct.Struct("<II")
_VARIABLE = struct.Struct("<QQQ")  # sm_variable


_KernelKey = tuple[Path, frozenset[str]]  # its file and its checks


class CpuExecutor:
    """Runs command lists on the cores of this machine. See `Executor` for the methods."""

    name = "cpu"

    def __init__(self) -> None:
        self._c = _library()
        self._pool = self._c.softmetal_new_pool(env.threads(), int(env.timeout() * 1e9))
        self._packer = Packer()
        self._lock = Lock()
        self._kernels: dict[_KernelKey, int] = {}
        self._loads: dict[int, list[_KernelKey]] = {}  # by handle, for each without an `unload`
        self._dropped: deque[int] = deque()  # kernels to unload
        self._artifacts: dict[int, Artifact] = {}  # of kernels compiled for checking
        self._labels: dict[int, dict[tuple[int, int], str]] = {}  # of buffers, by ticket
        self._reported: set[int] = set()  # tickets whose findings are already listed
        self._tickets: dict[int, tuple[object, ...]] = {}  # to objects that they need
        self._abandoned: dict[int, tuple[object, ...]] = {}  # forgotten before they were done

    def load(self, artifact: Artifact) -> int:
        with self._lock:
            self._unload_dropped()
            handle = self._kernels.get((artifact.path, artifact.checks))
            if handle is None:
                error = ctypes.create_string_buffer(_ERROR_BYTES)
                path = os.fsencode(artifact.path)
                name = artifact.name.encode()
                handle = self._c.softmetal_load(path, name, error, _ERROR_BYTES)
                if not handle:
                    text = error.value.decode(errors="replace")
                    raise ExecutionError(f"cannot load kernel {artifact.name}: {text}")
                self._kernels[artifact.path, artifact.checks] = handle
                if artifact.check_map is not None:
                    self._set_checks(handle, artifact, artifact.check_map)
            self._loads.setdefault(handle, []).append((artifact.path, artifact.checks))
        return handle

    # Finalisers call this at any moment on any thread: it leaves a note for the next `load` or
    # `submit`. Findings name kernels that ran before, so those compiled for checking stay.
    def unload(self, kernel: int) -> None:
        if kernel not in self._artifacts:
            self._dropped.append(kernel)

    def _unload_dropped(self) -> None:
        while self._dropped:
            handle = self._dropped.popleft()
            key = self._loads[handle].pop()
            if not self._loads[handle]:
                del self._loads[handle], self._kernels[key]
                self._c.softmetal_unload(handle)

    def _set_checks(self, handle: int, artifact: Artifact, known: CheckMap) -> None:
        modes = sum(1 << i for i, mode in enumerate(checks.MODES) if mode in artifact.checks)
        variables = b"".join(
            _VARIABLE.pack(variable.offset, variable.size, constant)
            for constant, group in enumerate((known.threadgroup, known.constants))
            for variable in group
        )
        count = len(variables) // _VARIABLE.size
        if not self._c.softmetal_set_checks(handle, modes, known.anchor, variables, count):
            raise MemoryError(f"no memory for the checks of kernel {artifact.name}")
        self._artifacts[handle] = artifact

    def allocate(self, length: int) -> int:
        address: int | None = self._c.softmetal_allocate(max(length, 1))
        if not address:
            raise MemoryError(f"no memory for a buffer of {length} bytes")
        return address

    def free(self, address: int, length: int) -> None:
        if not _Process.exiting:  # a kernel may still use it; the process ends anyway
            self._c.softmetal_free(address, max(length, 1))

    def new_queue(self) -> int:
        _refuse_fork()
        queue: int | None = self._c.softmetal_new_queue(self._pool)
        if not queue:
            raise ExecutionError("cannot start a thread for a command queue: check `ulimit -u`")
        return queue

    def free_queue(self, queue: int) -> None:
        if not _Process.forked:
            self._c.softmetal_free_queue(queue)

    def submit(self, queue: int, commands: Sequence[Command]) -> int:
        _refuse_fork()
        data, blocks = self._packer.pack(commands)
        if self._artifacts and (current := checks.current()) is not None:
            self._c.softmetal_set_seed(current.next_seed())
        if self._abandoned:
            self._collect()
        if self._dropped:
            with self._lock:
                self._unload_dropped()
        ticket: int | None = self._c.softmetal_submit(queue, data, len(data))
        if not ticket:
            raise MemoryError(f"no memory for a command list of {len(data)} bytes")
        self._tickets[ticket] = blocks
        if self._artifacts:
            self._labels[ticket] = _labels(commands)
        return ticket

    def wait(self, ticket: int, timeout: float | None) -> Completion | None:
        if ticket not in self._tickets:
            raise ExecutionError(f"ticket {ticket} is unknown or was forgotten")
        if not _wait(self._c.softmetal_wait, (ticket,), timeout):
            return None
        return self._completion(ticket)

    def forget(self, ticket: int) -> None:
        blocks = self._tickets.pop(ticket, None)
        self._labels.pop(ticket, None)
        self._reported.discard(ticket)
        if blocks is None:
            raise ExecutionError(f"ticket {ticket} is unknown or was forgotten")
        if blocks and not self._c.softmetal_wait(ticket, 0):
            self._abandoned[ticket] = blocks
        else:
            self._c.softmetal_forget(ticket)

    def new_event(self) -> int:
        event: int | None = self._c.softmetal_new_event()
        if not event:
            raise MemoryError("no memory for an event")
        return event

    def free_event(self, event: int) -> None:
        if not _Process.exiting:  # a queue may still wait for it
            self._c.softmetal_free_event(event)

    def event_value(self, event: int) -> int:
        value: int = self._c.softmetal_event_value(event)
        return value

    def signal_event(self, event: int, value: int) -> None:
        self._c.softmetal_signal_event(event, value)

    def wait_event(self, event: int, value: int, timeout: float | None) -> bool:
        return _wait(self._c.softmetal_wait_event, (event, value), timeout)

    def _collect(self) -> None:
        with self._lock:
            for ticket in list(self._abandoned):
                if self._c.softmetal_wait(ticket, 0):
                    del self._abandoned[ticket]
                    self._c.softmetal_forget(ticket)

    def _completion(self, ticket: int) -> Completion:
        times = (c_uint64 * 2)()
        error: bytes | None = self._c.softmetal_result(ticket, times)
        text = error.decode(errors="replace") if error is not None else None
        if self._artifacts and (found := self._findings(ticket)):
            text = "\n".join([*found, *([text] if text else [])])
        return Completion(times[0] / 1e9, times[1] / 1e9, text, self._log(ticket))

    def _findings(self, ticket: int) -> list[str]:
        address = c_void_p()
        count = self._c.softmetal_findings(ticket, ctypes.byref(address))
        current = checks.current()
        describer = Describer(
            self._artifacts, self._labels.get(ticket, {}), current.seed if current else 0
        )
        size = count * ctypes.sizeof(Finding)
        data = _read_memory(address.value or 0, size) if count else b""
        array = (Finding * count).from_buffer_copy(data)
        lines = [describer.describe(finding) for finding in array]
        if current is not None and ticket not in self._reported:
            self._reported.add(ticket)
            current.add(lines)
        return lines

    def _log(self, ticket: int) -> tuple[LogMessage, ...]:
        size, dropped = c_size_t(), c_size_t()
        address = self._c.softmetal_log_entries(ticket, ctypes.byref(size), ctypes.byref(dropped))
        messages = _messages(_read_memory(address, size.value)) if address else []
        if dropped.value:
            text = f"{dropped.value} messages were dropped: the log of a command buffer is full"
            messages.append(LogMessage("softmetal", "log", _FAULT_LEVEL, text))
        return tuple(messages)


def _read_memory(address: int, size: int) -> bytes:
    """Memory of the runtime's process, which is this one unless a test emulates another."""
    return ctypes.string_at(address, size)


def _labels(commands: Sequence[Command]) -> dict[tuple[int, int], str]:
    """The labels of buffers, by the kernel that they are bound for and their index."""
    labels: dict[tuple[int, int], str] = {}
    regions: tuple[Region, ...] = ()
    for command in commands:
        if isinstance(command, Resources):
            regions = command.regions
        elif isinstance(command, Dispatch):
            labels |= {(command.kernel, r.slot): r.label for r in regions if r.label}
            regions = ()
    return labels


def _refuse_fork() -> None:
    if _Process.forked:
        raise ExecutionError(
            "softmetal's threads do not survive a fork: create the device in the child, "
            "in a process started by the 'spawn' method"
        )


def _wait(
    attempt: ctypes._NamedFuncPointer, subject: tuple[int, ...], timeout: float | None
) -> bool:
    """Repeat `attempt`, which takes nanoseconds to wait, until it succeeds or `timeout` ends."""
    _refuse_fork()
    deadline = None if timeout is None else time.monotonic_ns() + int(max(timeout, 0) * 1e9)
    rest = _SLICE_NS
    while True:
        if deadline is not None:
            rest = deadline - time.monotonic_ns()
        if attempt(*subject, max(0, min(rest, _SLICE_NS))):
            return True
        if deadline is not None and time.monotonic_ns() >= deadline:
            return False
        if _Process.exiting:
            raise ExecutionError("the process is exiting: its command queues have stopped")


def _messages(data: bytes) -> list[LogMessage]:
    """The entries of a log block: size, level, then three texts with their zeros."""
    messages, offset = [], 0
    while offset + _LOG_HEAD.size <= len(data):
        size, level = _LOG_HEAD.unpack_from(data, offset)
        if not size:
            break
        parts = data[offset + _LOG_HEAD.size : offset + size].split(b"\0")
        subsystem, category, text = (part.decode(errors="replace") for part in parts[:3])
        messages.append(LogMessage(subsystem, category, level, text))
        offset += size
    return messages
