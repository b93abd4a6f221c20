"""Waits for something that has to come, so that a test which waits in vain fails."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(holds: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Returns once `holds()` is true; `what` is the reason of the failure if it never is."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.02)
