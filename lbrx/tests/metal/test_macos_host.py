"""lbrx on a host that behaves as macOS does; the Makefile runs whole test files in this mode too."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from device_memory import shares_memory

import lbrx
from lbrx.memory.zero_copy import shareable_span
from lbrx.metal import Context
from lbrx.metal.buffer import bytes_at
from lbrx.scheduler import replay
from lbrx.storage import empty_aligned

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="it is the host itself there")

PROGRAM = """
import numpy as np
import lbrx
from softmetal.api import host

x = lbrx.from_numpy(lbrx.empty_aligned((256, 256)), device="metal", copy=False)
lbrx.eval(x)
step = lbrx.compile(lambda a: (a @ a + 1).softmax(axis=-1) * 2)  # MPS products between kernels
for _ in range(200):
    y = step(x) + 1
    lbrx.eval(y)
for _ in range(3000):
    y = y * 1.5
print(y.shape, host.findings, [type(item).__name__ for item in host.leaked()])
"""


@shares_memory
def test_nothing_leaks_and_nothing_outlives_its_buffer(monkeypatch):
    """Command buffers and encoders are autoreleased: without pools they would pile up."""
    monkeypatch.setenv("SOFTMETAL_STRICT", "host,bridge")
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "(256, 256) [] []\n"


def test_aligned_arrays_are_in_pages_of_macos():
    for shape in ((1,), (4097,), (100, 1000)):
        array = empty_aligned(shape)
        assert array.ctypes.data % (16 << 10) == 0
        assert shareable_span(array, page=16 << 10) is not None


@shares_memory
def test_pages_of_another_size_are_copied(monkeypatch):
    """What Linux maps starts at its own pages; the device of a Mac takes larger ones."""
    monkeypatch.setenv("SOFTMETAL_STRICT", "host")
    gpu = Context()
    assert gpu.info.page == 16 << 10
    room = empty_aligned((64 << 10,), "uint8")
    assert gpu.share(room[4096 : 20 << 10]) is not None  # within complete pages of its base
    small = bytes_at(room.ctypes.data + 4096, 32 << 10)  # complete pages of Linux only
    foreign = np.frombuffer(small, np.uint8)
    assert shareable_span(foreign, page=4096) is not None
    assert gpu.share(foreign) is None
    gpu.close()


def test_long_recordings_are_several_indirect_command_buffers(monkeypatch):
    monkeypatch.setattr(replay, "MAX_COMMANDS", 3)
    step = lbrx.compile(lambda x: [x.softmax(axis=-1) + i for i in range(10)])
    x = lbrx.ones((4, 8), device="metal")
    for _ in range(3):
        for i, result in enumerate(step(x)):
            np.testing.assert_allclose(result.numpy(), 1 / 8 + i, rtol=1e-6)
