"""docs/howto/checking.md: its table is up to date, and its walk-through gives the printed output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from faults import FAULTS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "howto" / "checking.md").read_text()

pytestmark = pytest.mark.skipif("sys.platform == 'darwin'", reason="checks are softmetal's own")


def test_the_fault_table_is_fresh():
    done = subprocess.run(
        [sys.executable, ROOT / "softmetal" / "scripts" / "fault_table.py", "--check"], check=False
    )
    assert done.returncode == 0, "run softmetal/scripts/fault_table.py"
    assert all(f"`{fault.name}`" in PAGE for fault in FAULTS)


def findings(text):
    """Without the numbers, which depend on the order that a seed gives."""
    return {re.sub(r"\d+", "N", line) for line in text.splitlines()}


def test_the_walk_through(tmp_path):
    program = re.search(r"Save this as `sums.py`.*?```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "sums.py").write_text(program[1])
    seed = re.search(r"seed (\d+)", PAGE)[1]
    env = {**os.environ, "SOFTMETAL_SEED": seed}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    commands = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", "".join(blocks), re.MULTILINE)
    assert len(commands) == 3
    for command, output in commands:
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert findings(done.stderr + done.stdout) == findings(output)
        assert done.returncode == (66 if "race:" in output else 0)
