"""Kernels whose threads meet give the same bits as loops over threads and as fibers: tests of kernels
run in both ways, and what they read is compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif("sys.platform == 'darwin'", reason="softmetal's executor")

HERE = Path(__file__).parent
LOOPS = {"REGIONS", "SIMDGROUPS"}
# Files of tests, which of them run, and whether any of their kernels runs as loops.
CASES = {
    "softmax": ("test_rows and threadgroup and not parts", True),
    "all of softmax": ("", True),
    "all of norm": ("", True),
    "all of scan": ("", False),
    "all of sorting": ("", True),
    "all of reduction": ("", False),
}
FULL = [
    pytest.param(case, marks=pytest.mark.full if case.startswith("all") else ()) for case in CASES
]


def read_by_tests(file: str, selection: str, fibers: str, folder: Path) -> dict[str, Any]:
    """The values that the tests read, and the modes of their kernels."""
    output = folder / f"bits{fibers}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-p", "meeting_bits", "-m", "not full", "-k", selection, str(HERE / file)]
    paths = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"SOFTMETAL_FIBERS": fibers, "MEETING_BITS": str(output), "PYTHONPATH": paths}
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.mark.parametrize("case", FULL)
def test_the_bits_of_fibers(case, tmp_path):
    selection, as_loops = CASES[case]
    file = f"test_{case.removeprefix('all of ')}.py"
    loops, fibers = (read_by_tests(file, selection, value, tmp_path) for value in "01")
    assert as_loops == bool(LOOPS & set(loops["modes"].values()))
    assert not LOOPS & set(fibers["modes"].values())
    assert loops["values"]
    assert loops["values"] == fibers["values"]
