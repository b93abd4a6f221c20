"""ptxas for the tests: an installed one, or that of NVIDIA's wheel."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from wheels import wheel


def require_ptxas(folder: Path) -> Path:
    """The assembler, extracted into a folder where it is not installed. Skips the test where there
    is neither a program nor its wheel."""
    from softmetal.toolchain import ptxas

    if (found := ptxas.path()) is not None:
        return found
    try:
        source = wheel("nvidia-cuda-nvcc")
    except FileNotFoundError as problem:
        pytest.skip(f"ptxas is not installed, and {problem}")
    with zipfile.ZipFile(source) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/bin/ptxas"))
        found = Path(archive.extract(name, folder))
    found.chmod(0o755)
    os.environ["PATH"] += os.pathsep + str(found.parent)
    ptxas.path.cache_clear()
    return found
