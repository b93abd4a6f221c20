"""The memory of this process as the operating system counts it."""

from __future__ import annotations

import ctypes
import re
import resource
import sys
from pathlib import Path


def give_back() -> None:
    """Return freed memory to the system: glibc keeps it otherwise, other allocators do not."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def peak_memory() -> int:
    """The largest number of bytes that this process has had in memory."""
    # On Linux, getrusage includes the peak of the program that started this one by exec.
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    if found is not None:
        return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
