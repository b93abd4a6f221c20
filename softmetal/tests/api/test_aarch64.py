"""The runtime, its fibers and compiled kernels on aarch64, under qemu's user-mode emulation.

Each case runs tests of the other files in a process whose kernels and runtime are compiled for the
named processor and run by qemu; see emulated.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from emulated import PACKAGES, emulator

TESTS = Path(__file__).parents[1]
EXECUTOR = "api/test_executor.py api/test_executor_commands.py"
# processor, what is run, which tests of it
CASES = {
    "fibers, pool and command lists": ("neoverse-n1", EXECUTOR, ""),
    "the first processors": ("armv8", f"{EXECUTOR} msl/test_programs.py", ""),
    # Memory that Python maps is not the emulated process's, and qemu reports a wild address as 0.
    "crashes and endless kernels": (
        "neoverse-n1",
        "api/test_runaway.py",
        "(names_kernel or overflow or each_other or at_once) and not protected and not beyond and not invalid",
    ),
    # Emulated buffers are in a file, without guards.
    "overruns": (
        "neoverse-n1",
        "api/test_overruns.py",
        "(small_overruns or larger_overruns) and not device",
    ),
    "integers and atomics": ("neoverse-n2", "msl/test_integer.py msl/test_atomic.py", ""),
    "maths": ("neoverse-n2", "msl/test_math.py", "safe or test_fast"),
    "simdgroups": ("neoverse-n2", "msl/test_simd.py msl/test_quad.py", ""),
    "simdgroup matrices": ("neoverse-n2", "msl/test_simdgroup_matrix.py", ""),
    "types": ("neoverse-n2", "msl/test_types.py msl/test_pack.py", ""),
    "checking modes": ("neoverse-n1", "checking/test_faults.py", "found_by_its_mode"),
}

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        emulator() is None, reason=f"qemu-aarch64 is not installed: apt-get install {PACKAGES}"
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_on_aarch64(case: str) -> None:
    processor, files, selection = CASES[case]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not full"]
    command += [str(TESTS / file) for file in files.split()]
    environment = {**os.environ, "SOFTMETAL_TEST_TARGET": processor}
    done = subprocess.run(
        [*command, "-k", selection], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout, re.M), done.stdout
