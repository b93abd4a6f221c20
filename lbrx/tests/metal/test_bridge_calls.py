"""Calls of Metal cross PyObjC's bridge, on the oldest macOS that lbrx claims too.

The fixture `_bridge` of conftest.py judges the calls of every test.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from selectors_called import NEWER, OLDEST, SELECTORS
from wheels import wheel

import lbrx
from lbrx.metal import binding, context

EXAMPLES = Path(__file__).parents[3] / "examples"
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="the bridge itself is there")


def test_only_what_is_looked_for_is_newer_than_claimed():
    assert {name for name, version in SELECTORS.items() if version > OLDEST} == NEWER


def test_names_of_modules_are_pyobjcs():
    """Constants and functions are in PyObjC's metadata, classes among those of metal-cpp or MPS."""
    texts = []
    for name, module in (("Metal", "Metal"), ("MetalPerformanceShaders",) * 2):
        with zipfile.ZipFile(wheel(f"pyobjc-framework-{name}")) as archive:
            texts.append(archive.read(f"{module}/_metadata.py").decode())
    with zipfile.ZipFile(wheel("mlx-metal")) as archive:
        header = archive.read("mlx/include/metal_cpp/Metal/MTLHeaderBridge.hpp").decode()
    known = {
        *re.findall(r"[$\"](M(?:TL|PS)\w+)[@\"]", "".join(texts)),
        *re.findall(r"_DEF_CLS\((MTL\w+)\)", header),
        *re.findall(r'b"(MPS\w+)"', texts[1]),
    }
    used = {
        name
        for path in (EXAMPLES.parent / "lbrx" / "src").rglob("*.py")
        for name in re.findall(r"\b(?:Metal|MPS)\.(M(?:TL|PS)\w+)", path.read_text())
    }
    assert len(used) > 30
    # A class for which PyObjC has no metadata; it makes the matrices of MPSMatrixMultiplication.
    assert used - known <= {"MPSMatrix", "MPSMatrixDescriptor"}


@pytest.mark.parametrize("example", ["custom_kernel", "tensors"])
def test_on_the_oldest_macos(example, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_MACOS", "14")
    command = [sys.executable, str(EXAMPLES / f"{example}.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_what_pyobjc_has_wrong_is_registered(monkeypatch):
    """Without the corrected metadata replays and custom kernels fail on a Mac."""
    from lbrx.scheduler import replay
    from softmetal.api import objc
    from softmetal.bridge import judging

    monkeypatch.setattr(objc, "registrations", {})
    monkeypatch.setattr(replay, "FEWEST_COMMANDS", 1)
    x = lbrx.tensor(np.ones((4, 8), np.float32), device="metal")
    with judging() as judge:
        with pytest.raises(
            ValueError, match=r"concurrentDispatchThreads.* MTLSize is not a number"
        ):
            lbrx.compile(lambda a: a.softmax(axis=-1) + 1)(x)
        with pytest.raises(ValueError, match="PyObjC's block has 2 arguments"):
            lbrx.kernel("kernel void f(device float* out) { out[0] = 1; }")(
                shapes=[(1,)], grid=(1, 1, 1)
            )
        judge.refused.clear()


def test_a_call_that_only_softmetal_takes_fails_the_test():
    from softmetal.bridge import judging

    with judging() as judge:
        with pytest.raises(ValueError, match="newLibraryWithURL:error:, argument 0: a str"):
            context().device.newLibraryWithURL_error_("library.metallib", None)
        assert len(judge.refused) == 1
        judge.refused.clear()
    assert binding.SOFT
