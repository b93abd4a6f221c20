"""A real client of Metal, unmodified: tinygrad with METAL=1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from seeds import SEED

pytest.importorskip("tinygrad", reason="tinygrad 0.9.2 is in the dev extra; it is not installed")
PROGRAM = Path(__file__).parent / "tinygrad_program.py"


@pytest.mark.parametrize(
    "part",
    ["matmul", "conv2d", "reductions", "unary", "gather", "casts", "jit", "training"],
)
def test_tinygrad(part, tmp_path):
    environment = {**os.environ, "METAL": "1", "CACHELEVEL": "0", "XDG_CACHE_HOME": str(tmp_path)}
    environment.setdefault("SOFTMETAL_CACHE", str(Path.home() / ".cache" / "softmetal"))
    done = subprocess.run(
        [sys.executable, "-m", "softmetal", "run", str(PROGRAM), part, str(SEED)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
