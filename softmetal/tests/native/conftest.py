"""Compiles native programs with what `softmetal native --env` sets, and runs them."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from softmetal.native import environment

PROGRAMS = Path(__file__).parent / "programs"
_LIMIT = 600  # seconds: a hang becomes a failure of its own test

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def variables() -> dict[str, str]:
    return environment.variables()


@pytest.fixture
def compiled(variables, tmp_path) -> Callable[..., Path]:
    """Compiles a source of `programs`, or a text, to a program."""

    def compile_(source: str | Path, *flags: str) -> Path:
        path = PROGRAMS / source
        output = tmp_path / path.stem
        cpp = path.suffix in (".mm", ".cpp")
        command = [variables["CXX" if cpp else "CC"], *shlex.split(variables["CFLAGS"]), *flags]
        command += [str(path), "-o", str(output), *shlex.split(variables["LDFLAGS"])]
        command += shlex.split(variables["LDLIBS"])
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT)
        assert done.returncode == 0, done.stderr[-4000:]
        return output

    return compile_


@pytest.fixture
def run(variables) -> Run:
    """Runs a program, and returns its status and what it wrote."""

    def run_(program: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        environment_ = {**os.environ, **variables, **settings}
        return subprocess.run(
            [str(program), *arguments],
            capture_output=True,
            text=True,
            env=environment_,
            check=False,
            timeout=_LIMIT,
        )

    return run_
