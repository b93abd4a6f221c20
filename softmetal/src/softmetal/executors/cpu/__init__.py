"""The CPU executor: kernels as native code, run by the C runtime in softmetal/runtime."""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
from ctypes import c_bool, c_char_p, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from types import SimpleNamespace

from softmetal import checks, compiler, env
from softmetal.compiler.target import Target
from softmetal.errors import ExecutionError
from softmetal.executors.c_executor import ERROR_BYTES, CExecutor, Signatures, functions
from softmetal.executors.loading import not_loadable, open_library
from softmetal.executors.process import Process
from softmetal.executors.runtime_build import build
from softmetal.types import MAX_THREADS, Artifact, CheckMap, Hardware

SIGNATURES: Signatures = {
    "new_pool": (c_void_p, [c_uint, c_uint64]),
    "shutdown": (None, []),
    "load": (c_void_p, [c_char_p, c_char_p, c_char_p, c_size_t]),
    "unload": (None, [c_void_p]),
    "allocate": (c_void_p, [c_size_t]),
    "free": (None, [c_void_p, c_size_t]),
    "mirror_traffic": (None, [c_void_p]),
    "unshare": (None, [c_void_p, c_void_p]),
    "set_checks": (c_bool, [c_void_p, c_uint, c_uint64, c_char_p, c_uint]),
    "set_seed": (None, [c_uint64]),
    "new_event": (c_void_p, []),
    "free_event": (None, [c_void_p]),
}


@cache
def _library() -> SimpleNamespace:
    # RTLD_GLOBAL: kernels find softmetal_barrier and the like in it.
    library = open_library(build(), os.RTLD_GLOBAL | os.RTLD_NOW)
    found = functions(library, "softmetal_", SIGNATURES)
    atexit.register(_at_exit, found)
    return found


def _at_exit(library: SimpleNamespace) -> None:
    Process.exiting = True
    if not Process.forked:
        library.shutdown()


_VARIABLE = struct.Struct("<QQQ")  # sm_variable


def executor(name: str) -> CpuExecutor | None:
    """`cpu`, or `discrete`: the same with memory kept apart."""
    return CpuExecutor(unified=name == "cpu") if name in ("cpu", "discrete") else None


class CpuExecutor(CExecutor):
    """Runs command lists on the cores of this machine. See `Executor` for the methods.

    With `unified` off it is a device with its own memory: a missing copy is an error in the results
    here as it is on a discrete GPU.
    """

    name = "cpu"
    hardware: Hardware | None = None
    no_queue = (
        "cannot start a thread for a command queue: raise `ulimit -u`, or lower SOFTMETAL_THREADS "
        "if it is set"
    )

    def __init__(self, unified: bool = True) -> None:
        self.target: Target = compiler.native()
        self.unified = unified
        c = _library()
        super().__init__(c, c.new_pool(env.threads(), int(env.timeout() * 1e9)))

    def _load(self, artifact: Artifact) -> int:
        error = ctypes.create_string_buffer(ERROR_BYTES)
        path, name = os.fsencode(artifact.path), artifact.name.encode()
        handle: int | None = self._c.load(path, name, error, ERROR_BYTES)
        if not handle:
            said = not_loadable(artifact.path, error.value.decode(errors="replace"))
            raise ExecutionError(f"kernel {artifact.name}: {said}")
        if artifact.check_map is not None:
            self._set_checks(handle, artifact, artifact.check_map)
        return handle

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
        if not self._c.set_checks(handle, modes, known.anchor, variables, count):
            raise MemoryError(f"no memory for the checks of kernel {artifact.name}")
        self._found.artifacts[handle] = artifact

    def _begin(self) -> None:
        if self._found.artifacts and (current := checks.current()) is not None:
            self._c.set_seed(current.next_seed())

    def mirror_traffic(self) -> tuple[int, int]:
        """Bytes that moved to devices with their own memory and from them, in this process."""
        moved = (c_uint64 * 2)()
        self._c.mirror_traffic(moved)
        return moved[0], moved[1]

    def free(self, address: int, length: int) -> None:
        if not Process.owns_nothing():
            if not self.unified:
                self._c.unshare(self._device, address)
            self._c.free(address, max(length, 1))
