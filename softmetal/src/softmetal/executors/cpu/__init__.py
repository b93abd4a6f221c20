"""The CPU executor: kernels as native code, run by the C runtime in softmetal/runtime."""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
from collections.abc import Sequence
from ctypes import byref, c_bool, c_char_p, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache

from softmetal import checks, compiler, env
from softmetal.compiler.target import Target
from softmetal.errors import ExecutionError
from softmetal.executors.findings import Finding, Findings, with_findings
from softmetal.executors.loading import LoadedKernels
from softmetal.executors.outcome import Outcome
from softmetal.executors.packing import Packer
from softmetal.executors.process import Process, Tickets, refuse_fork, wait_in_slices
from softmetal.executors.runtime_build import build
from softmetal.types import (
    MAX_THREADS,
    Artifact,
    CheckMap,
    Command,
    Completion,
    Hardware,
)

# ---- loading the runtime --------------------------------------------------------------------

_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "softmetal_new_pool": (c_void_p, [c_uint, c_uint64]),
    "softmetal_shutdown": (None, []),
    "softmetal_load": (c_void_p, [c_char_p, c_char_p, c_char_p, c_size_t]),
    "softmetal_unload": (None, [c_void_p]),
    "softmetal_allocate": (c_void_p, [c_size_t]),
    "softmetal_free": (None, [c_void_p, c_size_t]),
    "softmetal_share": (c_bool, [c_void_p, c_void_p, c_size_t]),
    "softmetal_host_side": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "softmetal_mirror_traffic": (None, [c_void_p]),
    "softmetal_unshare": (None, [c_void_p, c_void_p]),
    "softmetal_new_queue": (c_void_p, [c_void_p]),
    "softmetal_free_queue": (None, [c_void_p]),
    "softmetal_submit": (c_void_p, [c_void_p, c_char_p, c_size_t]),
    "softmetal_wait": (c_bool, [c_void_p, c_void_p, c_uint64]),
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


