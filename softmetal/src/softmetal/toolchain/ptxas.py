"""NVIDIA's assembler, from the PyPI package `nvidia-cuda-nvcc` or the path. It is not needed to run
kernels, because the driver assembles PTX too."""

from __future__ import annotations

import functools
import importlib.util
import shutil
from pathlib import Path

from softmetal.errors import CompileError


@functools.cache
def path() -> Path | None:
    """The program, or None where it is not installed."""
    if found := shutil.which("ptxas"):
        return Path(found)
    spec = importlib.util.find_spec("nvidia")
    folders = map(Path, (spec.submodule_search_locations or ()) if spec else ())
    return next((p for folder in folders for p in sorted(folder.glob("*/bin/ptxas"))), None)


def assemble(ptx: Path, architecture: str, output: Path) -> str:
    """Write a cubin; returns what ptxas says about registers and memory, raises CompileError."""
    import subprocess  # imported late: it is slow, and a warm cache starts no process

    program = path()
    if program is None:
        raise CompileError("error: ptxas is not installed: pip install nvidia-cuda-nvcc\n")
    if f".target {architecture}a\n" in ptx.read_text():  # with instructions of this GPU alone
        architecture += "a"
    command = [str(program), f"-arch={architecture}", "-v", str(ptx), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"error: {done.stderr}")
    return done.stderr
