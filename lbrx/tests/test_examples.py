"""The examples run, and say what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "tensors": [
        "bfloat16 @ float32 is float32 (4, 3)",
        "a slice shares storage: True",
        "tensor([[7., 7., 7.],\n        [1., 1., 1.]],",
        "the inner sizes of (4, 8) and (4, 8) differ, 8 and 4: transpose one",
    ],
    "custom_kernel": [
        "float32: (1000,) float32 on metal, right: True",
        "bfloat16: (1000,) float32 on metal, right: True",
        "letters l: 3",
        "dispatches: 2 1",
        "error: <lbrx.kernel weighted_mean>: x is declared as float, but was given int32[1000, 300]",
    ],
    "zero_copy": [
        "numpy's write is seen: True",
        "the same memory: True",
        "make the array with lbrx.empty_aligned",
        "bytes allocated for 4 MiB of weights: 0",
        "their mean: 524287.5",
        "results are shared too: True",
    ],
    "events": [
        "finished: True and finite: True",
        "waited: True",
        "held back: True True",
        "released: True",
        "right: True",
    ],
}


def test_every_example_is_run():
    own = {path.stem for path in EXAMPLES.glob("*.py") if "import lbrx" in path.read_text()}
    assert own == SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_example(name):
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for text in SAID[name]:
        assert text in done.stdout
