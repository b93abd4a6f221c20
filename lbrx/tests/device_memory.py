"""What tests must know of the device under test: its memory, its precision, what a fault does."""

import os
import sys

import pytest

DISCRETE = os.environ.get("SOFTMETAL_DEVICE", "").startswith(("discrete", "cuda"))
GPU = os.environ.get("SOFTMETAL_DEVICE", "").startswith("cuda")
# GPUs, and those that a profile plays, have no variants for processors, and models compute in
# float16 between operations there.
GPU_KERNELS = HALF_ACTIVATIONS = GPU or bool(os.environ.get("SOFTMETAL_PROFILE"))
shares_memory = pytest.mark.skipif(DISCRETE, reason="the device has its own memory")
MACOS_PAGES = "host" in os.environ.get("SOFTMETAL_STRICT", "").split(",")
shares_files = pytest.mark.skipif(
    DISCRETE or MACOS_PAGES,
    reason="the device has its own memory, or shares pages of 16 KiB, while Linux maps files at 4 KiB",
)
on_processors = pytest.mark.skipif(
    GPU_KERNELS or sys.platform == "darwin", reason="about what processors are given"
)
survives_faults = pytest.mark.skipif(
    GPU or sys.platform == "darwin", reason="a fault ends the use of the GPU in this process"
)


def tolerance(float32: float, float16: float) -> float:
    """That of what a model computes on the default device."""
    return float16 if HALF_ACTIVATIONS else float32
