"""Clients that others wrote: metal-cpp, messages by ctypes, and tinygrad's METAL device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from wheels import tinygrad, tinygrad_tests

from softmetal.toolchain import clang

PROGRAMS = Path(__file__).parent / "programs"


def test_metal_cpp(compiled, run, mlx_include):
    flags = ("-std=c++17", "-isystem", str(mlx_include / "metal_cpp"))
    done = run(compiled("metal_cpp.cpp", *flags))
    assert (done.returncode, done.stderr) == (0, "")


def softmetal_run(*arguments: str, **settings: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "softmetal", "run", *arguments],
        capture_output=True, text=True, env={**os.environ, **settings}, check=False, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout


def test_messages_by_ctypes():
    assert softmetal_run(str(PROGRAMS / "messages.py")) == "sent\n"


TABLE = ("unary", "binary", "reductions", "movement", "indexing", "types", "products")
PARTS = [
    "jit",
    *(pytest.param(p, marks=pytest.mark.full) for p in (*TABLE, "gradients", "training")),
]


@pytest.fixture
def tinygrad_settings(tmp_path) -> dict[str, str]:
    """Its METAL and CPU devices; the CPU one calls clang, which is that of ziglang here."""
    compiler = tmp_path / "clang"
    compiler.write_text(f'#!/bin/sh\nexec "{clang.zig()}" clang "$@"\n')
    compiler.chmod(0o755)
    cache = os.environ.get("SOFTMETAL_CACHE") or str(Path.home() / ".cache" / "softmetal")
    paths = os.pathsep.join([str(tinygrad()), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"DEV": "METAL", "CC": str(compiler), "CACHELEVEL": "0", "PYTHONPATH": paths,
            "XDG_CACHE_HOME": str(tmp_path), "SOFTMETAL_CACHE": cache}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_tinygrad(part, tinygrad_settings):
    """tinygrad 0.14, unmodified; its CPU device is the oracle."""
    output = softmetal_run(str(PROGRAMS / "tinygrad_programs.py"), part, **tinygrad_settings)
    assert output == "right\n"


@pytest.mark.full
def test_the_tests_that_tinygrad_ships(tinygrad_settings):
    """Those of its source distribution."""
    softmetal_run(str(tinygrad_tests()), **tinygrad_settings)
