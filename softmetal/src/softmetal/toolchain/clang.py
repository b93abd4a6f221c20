"""Runs clang and lld from the PyPI package `ziglang`. No other module starts the compiler."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from softmetal.errors import CompileError, ToolchainError


@functools.cache
def zig() -> Path:
    """The zig executable. Called directly: through Python it would take six times as long."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError("the package 'ziglang' is not installed: pip install ziglang")
    path = Path(spec.submodule_search_locations[0]) / "zig"
    if not path.exists():
        raise ToolchainError(f"{path} does not exist: pip install --force-reinstall ziglang")
    return path


@functools.cache
def version() -> str:
    """The toolchain's version, for cache keys. The folder's name is read: importlib.metadata would
    take longer than everything else that a warm start does."""
    package = zig().parent
    installed = sorted(path.name for path in package.parent.glob("ziglang-*.dist-info"))
    return installed[-1] if installed else str(zig().stat().st_mtime_ns)


def run(tool: str, arguments: Sequence[str], stdin: str | None = None) -> tuple[str, str]:
    """Run `zig TOOL ARGUMENTS`; returns (stdout, stderr), raises CompileError with stderr."""
    import subprocess  # imported late: it is slow, and a warm cache starts no process

    command = [str(zig()), tool, *arguments]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(f"cannot start {command[0]}: {error}") from error
    if done.returncode < 0 or (done.returncode and not done.stderr):
        raise ToolchainError(f"{tool} stopped with status {done.returncode}: {done.stderr[-2000:]}")
    if done.returncode:
        raise CompileError(done.stderr)
    return done.stdout, done.stderr
