"""Builds the C code of the CUDA executor, which needs no CUDA to build."""

from __future__ import annotations

from pathlib import Path

from softmetal.executors import runtime_build
from softmetal.toolchain import clang, disk_cache, targets

SOURCES = Path(__file__).parent / "driver"
_LAUNCH = Path(__file__).parent / "include" / "target" / "launch.h"
_SHARED_HEADERS = ("words.h", "commands.h", "sync.h", "finding.h", "format.h", "mirror.h",
                   "outcome.h", "uses.h")  # fmt: skip
_SHARED_SOURCES = ("format.c", "mirror.c", "uses.c")  # with the CPU's runtime


def build() -> Path:
    """The path of the compiled library, built if it is not in the cache."""
    target = targets.host()
    units = [*sorted(SOURCES.glob("*.c")), *(runtime_build.SOURCES / n for n in _SHARED_SOURCES)]
    headers = [*SOURCES.glob("*.h"), _LAUNCH, *(runtime_build.SOURCES / n for n in _SHARED_HEADERS)]
    key = disk_cache.key_of(
        *(clang.version(), target.triple, *runtime_build.FLAGS),
        *(part for file in (*units, *headers) for part in (file.name, file.read_bytes())),
    )

    def fill(folder: Path) -> None:
        runtime_build.build_library([units], (), folder / "driver.so")

    return disk_cache.default().get("cuda", key, fill) / "driver.so"
