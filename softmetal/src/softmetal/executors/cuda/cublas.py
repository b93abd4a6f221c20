"""Finds cuBLAS: the PyPI package `nvidia-cublas`, or a system library."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def library_path() -> str | None:
    """The path of libcublas, or None."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        found = sorted(Path(folder).glob("*/lib/libcublas.so.*"))
        if found:
            return str(found[-1])
    system = sorted(Path("/usr/local/cuda/lib64").glob("libcublas.so.*"))
    return str(system[-1]) if system else None
