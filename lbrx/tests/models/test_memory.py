"""Memory that a model no longer needs is returned to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lbrx
from lbrx.memory.process import give_back, peak_memory


def resident() -> int:
    """The resident memory of this process in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(sys.platform != "linux", reason="other allocators return memory themselves")
def test_freed_memory_goes_back_to_the_system():
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    # Each is too small for malloc to map separately; the last one keeps the end of the heap in use.
    blocks = [libc.malloc(60_000) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 60_000)
    for block in blocks[:-1]:
        libc.free(block)
    before = resident()
    give_back()
    libc.free(blocks[-1])
    assert resident() < before - 30_000


def test_peak_memory_excludes_the_parent_process():
    large = np.ones(300_000_000, np.uint8)
    shown = "from lbrx.memory.process import peak_memory; print(peak_memory())"
    child = subprocess.run([sys.executable, "-c", shown], capture_output=True, check=True)
    assert 1_000_000 < int(child.stdout) < large.nbytes <= peak_memory()


def test_a_long_prompt_leaves_no_scratch(make_model):
    """A prompt's intermediate results are far larger than those of one token."""
    model = lbrx.language_model(make_model("llama", max_position_embeddings=1024), device="metal")
    gpu = lbrx.metal.context()
    gpu.trim()
    assert gpu.pool.statistics().cached == 0
    state = model.engine.prefill([list(range(3, 403))], 8)
    state.best.numpy()
    gpu.queue.drain()
    assert gpu.pool.statistics().cached < 400 * 4 * model.config.hidden
