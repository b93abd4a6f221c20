"""Calls of Metal cross PyObjC's bridge, on the oldest macOS that lbrx claims too.

The fixture `_bridge` of lbrx_fixtures.py judges the calls of every test.
"""

from __future__ import annotations

import os
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
    from lbrx.metal.replay_choice import ReplayChoice
    from lbrx.scheduler import replay
    from softmetal.api import objc
    from softmetal.bridge import judging

    monkeypatch.setattr(replay, "FEWEST_COMMANDS", 1)
    monkeypatch.setattr(replay, "replay_choice", lambda info: ReplayChoice("icb", "on any device"))
    known = objc.registrations
    reflected = {key: known[key] for key in known if "reflection:" in key[1]}
    assert len(reflected) == 1
    monkeypatch.setattr(objc, "registrations", reflected)
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


BARRIERS = """
import numpy as np, lbrx
from lbrx.metal import context

gpu, seen = context(), []
encoder = gpu.device.newCommandQueue().commandBuffer().computeCommandEncoder()
encoder.endEncoding()
kind = type(encoder)
barrier = kind.memoryBarrierWithScope_
kind.memoryBarrierWithScope_ = lambda self, scope: (seen.append(1), barrier(self, scope))[1]
draw = np.random.default_rng(1).standard_normal
x, *weights = (lbrx.tensor(draw((64, 64)).astype("f4"), device="metal") for _ in range(7))
lbrx.eval(x, *weights)
q, k, v = ((x @ w).softmax(axis=-1) for w in weights[:3])
gate, up = ((q @ w).softmax(axis=-1) for w in weights[3:5])
lbrx.eval(k, v, gate, up)
changed = [w.storage.buffer.block.source is not None for w in weights]
print(len(seen), changed)
"""


@pytest.mark.parametrize("macos", ["14", "15", "26"])
def test_what_kernels_write_is_known_on_every_macos(macos):
    """Kernels that only read the same memory need no barrier, and weights count as never written."""
    settings = {
        "SOFTMETAL_MACOS": macos,
        "SOFTMETAL_STRICT": "bridge",
        "LBRX_KERNEL": "matmul:tiles",
        "SOFTMETAL_DEVICE": "cpu",  # a Mac's memory, in which no work writes the weights
    }
    found = []
    for given in (settings, {**settings, "SOFTMETAL_MACOS": "26"}):
        environment = {**os.environ, **given, "SOFTMETAL_PROFILE": "apple-m1"}
        command = [sys.executable, "-c", BARRIERS]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        found.append(ran.stdout)
    assert found[0] == found[1]
    assert found[0].endswith(f" {[False] * 6}\n")
