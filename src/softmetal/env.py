"""Every SOFTMETAL_* variable, read in one place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from softmetal.errors import SettingError

T = TypeVar("T")

DEFAULT_CACHE_BYTES = 2 << 30


def _read(name: str, parse: Callable[[str], T], default: T, expected: str) -> T:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return parse(text)
    except ValueError:
        raise SettingError(
            f"{name}={text!r} is not {expected}: unset it or give {expected}"
        ) from None


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def device() -> str:
    """SOFTMETAL_DEVICE: which executor backs the default device."""
    return _read("SOFTMETAL_DEVICE", str, "cpu", "'cpu' or 'null'")


def cache_dir() -> Path:
    """SOFTMETAL_CACHE: where compiled kernels are kept."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return _read("SOFTMETAL_CACHE", Path, base / "softmetal", "a folder")


def cache_limit() -> int:
    """SOFTMETAL_CACHE_LIMIT: bytes the cache may hold before the least recently used go."""
    return _read(
        "SOFTMETAL_CACHE_LIMIT", _positive, DEFAULT_CACHE_BYTES, "a number of bytes above 0"
    )


def threads() -> int:
    """SOFTMETAL_THREADS: threads that run kernels; all cores this process may use by default."""
    return _read("SOFTMETAL_THREADS", _positive, len(os.sched_getaffinity(0)), "a number above 0")
