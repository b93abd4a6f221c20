"""The CUDA executor: kernels as PTX, run on an NVIDIA GPU by the C code in `driver/`."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from types import SimpleNamespace

from softmetal import env
from softmetal.compiler.target import Target
from softmetal.errors import ExecutionError
from softmetal.executors.c_executor import ERROR_BYTES, CExecutor, Signatures, functions
from softmetal.executors.cuda import cublas, driver_build, gpus
from softmetal.executors.cuda.target import PtxTarget, entry_name, newest_architecture
from softmetal.executors.loading import open_library
from softmetal.executors.process import Process
from softmetal.types import MAX_THREADS, Artifact, Hardware

_SIGNATURES: Signatures = {
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
    "stream": (c_void_p, [c_void_p]),
    "new_event": (c_void_p, [c_void_p]),
    "free_event": (None, [c_void_p, c_void_p]),
}
_NAME_BYTES = 256
_MAJOR, _MINOR, _THREADGROUP_MEMORY = 75, 76, 97  # CUdevice_attribute
_LOST: set[int] = set()  # GPUs whose context must be made anew


@cache
def _library() -> SimpleNamespace:
    found = functions(open_library(driver_build.build()), "softmetal_gpu_", _SIGNATURES)
    if path := cublas.library_path():
        found.set_blas(os.fsencode(path))
    return found


def executor(name: str) -> CudaExecutor | None:
    """`cuda:0` and so on: a GPU by its number. Raises ExecutionError if there is none."""
    number = name.removeprefix("cuda:")
    return CudaExecutor(int(number)) if number != name and number.isdecimal() else None


def _opened(c: SimpleNamespace, index: int) -> int:
    """A GPU, by its number; raises ExecutionError."""
    error = ctypes.create_string_buffer(ERROR_BYTES)
    limit = int(env.timeout() * 1e9)
    anew = index in _LOST
    gpu: int | None = c.open(index, limit, anew, error, ERROR_BYTES)
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


class CudaExecutor(CExecutor):
    """Runs command lists on an NVIDIA GPU. See `Executor` for the methods."""

    memory = "memory on the GPU"
    no_queue = "cannot start a thread or a stream for a command queue"

    def __init__(self, index: int = 0) -> None:
        gpus.require(index)
        self.name, self.index = f"cuda:{index}", index
        c = _library()
        gpu = _opened(c, index)
        super().__init__(c, gpu, (gpu,))
        capability = self.attribute(_MAJOR), self.attribute(_MINOR)
        architecture = newest_architecture(*capability)
        same_major = int(architecture.removeprefix("sm_")) // 10 == capability[0]
        self.target: Target = PtxTarget(architecture, same_major, stoppable=env.timeout() > 0)
        name = ctypes.create_string_buffer(_NAME_BYTES)
        c.name(gpu, name, _NAME_BYTES)
        memory: int = c.memory(gpu)
        threadgroup = self.attribute(_THREADGROUP_MEMORY)
        self.hardware: Hardware | None = Hardware(
            name.value.decode(), architecture, memory, threadgroup
        )

    def attribute(self, number: int) -> int:
        """An attribute of the GPU, by its number in CUdevice_attribute."""
        return int(self._c.attribute(self._device, number))

    @property
    def lost(self) -> bool:
        """Whether a fault has ended this device; another may be made."""
        found = self._c.lost(self._device) is not None
        if found:
            _LOST.add(self.index)
        return found

    def _load(self, artifact: Artifact) -> int:
        error = ctypes.create_string_buffer(ERROR_BYTES)
        image, name = artifact.path.read_bytes(), artifact.name.encode()
        entry = entry_name(artifact.name).encode()
        buffers = [a for a in artifact.arguments if a.kind == "buffer" and a.writable]
        written = sum(1 << index for index in {a.index for a in buffers})
        facts = (written, artifact.logs, bool(artifact.checks))
        handle: int | None = self._c.load(
            self._device, image, name, entry, *facts, error, ERROR_BYTES
        )
        if not handle:
            text = error.value.decode(errors="replace")
            raise ExecutionError(f"cannot load kernel {artifact.name}: {text}")
        if artifact.checks:
            self._found.artifacts[handle] = artifact
        return handle

    def max_threads(self, kernel: int) -> int:
        limit: int = self._c.max_threads(kernel)
        return min(limit, MAX_THREADS)

    def free(self, address: int, length: int) -> None:
        if not Process.owns_nothing():
            self._c.free(self._device, address)

    def stream(self, queue: int) -> int:
        """The CUstream of a queue, for other CUDA code of the process."""
        handle: int = self._c.stream(queue)
        return handle