@cache
def _library() -> ctypes.CDLL:
    # RTLD_GLOBAL: kernels find softmetal_barrier and the like in it.
    library = ctypes.CDLL(str(build()), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    atexit.register(_at_exit, library)
    return library


def _at_exit(library: ctypes.CDLL) -> None:
    Process.exiting = True
    if not Process.forked:
        library.softmetal_shutdown()


# ---- the executor ---------------------------------------------------------------------------

_ERROR_BYTES = 4096
_VARIABLE = struct.Struct("<QQQ")  # sm_variable


def executor(name: str) -> CpuExecutor | None:
    """`cpu`, or `discrete`: the same with memory kept apart."""
    return CpuExecutor(unified=name == "cpu") if name in ("cpu", "discrete") else None


class CpuExecutor:
    """Runs command lists on the cores of this machine. See `Executor` for the methods.

    With `unified` off it is a device with its own memory: a missing copy is an error in the results
    here as it is on a discrete GPU.
    """

    name = "cpu"
    hardware: Hardware | None = None
    lost = False

    def __init__(self, unified: bool = True) -> None:
        self.target: Target = compiler.native()
        self.unified = unified
        self._c = _library()
        self._pool = self._c.softmetal_new_pool(env.threads(), int(env.timeout() * 1e9))
        self._packer = Packer()
        self._kernels = LoadedKernels(self._load, self._c.softmetal_unload)
        self._found = Findings()
        self._tickets = Tickets(
            lambda ticket: self._c.softmetal_wait(ticket, None, 0), self._c.softmetal_forget
        )

    def load(self, artifact: Artifact) -> int:
        return self._kernels.load(artifact)

    def _load(self, artifact: Artifact) -> int:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        path, name = os.fsencode(artifact.path), artifact.name.encode()
        handle: int | None = self._c.softmetal_load(path, name, error, _ERROR_BYTES)
        if not handle:
            text = error.value.decode(errors="replace")
            raise ExecutionError(f"cannot load kernel {artifact.name}: {text}")
        if artifact.check_map is not None:
            self._set_checks(handle, artifact, artifact.check_map)
        return handle

    # Findings name kernels that ran before, so those compiled for checking stay.
    def unload(self, kernel: int) -> None:
        if kernel not in self._found.artifacts:
            self._kernels.drop(kernel)

    def max_threads(self, kernel: int) -> int:
        return MAX_THREADS

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
        self._found.artifacts[handle] = artifact

    def allocate(self, length: int, private: bool = False) -> int:
        address: int | None = self._c.softmetal_allocate(max(length, 1))
        shared = address and not private and not self.unified
        if not address or (shared and not self._c.softmetal_share(self._pool, address, length)):
            raise MemoryError(f"no memory for a buffer of {length} bytes")
        return address

    def host_side(self, address: int, length: int, host: int = 0) -> int:
        if self.unified:
            return address
        made: int | None = self._c.softmetal_host_side(self._pool, address, host or None)
        if not made:
            raise MemoryError(f"no memory for the host's side of a buffer of {length} bytes")
        return made

    def mirror_traffic(self) -> tuple[int, int]:
        """Bytes that moved to devices with their own memory and from them, in this process."""
        moved = (c_uint64 * 2)()
        self._c.softmetal_mirror_traffic(moved)
        return moved[0], moved[1]

    def free(self, address: int, length: int) -> None:
        if not Process.exiting:  # a kernel may still use it; the process ends anyway
            if not self.unified:
                self._c.softmetal_unshare(self._pool, address)
            self._c.softmetal_free(address, max(length, 1))

    def new_queue(self) -> int:
        refuse_fork()
        queue: int | None = self._c.softmetal_new_queue(self._pool)
        if not queue:
            raise ExecutionError("cannot start a thread for a command queue: check `ulimit -u`")
        return queue

    def free_queue(self, queue: int) -> None:
        if not Process.forked:
            self._c.softmetal_free_queue(queue)

    def submit(self, queue: int, commands: Sequence[Command]) -> int:
        if Process.forked:
            refuse_fork()
        data, blocks = self._packer.pack(commands)
        if self._found.artifacts and (current := checks.current()) is not None:
            self._c.softmetal_set_seed(current.next_seed())
        self._tickets.collect()
        self._kernels.unload_dropped()
        ticket: int | None = self._c.softmetal_submit(queue, data, len(data))
        if not ticket:
            raise MemoryError(f"no memory for a command list of {len(data)} bytes")
        self._tickets.add(ticket, blocks)
        if self._found.artifacts:
            self._found.submitted(ticket, commands)
        return ticket

    def wait(self, ticket: int, timeout: float | None) -> Completion | None:
        self._tickets.require(ticket)
        outcome = Outcome()
        if not wait_in_slices(self._c.softmetal_wait, (ticket, byref(outcome)), timeout):
            return None
        error = outcome.text(_read_memory)
        if self._found.artifacts:
            error = with_findings(self._findings(ticket), error)
        return outcome.completion(error, _read_memory)

    def forget(self, ticket: int) -> None:
        if self._found.artifacts:
            self._found.forget(ticket)
        self._tickets.forget(ticket)

    def new_event(self) -> int:
        event: int | None = self._c.softmetal_new_event()
        if not event:
            raise MemoryError("no memory for an event")
        return event

    def free_event(self, event: int) -> None:
        if not Process.exiting:  # a queue may still wait for it
            self._c.softmetal_free_event(event)

    def event_value(self, event: int) -> int:
        value: int = self._c.softmetal_event_value(event)
        return value

    def signal_event(self, event: int, value: int) -> None:
        self._c.softmetal_signal_event(event, value)

    def wait_event(self, event: int, value: int, timeout: float | None) -> bool:
        return wait_in_slices(self._c.softmetal_wait_event, (event, value), timeout)

    def _findings(self, ticket: int) -> list[str]:
        address = c_void_p()
        count = self._c.softmetal_findings(ticket, byref(address))
        size = count * ctypes.sizeof(Finding)
        return self._found.lines(ticket, _read_memory(address.value or 0, size) if count else b"")


def _read_memory(address: int, size: int) -> bytes:
    """Memory of the runtime's process, which is this one unless a test emulates another."""
    return ctypes.string_at(address, size)
