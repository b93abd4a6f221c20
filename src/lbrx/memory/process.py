"""The memory of this process as the system sees it."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Return what has been freed to the system: glibc keeps it for later, others need no asking."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
