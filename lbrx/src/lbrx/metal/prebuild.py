"""Compiling every shader in advance: pipelines for this device, and, on a Mac with Xcode's tools,
Metal libraries that are loaded instead of the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from lbrx.errors import DeviceError
from lbrx.metal.library import Shaders, digest, shader_text

MATHS = (False, True)  # fast, safe
WIDE = "ext_vector_type"  # marks shaders for CPUs, with vectors wider than Metal's


def build_pipelines(shaders: Shaders, *, for_gpu: bool = False) -> int:
    """Compile every kernel without function constants; returns the number of pipelines."""
    stems = [s for s in shaders.stems() if not (for_gpu and WIDE in shaders.text(s))]
    wanted = [
        (stem, name, safe)
        for stem, safe in product(stems, MATHS)
        for name in shaders.plain_functions(stem)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        list(workers.map(lambda job: shaders.pipeline(*job[:2], safe_math=job[2]), wanted))
    shaders.save()
    return len(wanted)


def build_metallibs(folder: Path) -> list[Path]:
    """Write a library per stem and maths mode beside the sources; none without `xcrun metal`."""
    if not _has_compiler():
        return []
    built = []
    for source in sorted(folder.glob("*.metal")):
        text = shader_text(folder, source.name)
        if WIDE in text:
            continue
        current = {folder / f"{source.stem}-{digest(text, safe)}.metallib": safe for safe in MATHS}
        for old in set(folder.glob(f"{source.stem}-*.metallib")) - set(current):
            old.unlink()
        for path, safe in current.items():
            _compile(text, path, safe)
            built.append(path)
    return built


def _has_compiler() -> bool:
    if shutil.which("xcrun") is None:
        return False
    found = subprocess.run(["xcrun", "--find", "metal"], capture_output=True, check=False)
    return found.returncode == 0


def _compile(text: str, path: Path, safe: bool) -> None:
    """Write to a temporary file, then rename it."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        source, target = Path(folder) / "shader.metal", Path(folder) / "shader.metallib"
        source.write_text(text)
        maths = "-fno-fast-math" if safe else "-ffast-math"
        command = ["xcrun", "-sdk", "macosx", "metal", maths, "-o", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DeviceError(f"{path.name} does not compile:\n{done.stderr}")
        os.replace(target, path)
