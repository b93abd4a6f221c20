"""Builds the C runtime of the CPU executor, once for each processor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from softmetal.errors import CompileError, ToolchainError
from softmetal.toolchain import clang, disk_cache, targets

SOURCES = Path(__file__).parent.parent / "runtime"
# Half of the compiling: what calls into the rest, and is called by it, seldom.
_BESIDE = frozenset({"check", "check_fences", "check_order", "check_shadow", "gemm", "gemm_panels"})
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
    beside = [source for source in units if source.stem in _BESIDE]
    together = [source for source in units if source not in beside]

    def fill(folder: Path) -> None:
        build_library([together, beside], target.flags, folder / "runtime.so")

    return disk_cache.default().get("runtime", key, fill) / "runtime.so"


def build_library(groups: Sequence[Sequence[Path]], flags: Sequence[str], output: Path) -> None:
    """Compile C sources into a shared library, the groups side by side and each as one unit, within
    which functions are inlined; raises ToolchainError."""
    from concurrent.futures import ThreadPoolExecutor  # late: a warm start builds nothing

    machine = targets.host().triple.partition("-")[0]
    objects = [output.with_suffix(f".{number}.o") for number in range(len(groups))]

    def compiled(units: Sequence[Path], to: Path) -> None:
        text = "".join(f'#include "{source}"\n' for source in units)
        arguments = [*compile_flags(machine), *flags, "-x", "c", "-c", "-", "-o", str(to)]
        clang.run("clang", arguments, text)

    try:
        with ThreadPoolExecutor(len(groups)) as pool:
            list(pool.map(compiled, groups, objects))
        clang.run("ld.lld", ["-shared", "-z", "now", *map(str, objects), "-o", str(output)])
    except CompileError as error:
        raise ToolchainError(f"building {output.stem} failed:\n{error}") from error
    for each in objects:
        each.unlink()
