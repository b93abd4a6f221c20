"""The C runtime and its kernels on another architecture, under qemu's user-mode emulation.

`install` makes softmetal in this process compile for that architecture and call the runtime in an
emulated process (emulated_driver.c). Python, the API and numpy stay native, so that the tests and
their expectations are the same. Buffers are in a file that both processes map at one address.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from softmetal.executors import c_executor, cpu, packing, process, runtime_build
from softmetal.toolchain import clang, disk_cache, targets
from softmetal.toolchain.targets import Target

LIBC = "/usr/aarch64-linux-gnu"  # Debian's libc6-arm64-cross
PACKAGES = "qemu-user-static libc6-arm64-cross"

# What `-mcpu=native` finds on processors of three generations.
TARGETS = {
    "armv8": Target("aarch64-linux-gnu", "armv8", ("-march=armv8-a",), False),
    "neoverse-n1": Target("aarch64-linux-gnu", "neoverse-n1", ("-mcpu=neoverse-n1",), False),
    "neoverse-n2": Target("aarch64-linux-gnu", "neoverse-n2", ("-mcpu=neoverse-n2",), True),
}
_CPUS = {"armv8": "cortex-a53", "neoverse-n1": "neoverse-n1", "neoverse-n2": "max"}

_BASE = 1 << 45  # far from the addresses that Linux and qemu choose themselves
_LENGTH = 1 << 36
_PAGE = 16 << 10  # Apple's, as softmetal_allocate aligns
_MAP_FIXED_NOREPLACE = 0x100000
_CALL, _READ, _WRITE = 1, 2, 3
_SLICE_NS = 1_000_000  # the longest call: all threads share one pipe


def emulator() -> str | None:
    """The path of qemu-aarch64, if it and a C library for it are installed."""
    names = ("qemu-aarch64-static", "qemu-aarch64")
    found = next((path for name in names if (path := shutil.which(name))), None)
    return found if Path(LIBC, "lib", "ld-linux-aarch64.so.1").exists() else None


class SharedMemory:
    """Pages of a sparse file, mapped here and in the emulated process. Addresses are not reused."""

    def __init__(self) -> None:
        self.file = tempfile.NamedTemporaryFile(prefix="softmetal-emulated-")  # noqa: SIM115
        self.file.truncate(_LENGTH)
        flags = mmap.MAP_SHARED | _MAP_FIXED_NOREPLACE
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3,
                                    ctypes.c_long]  # fmt: skip
        self._libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        mapped = self._libc.mmap(_BASE, _LENGTH, protection, flags, self.file.fileno(), 0)
        if mapped != _BASE:
            raise OSError(ctypes.get_errno(), f"cannot map shared memory at {_BASE:#x}")
        self._next = _BASE
        self._lock = Lock()

    def allocate(self, length: int) -> int | None:
        size = -(-length // _PAGE) * _PAGE
        with self._lock:
            if self._next + size > _BASE + _LENGTH:
                return None
            address, self._next = self._next, self._next + size
        return address

    def free(self, address: int, length: int) -> None:
        self._libc.madvise(address, -(-length // _PAGE) * _PAGE, mmap.MADV_REMOVE)


class EmulatedRuntime:
    """Stands for the `ctypes.CDLL` of the runtime: the same functions, called in the emulator."""

    def __init__(self, name: str) -> None:
        program = emulator()
        if program is None:
            raise RuntimeError(f"qemu-aarch64 is not installed: apt-get install {PACKAGES}")
        self.memory = SharedMemory()
        command = [
            program,
            "-L",
            LIBC,
            "-cpu",
            _CPUS[name],
            str(_driver()),
            str(runtime_build.build()),
        ]
        command += [self.memory.file.name, str(_BASE), str(_LENGTH)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = Lock()
        self.allocate = self.memory.allocate
        self.free = self.memory.free

    def __getattr__(self, name: str) -> Callable[..., Any]:
        result, _ = {**c_executor.SHARED, **cpu.SIGNATURES}[name]

        def function(*arguments: Any) -> Any:
            with self._lock:
                return self._convert(result, self._marshalled(f"softmetal_{name}", arguments))

        setattr(self, name, function)
        return function

    def string_at(self, address: int, size: int) -> bytes:
        """Memory of the emulated process."""
        with self._lock:
            return self._read(address, size)

    def _marshalled(self, name: str, arguments: tuple[Any, ...]) -> int:
        """Passes what pointers point to by copying it in, and out again if it can be written."""
        words, copies = [], []
        for argument in arguments:
            if argument is None or isinstance(argument, int):
                words.append(argument or 0)
                continue
            target = getattr(argument, "_obj", argument)  # of a ctypes.byref
            data = bytes(target)
            address = self._call("malloc", len(data) + 1)
            self._write(address, data + b"\0")
            words.append(address)
            copies.append((target, address, len(data)))
        value = self._call(name, *words)
        for target, address, size in copies:
            if not isinstance(target, bytes):
                ctypes.memmove(ctypes.addressof(target), self._read(address, size), size)
            self._call("free", address)
        return value

    def _convert(self, result: Any, word: int) -> Any:
        if result is ctypes.c_char_p:
            return self._read(word, self._call("strlen", word)) if word else None
        if result is ctypes.c_void_p:
            return word or None
        return None if result is None else result(word).value

    def _call(self, name: str, *words: int) -> int:
        text = name.encode()
        head = struct.pack("<3Q", _CALL, len(text), len(words))
        self._send(head + text + struct.pack(f"<{len(words)}Q", *words))
        return int.from_bytes(self._receive(8), "little")

    def _read(self, address: int, size: int) -> bytes:
        self._send(struct.pack("<3Q", _READ, address, size))
        return self._receive(size)

    def _write(self, address: int, data: bytes) -> None:
        self._send(struct.pack("<3Q", _WRITE, address, len(data)) + data)

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def _receive(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) != size:
            raise RuntimeError(f"the emulated process ended with status {self._process.wait()}")
        return data


class _SharedPacker(packing.Packer):
    """Encodes indirect command buffers in shared memory: the runtime reads them where they are."""

    memory: SharedMemory

    def _new_block(self, size: int) -> ctypes.Array[ctypes.c_char]:
        address = self.memory.allocate(max(size, 1))
        if address is None:
            raise MemoryError(f"no shared memory for {size} bytes")
        return (ctypes.c_char * size).from_address(address)


def _driver() -> Path:
    source = Path(__file__).with_name("emulated_driver.c")

    def fill(folder: Path) -> None:
        target = ["-target", "aarch64-linux-gnu.2.31", "-O1"]
        clang.run("cc", [*target, str(source), "-o", str(folder / "driver")])

    key = disk_cache.key_of(clang.version(), source.read_bytes())
    return disk_cache.default().get("driver", key, fill) / "driver"


def install(name: str) -> None:
    """Make softmetal in this process compile for a target of `TARGETS` and run there."""
    target = TARGETS[name]
    targets.host = lambda: target
    emulated = EmulatedRuntime(name)
    _SharedPacker.memory = emulated.memory
    cpu._library = lambda: emulated
    process.SLICE_NS = _SLICE_NS
    c_executor.read_memory = emulated.string_at
    c_executor.Packer = _SharedPacker
