"""The fingerprint of the compiler, for cache keys."""

from __future__ import annotations

from functools import cache as once
from pathlib import Path

from softmetal.toolchain import clang, disk_cache

PACKAGE = Path(__file__).parent.parent
INCLUDE = PACKAGE / "include"
RUNTIME = PACKAGE / "runtime"
_SEEN = ("abi.h", "finding.h", "words.h", "target")


@once
def fingerprint() -> str:
    """A digest of headers, compiler sources and toolchain version; part of every key. Of the
    runtime, which has its own key, kernels see the headers in `_SEEN`."""
    files = sorted(
        path
        for root in (INCLUDE, PACKAGE / "compiler", *(RUNTIME / name for name in _SEEN))
        for path in (root, *root.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    )
    return disk_cache.key_of(
        clang.version(), *(part for f in files for part in (f.name, f.read_bytes()))
    )
