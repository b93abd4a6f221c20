"""The CUDA executor: kernels as PTX, run on an NVIDIA GPU by the C code in `driver/`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import byref, c_bool, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache

from softmetal import env
from softmetal.compiler.target import Target
from softmetal.errors import ExecutionError
from softmetal.executors.cuda import cublas, driver_build, gpus
from softmetal.executors.cuda.target import PtxTarget, entry_name, newest_architecture
from softmetal.executors.findings import Finding, Findings, with_findings
from softmetal.executors.loading import LoadedKernels
from softmetal.executors.outcome import Outcome
from softmetal.executors.packing import Packer
from softmetal.executors.process import Process, Tickets, refuse_fork, wait_in_slices
from softmetal.types import MAX_THREADS, Artifact, Command, Completion, Hardware

_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "open": (c_void_p, [c_int, c_uint64, c_bool, c_char_p, c_size_t]),
    "lost": (c_char_p, [c_void_p]),
    "attribute": (c_int, [c_void_p, c_int]),
    "memory": (c_uint64, [c_void_p]),
    "name": (None, [c_void_p, c_char_p, c_int]),
    "set_blas": (c_char_p, [c_char_p]),
    "load": (
        c_void_p,
        [c_void_p, *3 * [c_char_p], c_uint, c_bool, c_bool, c_char_p, c_size_t],
    ),
    "unload": (None, [c_void_p, c_void_p]),
    "max_threads": (c_int, [c_void_p]),
    "allocate": (c_uint64, [c_void_p, c_size_t]),
    "free": (None, [c_void_p, c_uint64]),
    "share": (c_bool, [c_void_p, c_uint64, c_size_t]),
    "host_side": (c_void_p, [c_void_p, c_uint64, c_void_p]),
    "new_queue": (c_void_p, [c_void_p]),
    "free_queue": (None, [c_void_p]),
    "stream": (c_void_p, [c_void_p]),
    "submit": (c_void_p, [c_void_p, c_char_p, c_size_t]),
    "wait": (c_bool, [c_void_p, c_void_p, c_uint64]),
    "findings": (c_uint, [c_void_p, c_void_p]),
    "forget": (None, [c_void_p]),
    "new_event": (c_void_p, [c_void_p]),
    "free_event": (None, [c_void_p, c_void_p]),
    "event_value": (c_uint64, [c_void_p]),
    "signal_event": (None, [c_void_p, c_uint64]),
    "wait_event": (c_bool, [c_void_p, c_uint64, c_uint64]),
}
_ERROR_BYTES = 8192
_NAME_BYTES = 256
_MAJOR, _MINOR, _THREADGROUP_MEMORY = 75, 76, 97  # CUdevice_attribute
_LOST: set[int] = set()  # GPUs whose context must be made anew


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(driver_build.build()))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, f"softmetal_gpu_{name}")
        function.restype, function.argtypes = result, arguments
    if path := cublas.library_path():
        library.softmetal_gpu_set_blas(os.fsencode(path))
    return library


def executor(name: str) -> CudaExecutor | None:
    """`cuda:0` and so on: a GPU by its number. Raises ExecutionError if there is none."""
    number = name.removeprefix("cuda:")
    return CudaExecutor(int(number)) if number != name and number.isdecimal() else None


class CudaExecutor:
    """Runs command lists on an NVIDIA GPU. See `Executor` for the methods."""

    unified = False

    def __init__(self, index: int = 0) -> None:
        gpus.require(index)
        self.name, self.index = f"cuda:{index}", index
        self._c = _library()
        self._gpu = self._opened(index)
        attribute = self._c.softmetal_gpu_attribute
        capability = attribute(self._gpu, _MAJOR), attribute(self._gpu, _MINOR)
        architecture = newest_architecture(*capability)
        same_major = int(architecture.removeprefix("sm_")) // 10 == capability[0]
        self.target: Target = PtxTarget(architecture, same_major, stoppable=env.timeout() > 0)
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._c.softmetal_gpu_name(self._gpu, name, _NAME_BYTES)
        memory: int = self._c.softmetal_gpu_memory(self._gpu)
        threadgroup = attribute(self._gpu, _THREADGROUP_MEMORY)
        self.hardware: Hardware | None = Hardware(
            name.value.decode(), architecture, memory, threadgroup
        )
        self._packer = Packer()
        self._found = Findings()
        self._kernels = LoadedKernels(self._load, self._unload)
        self._tickets = Tickets(
            lambda ticket: self._c.softmetal_gpu_wait(ticket, None, 0), self._c.softmetal_gpu_forget
        )

    def _opened(self, index: int) -> int:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        limit = int(env.timeout() * 1e9)
        anew = index in _LOST
        gpu: int | None = self._c.softmetal_gpu_open(index, limit, anew, error, _ERROR_BYTES)
        if gpu:
            _LOST.discard(index)
            return gpu
        text = error.value.decode(errors="replace")
        if anew:
            raise ExecutionError(
                f"GPU {index} cannot be used again in this process, whose access to it a kernel "
                f"ended: start a new process, or find the fault with SOFTMETAL_CHECK=bounds, under "
                f"which it ends nothing ({text})"
            )
        raise ExecutionError(f"GPU {index} cannot be used: {text}")

    def attribute(self, number: int) -> int:
        """An attribute of the GPU, by its number in CUdevice_attribute."""
        return int(self._c.softmetal_gpu_attribute(self._gpu, number))

    @property
    def lost(self) -> bool:
        """Whether a fault has ended this device; another may be made."""
        found = self._c.softmetal_gpu_lost(self._gpu) is not None
        if found:
            _LOST.add(self.index)
        return found

    def load(self, artifact: Artifact) -> int:
        return self._kernels.load(artifact)

    def _load(self, artifact: Artifact) -> int:
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        image, name = artifact.path.read_bytes(), artifact.name.encode()
        entry = entry_name(artifact.name).encode()
        buffers = [a for a in artifact.arguments if a.kind == "buffer" and a.writable]
        written = sum(1 << index for index in {a.index for a in buffers})
        facts = (written, artifact.logs, bool(artifact.checks))
        handle: int | None = self._c.softmetal_gpu_load(
            self._gpu, image, name, entry, *facts, error, _ERROR_BYTES
        )
        if not handle:
            text = error.value.decode(errors="replace")
            raise ExecutionError(f"cannot load kernel {artifact.name}: {text}")
        if artifact.checks:
            self._found.artifacts[handle] = artifact
        return handle

    # Findings name kernels that ran before, so those compiled for checking stay.
    def unload(self, kernel: int) -> None:
        if kernel not in self._found.artifacts:
            self._kernels.drop(kernel)

    def _unload(self, kernel: int) -> None:
        self._c.softmetal_gpu_unload(self._gpu, kernel)

    def max_threads(self, kernel: int) -> int:
        limit: int = self._c.softmetal_gpu_max_threads(kernel)
        return min(limit, MAX_THREADS)

    def allocate(self, length: int, private: bool = False) -> int:
        address: int = self._c.softmetal_gpu_allocate(self._gpu, max(length, 1))
        shared = address and not private
        if not address or (shared and not self._c.softmetal_gpu_share(self._gpu, address, length)):
            raise MemoryError(f"no memory on the GPU for a buffer of {length} bytes")
        return address

    def host_side(self, address: int, length: int, host: int = 0) -> int:
        made: int | None = self._c.softmetal_gpu_host_side(self._gpu, address, host or None)
        if not made and self.lost:
            raise ExecutionError("a fault has ended this GPU's device: its memory cannot be read")
        if not made:
            raise MemoryError(f"no memory for the host's side of a buffer of {length} bytes")
        return made

    def free(self, address: int, length: int) -> None:
        if not Process.exiting:  # a kernel may still use it; the process ends anyway
            self._c.softmetal_gpu_free(self._gpu, address)

    def new_queue(self) -> int:
        refuse_fork()
        queue: int | None = self._c.softmetal_gpu_new_queue(self._gpu)
        if not queue:
            raise ExecutionError("cannot start a thread or a stream for a command queue")
        return queue

    def stream(self, queue: int) -> int:
        """The CUstream of a queue, for other CUDA code of the process."""
        handle: int = self._c.softmetal_gpu_stream(queue)
        return handle

    def free_queue(self, queue: int) -> None:
        if not Process.forked:
            self._c.softmetal_gpu_free_queue(queue)

    def submit(self, queue: int, commands: Sequence[Command]) -> int:
        if Process.forked:
            refuse_fork()
        data, blocks = self._packer.pack(commands)
        self._tickets.collect()
        self._kernels.unload_dropped()
        ticket: int | None = self._c.softmetal_gpu_submit(queue, data, len(data))
        if not ticket:
            raise MemoryError(f"no memory for a command list of {len(data)} bytes")
        self._tickets.add(ticket, blocks)
        if self._found.artifacts:
            self._found.submitted(ticket, commands)
        return ticket

    def wait(self, ticket: int, timeout: float | None) -> Completion | None:
        self._tickets.require(ticket)
        outcome = Outcome()
        if not wait_in_slices(self._c.softmetal_gpu_wait, (ticket, byref(outcome)), timeout):
            return None
        error = outcome.text(ctypes.string_at)
        if self._found.artifacts:
            error = with_findings(self._findings(ticket), error)
        return outcome.completion(error, ctypes.string_at)

    def _findings(self, ticket: int) -> list[str]:
        address = c_void_p()
        count = self._c.softmetal_gpu_findings(ticket, byref(address))
        size = count * ctypes.sizeof(Finding)
        return self._found.lines(ticket, ctypes.string_at(address, size) if count else b"")

    def forget(self, ticket: int) -> None:
        if self._found.artifacts:
            self._found.forget(ticket)
        self._tickets.forget(ticket)

    def new_event(self) -> int:
        event: int | None = self._c.softmetal_gpu_new_event(self._gpu)
        if not event:
            raise MemoryError("no memory for an event")
        return event

    def free_event(self, event: int) -> None:
        if not Process.exiting:  # a queue may still wait for it
            self._c.softmetal_gpu_free_event(self._gpu, event)

    def event_value(self, event: int) -> int:
        value: int = self._c.softmetal_gpu_event_value(event)
        return value

    def signal_event(self, event: int, value: int) -> None:
        self._c.softmetal_gpu_signal_event(event, value)

    def wait_event(self, event: int, value: int, timeout: float | None) -> bool:
        return wait_in_slices(self._c.softmetal_gpu_wait_event, (event, value), timeout)
