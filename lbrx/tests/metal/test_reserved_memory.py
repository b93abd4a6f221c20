"""How much memory a program reserves for what it uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STEPS = "import lbrx_pool; print(*lbrx_pool.mixed_steps(400, seed=2))"


def test_little_more_is_reserved_than_was_in_use():
    """In a process of its own, since high-water marks are those of the whole process."""
    ran = subprocess.run(
        [sys.executable, "-c", STEPS], cwd=BENCHMARKS, capture_output=True, text=True, check=True
    )
    reserved, used = map(int, ran.stdout.splitlines()[-1].split())
    assert 5_000_000 < used <= reserved < 1.2 * used
