"""Finds OpenBLAS. The C runtime loads it when the first matrix multiplication runs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def library_path() -> Path | None:
    """The shared library of `scipy-openblas64`, found without importing the package."""
    spec = find_spec("scipy_openblas64")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder, "lib").glob("libscipy_openblas64_*.so*")):
            return path
    return None
