"""lbrx after a fault that ended a GPU's context, on a GPU that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc
import numpy as np
import lbrx

x = lbrx.tensor(np.arange(6, dtype=np.float32), device="metal")
fault = lbrx.kernel('''
kernel void fault(device const float* x, device float* out, uint i [[thread_position_in_grid]]) {
  out[i] = x[i];
}''')

def refused(tensor):
    try:
        tensor.numpy()
    except lbrx.DeviceError as problem:
        return "kernel 'fault': CUDA_ERROR_ILLEGAL_ADDRESS" in str(problem)

y = fault(x, grid=6, shapes=[(6,)])
assert refused(y) and refused(y) and refused(x)
lbrx.metal.context().close()
z = lbrx.tensor(np.arange(6, dtype=np.float32), device="metal")
assert (z.numpy() == np.arange(6)).all()
assert refused(x)
del x, y  # gives nothing of the new context's back
gc.collect()
assert (z.numpy() == np.arange(6)).all()
print("done")
"""


def test_a_new_context_after_a_fault(fake_libcuda: Path) -> None:
    settings = {"SOFTMETAL_DEVICE": "cuda:0", "LD_LIBRARY_PATH": str(fake_libcuda)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr
