"""The examples run, and say what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_tensors():
    command = [sys.executable, EXAMPLES / "tensors.py"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "bfloat16 @ float32 is float32 (4, 3)" in output
    assert "a slice shares storage: True" in output
    assert "tensor([[7., 7., 7.],\n        [1., 1., 1.]]," in output
    assert "the inner sizes of (4, 8) and (4, 8) differ, 8 and 4: transpose one" in output
