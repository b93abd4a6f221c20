"""Kernels that crash or do not end, in each mode, and the steps to run them; for subprocesses."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from pathlib import Path

import numpy as np

import softmetal

if target := os.environ.get("SOFTMETAL_TEST_TARGET"):  # as conftest.py does in the tests' process
    from emulated import install

    install(target)

# What makes a kernel FLAT, GROUPS or FIBERS: its parameters, and how it begins.
_POSITION = "uint i [[thread_position_in_grid]]"
_GROUP = f"{_POSITION}, uint g [[threadgroup_position_in_grid]]"
MODES = {
    "flat": (_POSITION, ""),
    "groups": (_GROUP, "x[i] = g;"),
    "fibers": (_GROUP, "threadgroup_barrier(mem_flags::mem_device);"),
}
_FLAG = "atomic_load_explicit(flag, memory_order_relaxed)"
_DEEP = (
    "uint big[DEEP]; for (uint k = 0; k < DEEP; k++) big[k] = k ^ n[1];"
    " for (uint k = 0; k < 9; k++) big[x[k] % DEEP] += i; x[i] = big[(i * 77) % DEEP];"
)
BODIES = {
    "fine": "x[i] = 3 * i + 1;",
    "spin": f"while ({_FLAG} == 0u) {{}}",
    "spin_last": f"if (i == 4095) while ({_FLAG} == 0u) {{}}",
    "clear": f"while ({_FLAG} == 0u) for (uint k = 0; k < n[0]; k++) x[k] = 0;",
    "poke": "*reinterpret_cast<device uint*>(address[0]) = i;",
    "trap": "if (x[i] != 12345u) __builtin_trap();",
    "debugtrap": "if (x[i] != 12345u) __builtin_debugtrap();",
    "abort": "if (x[i] != 12345u) __builtin_abort();",
    "deep": _DEEP,
    "dive": "if (n[3]) sink_MODE(x, n, i);",
}
COOPERATING = {
    "barriers": f"while ({_FLAG} == 0u) threadgroup_barrier(mem_flags::mem_none);",
    "sums": f"while (simd_sum({_FLAG}) == 0u) {{}}",
    "one": f"if (i == 40) while ({_FLAG} == 0u) {{}} threadgroup_barrier(mem_flags::mem_device);",
}
DEEP = {"flat": "(4 << 20)", "groups": "(4 << 20)", "fibers": "100000"}  # above the stack


def _kernel(name: str, mode: str, body: str) -> str:
    parameters, start = MODES[mode]
    body = body.replace("DEEP", DEEP[mode]).replace("MODE", mode)
    return (
        f"kernel void {name}_{mode}(device atomic_uint* flag [[buffer(0)]],"
        " device uint* x [[buffer(1)]], device const ulong* address [[buffer(2)]],"
        f" constant uint* n [[buffer(3)]], {parameters}) {{ {start} {body} }}\n"
    )


def _sink(mode: str) -> str:
    """A function that overflows its stack, which is not reserved before it is called."""
    parameters = "device uint* x, constant uint* n, uint i"
    body = _DEEP.replace("DEEP", DEEP[mode])
    return f"__attribute__((noinline)) void sink_{mode}({parameters}) {{ {body} }}\n"


def source() -> str:
    kernels = [_sink(mode) for mode in MODES]
    kernels += [_kernel(name, mode, body) for name, body in BODIES.items() for mode in MODES]
    kernels += [_kernel(name, "fibers", body) for name, body in COOPERATING.items()]
    return "#include <metal_stdlib>\nusing namespace metal;\n" + "".join(kernels)


class Runner:
    """A device with every kernel, and the buffers they all take."""

    threads, group = 4096, 64

    def __init__(self) -> None:
        self.device = softmetal.MTLCreateSystemDefaultDevice()
        self.library, error = self.device.newLibraryWithSource_options_error_(source(), None, None)
        assert self.library is not None, error
        self.queue = self.device.newCommandQueue()
        self.flag, self.x, self.address, self.n = (self._buffer(1 << 20) for _ in range(4))
        view(self.n)[:3] = self.threads * 16, 5, 1 << 31
        self.pipelines: dict[str, object] = {}

    def _buffer(self, length: int):
        return self.device.newBufferWithLength_options_(length, 0)

    def pipeline(self, name: str):
        if name not in self.pipelines:
            function = self.library.newFunctionWithName_(name)
            make = self.device.newComputePipelineStateWithFunction_error_
            self.pipelines[name], error = make(function, None)
            assert self.pipelines[name] is not None, error
        return self.pipelines[name]

    def start(self, name: str, address: int = 0, queue=None, x=None, flag=None):
        view(self.address, np.uint64)[0] = address
        commands = (queue or self.queue).commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(self.pipeline(name))
        buffers = (flag or self.flag, x or self.x, self.address, self.n)
        for index, buffer in enumerate(buffers):
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)
        sizes = (softmetal.MTLSizeMake(size, 1, 1) for size in (self.threads, self.group))
        encoder.dispatchThreads_threadsPerThreadgroup_(*sizes)
        encoder.endEncoding()
        commands.commit()
        return commands

    def run(self, name: str, address: int = 0, **others) -> str | None:
        """The text of the command buffer's error."""
        commands = self.start(name, address, **others)
        commands.waitUntilCompleted()
        error = commands.error()
        return None if error is None else error.localizedDescription()

    def fine(self, mode: str, **others) -> bool:
        """Whether a correct kernel runs and gives the right result."""
        x = others.get("x") or self.x
        view(x)[:] = 0
        error = self.run(f"fine_{mode}", **others)
        right = np.arange(self.threads, dtype=np.uint32) * 3 + 1
        return error is None and np.array_equal(view(x)[: self.threads], right)

    def crash(self, cause: str, mode: str) -> str | None:
        """A cause is a kernel's name, or the kind of address that is poked."""
        if f"{cause}_{mode}" in self.library.functionNames():
            return self.run(f"{cause}_{mode}")
        address, keep = ADDRESSES[cause]()
        text = self.run(f"poke_{mode}", address)
        del keep
        return text and text.replace(f"{address:#x}", "ADDRESS")


def view(buffer, dtype=np.uint32):
    return np.frombuffer(buffer.contents().as_buffer(buffer.length()), dtype)


def _protected() -> tuple[int, object]:
    pages = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ)
    return np.frombuffer(pages, np.uint8).ctypes.data, pages


def _beyond() -> tuple[int, object]:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        pages = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
    return np.frombuffer(pages, np.uint8).ctypes.data, pages


ADDRESSES = {
    "null": lambda: (0, None),
    "unmapped": lambda: (1 << 44, None),
    "protected": _protected,
    "beyond": _beyond,
    "invalid": lambda: (1 << 52, None),
}


def usage() -> dict[str, int]:
    """What a leak would make grow."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "kilobytes": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "files": len(os.listdir("/proc/self/fd")),
        "python": threading.active_count(),
    }
