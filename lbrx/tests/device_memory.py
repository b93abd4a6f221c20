"""Which memory the device under test has, and what a fault does to it."""

import os
import sys

import pytest

DISCRETE = os.environ.get("SOFTMETAL_DEVICE", "").startswith(("discrete", "cuda"))
GPU = os.environ.get("SOFTMETAL_DEVICE", "").startswith("cuda")
shares_memory = pytest.mark.skipif(DISCRETE, reason="the device has its own memory")
survives_faults = pytest.mark.skipif(
    GPU or sys.platform == "darwin", reason="a fault ends the use of the GPU in this process"
)
