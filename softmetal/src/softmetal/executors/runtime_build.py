"""Builds the C runtime of the CPU executor, once for each processor."""

from __future__ import annotations

from collections.abc import Sequence
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

    units = [source for source in sources if source.suffix == ".c"]

    def fill(folder: Path) -> None:
        build_library(units, target.flags, folder / "runtime.so")

    return disk_cache.default().get("runtime", key, fill) / "runtime.so"


def build_library(units: Sequence[Path], flags: Sequence[str], output: Path) -> None:
    """Compile C sources as one unit into a shared library; raises ToolchainError."""
    text = "".join(f'#include "{source}"\n' for source in units)
    machine = targets.host().triple.partition("-")[0]
    compiled = output.with_suffix(".o")
    arguments = [*compile_flags(machine), *flags, "-x", "c", "-c", "-", "-o", str(compiled)]
    try:
        clang.run("clang", arguments, text)
        clang.run("ld.lld", ["-shared", "-z", "now", str(compiled), "-o", str(output)])
    except CompileError as error:
        raise ToolchainError(f"building {output.stem} failed:\n{error}") from error
    compiled.unlink()
