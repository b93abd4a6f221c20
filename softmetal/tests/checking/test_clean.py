"""Kernels that are right give no finding: the builtin suite and tinygrad's, with all checks on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
ALL = {"SOFTMETAL_CHECK": "bounds,race,uninit"}
# One file of each kind in the default run, the others in the full one.
QUICK = {"test_simdgroup_matrix.py", "test_logging.py"}
SUITE = sorted(path.name for path in (TESTS / "msl").glob("test_*.py"))
PARTS = ["jit", "matmul", "conv2d", "reductions", "unary", "gather", "casts", "training"]


def marked(names, quick):
    return [n if n in quick else pytest.param(n, marks=pytest.mark.full) for n in names]


def run(command, **variables):
    environment = {**os.environ, **ALL, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", marked(SUITE, QUICK))
def test_builtin_suite(name):
    done = run([sys.executable, "-m", "pytest", "-q", "-x", str(TESTS / "msl" / name)])
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("part", marked(PARTS, {"jit"}))
def test_tinygrad(part):
    pytest.importorskip("tinygrad", reason="tinygrad 0.9.2 is in the dev extra")
    program = str(TESTS / "peers" / "tinygrad_program.py")
    command = [sys.executable, "-m", "softmetal", "run", program, part, "7"]
    done = run(command, METAL="1", CACHELEVEL="0")
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
