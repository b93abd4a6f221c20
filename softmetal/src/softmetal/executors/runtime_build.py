"""Builds the C runtime of the CPU executor, once for each processor."""

from __future__ import annotations

from pathlib import Path

from softmetal.errors import CompileError, ToolchainError
from softmetal.toolchain import clang, disk_cache, targets

SOURCES = Path(__file__).parent.parent / "runtime"
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno",
         "-ftls-model=initial-exec")  # fmt: skip


def include_flags(machine: str) -> list[str]:
    """Include folders of the glibc headers that zig contains; `zig clang` does not find them."""
    arch = {"x86_64": "x86"}.get(machine, machine)
    lib = clang.zig().parent / "lib"
    libc = lib / "libc" / "include"
    folders = [
        lib / "include",
        libc / f"{arch}-linux-gnu",
        libc / "generic-glibc",
        libc / f"{arch}-linux-any",
        libc / "any-linux-any",
    ]
    return ["-nostdinc", *(f"-isystem{folder}" for folder in folders)]


def compile_flags(machine: str) -> list[str]:
    """Flags for one of the runtime's sources on a machine such as "aarch64"."""
    return [f"--target={machine}-linux-gnu", *include_flags(machine), *FLAGS]


def build() -> Path:
    """The path of the compiled runtime, built if it is not in the cache."""
    target = targets.host()
    sources = sorted(SOURCES.glob("*.[ch]"))
    key = disk_cache.key_of(
        *(clang.version(), target.triple, target.cpu, *target.flags, *FLAGS),
        *(part for source in sources for part in (source.name, source.read_bytes())),
    )

    def fill(folder: Path) -> None:
        unit = "".join(f'#include "{source}"\n' for source in sources if source.suffix == ".c")
        machine = target.triple.partition("-")[0]
        flags = [*compile_flags(machine), *target.flags, "-x", "c", "-c", "-"]
        try:
            clang.run("clang", [*flags, "-o", str(folder / "runtime.o")], unit)
            shared = ["-shared", "-z", "now", str(folder / "runtime.o")]
            clang.run("ld.lld", [*shared, "-o", str(folder / "runtime.so")])
        except CompileError as error:
            raise ToolchainError(f"building the CPU runtime failed:\n{error}") from error
        (folder / "runtime.o").unlink()

    return disk_cache.default().get("runtime", key, fill) / "runtime.so"
