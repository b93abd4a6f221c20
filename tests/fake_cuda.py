"""A libcuda without a GPU, for tests of the CUDA executor."""

from __future__ import annotations

import platform
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "softmetal" / "tests" / "cuda" / "fake_libcuda.c"


def build_fake_libcuda(folder: Path) -> None:
    """Write libcuda.so.1 into a folder, which a process then has in LD_LIBRARY_PATH."""
    from softmetal.executors import runtime_build
    from softmetal.toolchain import clang

    compiled = folder / "fake.o"
    flags = [*runtime_build.compile_flags(platform.machine()), "-Wall", "-Wextra", "-Werror"]
    clang.run("clang", [*flags, "-c", str(SOURCE), "-o", str(compiled)])
    clang.run("ld.lld", ["-shared", str(compiled), "-o", str(folder / "libcuda.so.1")])
