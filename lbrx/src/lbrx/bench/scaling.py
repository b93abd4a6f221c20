"""How speed grows with threads: the same cases in a process for each number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lbrx.bench.report import JSON_NAME, read
from lbrx.errors import LbrxError

CASES = "gelu", "layer_norm", "sum_rows", "conv2d"


def counts(cores: int) -> list[int]:
    """1, 2, 4 and so on, and all cores."""
    powers = [1 << n for n in range(cores.bit_length()) if 1 << n < cores]
    return [*powers, cores]


def measure(threads: int) -> list[dict[str, Any]]:
    """Seconds of each case with so many threads of the soft device, which reads their number once
    in a process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lbrx", "bench", "--suite", "kernels", "--short"]
        command += ["--only", ",".join(CASES), "--peers", "", "--out", folder]
        environment = os.environ | {"SOFTMETAL_THREADS": str(threads)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no output"]
            raise LbrxError(f"{threads} threads could not be measured: {lines[-1]}")
        rows = read(Path(folder) / JSON_NAME).rows
    return [
        {"name": row.name, "threads": threads, "seconds": row.seconds, "spread": row.spread}
        for row in rows
    ]
