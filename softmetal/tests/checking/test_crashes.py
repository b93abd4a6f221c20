"""Random kernels that crash: the process lives, and the error names the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from seeds import derived

import softmetal

HERE = Path(__file__).parent
MODES = [(), ("bounds",), ("race",), ("uninit",), ("bounds", "race", "uninit")]


def run_all(count: int, modes: tuple[str, ...], threads: int) -> None:
    seed = derived(f"crashes {modes}")
    script = (
        f"import sys\nsys.path.insert(0, {str(HERE)!r})\n"
        f"from crashing_kernels import run_all\nrun_all({seed}, {count}, {modes!r})\n"
    )
    settings = {"SOFTMETAL_TIMEOUT": "0.3", "SOFTMETAL_THREADS": str(threads)}
    environment = {**os.environ, "SOFTMETAL_CHECK": "", **settings}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment
    )
    last = done.stdout.splitlines()[-1:]
    assert (last, done.returncode) == (["lived"], 0), f"seed {seed}: {last} {done.stderr[-3000:]}"


@pytest.mark.parametrize("modes", MODES, ids=lambda modes: "+".join(modes) or "plain")
def test_some_kernels_that_crash(modes: tuple[str, ...]) -> None:
    run_all(12, modes, threads=2)


@pytest.mark.full
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("modes", MODES, ids=lambda modes: "+".join(modes) or "plain")
def test_two_hundred_kernels_that_crash(modes: tuple[str, ...], threads: int) -> None:
    run_all(200, modes, threads)


def test_recursion_without_end_is_refused() -> None:
    """So it cannot overflow the stack."""
    source = """
    int endless(int x) { return x < 0 ? 1 : endless(x + 1) + endless(x + 2); }
    kernel void k(device int* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
      x[i] = endless(x[i]);
    }"""
    device = softmetal.MTLCreateSystemDefaultDevice()
    library, error = device.newLibraryWithSource_options_error_(source, None, None)
    assert library is None
    assert "endless" in error.localizedDescription()
