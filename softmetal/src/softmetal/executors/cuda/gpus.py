"""Whether there are NVIDIA GPUs, and if not, why."""

from __future__ import annotations

import ctypes
from functools import cache

from softmetal.errors import ExecutionError


@cache
def _counted() -> tuple[int, str]:
    """The number of GPUs, and why there are none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, "libcuda.so.1 is not installed: this machine has no NVIDIA driver"
    number = ctypes.c_int()
    if code := driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(number)):
        return 0, f"the NVIDIA driver reports error {code}"
    return number.value, "" if number.value else "the NVIDIA driver finds no GPU"


def count() -> int:
    return _counted()[0]


def why_none() -> str:
    """The reason why `count` is 0; empty if it is not."""
    return _counted()[1]


def require(index: int) -> None:
    """Raise ExecutionError unless there is a GPU of this number."""
    if not count():
        raise ExecutionError(f"there is no GPU {index}: {why_none()}")
    if index >= count():
        raise ExecutionError(f"there is no GPU {index}: this machine has {count()}, from 0 on")
