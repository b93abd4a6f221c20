"""Runs scripts in a child process: tests of what would end the process or depend on its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from softmetal.toolchain import clang

HERE = Path(__file__).parent
_PATHS = [str(path) for path in (HERE, HERE.parent, HERE.parents[2] / "tests")]


def run_child(
    script: str,
    timeout: str = "5",
    threads: int = 2,
    flags: tuple[str, ...] = (),
    **settings: str,
) -> subprocess.CompletedProcess[str]:
    """Run Python text that can import the modules of this folder, with these settings."""
    command = [sys.executable, *flags, "-c", f"import sys\nsys.path[:0] = {_PATHS!r}\n{script}"]
    settings |= {"SOFTMETAL_TIMEOUT": timeout, "SOFTMETAL_THREADS": str(threads)}
    environment = {**os.environ, "SOFTMETAL_CHECK": "", **settings}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def interposed(folder: Path, light_guards: bool = True) -> str:
    """The path of the library of interposed.c, for LD_PRELOAD; `light_guards`: whether madvise
    knows MADV_GUARD_INSTALL."""
    library = folder / "interposed.so"
    flags = ["-shared", "-fPIC", "-O1", f"-DREFUSE_LIGHT_GUARDS={int(not light_guards)}"]
    clang.run("cc", [*flags, str(HERE / "interposed.c"), "-o", str(library)])
    return str(library)
