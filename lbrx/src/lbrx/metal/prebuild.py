"""Compiling shaders in advance: pipelines for this device, and, on a Mac with Xcode's tools,
Metal libraries that are loaded instead of the sources. The package's kernels use safe maths."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from lbrx.errors import DeviceError, SettingError
from lbrx.metal.library import PipelineRequest, Shaders, digest
from lbrx.metal.shader_files import ShaderFiles, shader_text

WIDE = "ext_vector_type"  # marks shaders for CPUs, with vectors wider than Metal's

Result = TypeVar("Result")
Progress = Callable[[int, int, PipelineRequest], object]
"""Called after each pipeline with how many are done, how many there are, and this one."""


def plain_kernels(
    shaders: Shaders, stems: Sequence[str], *, for_gpu: bool = False
) -> list[PipelineRequest]:
    """The kernels of stems that have no function constants."""
    known = shaders.stems()
    if unknown := [stem for stem in stems if stem not in known]:
        raise SettingError(f"there is no stem {unknown[0]!r}: it is one of {', '.join(known)}")
    return [
        PipelineRequest(stem, name)
        for stem in stems
        if not (for_gpu and WIDE in shaders.text(stem))
        for name in shaders.plain_functions(stem)
    ]


def build_pipelines(
    shaders: Shaders,
    wanted: Sequence[PipelineRequest],
    progress: Progress = lambda done, count, last: None,
) -> None:
    """Compile pipelines on all processors and save them; raises the first error."""

    def build(each: PipelineRequest) -> None:
        constants = dict(each.constants)
        shaders.pipeline(
            *(each.stem, each.function, constants), safe_math=each.safe_math, source=each.source
        )

    try:
        _for_each(build, wanted, progress)
    finally:
        shaders.save()


def build_for_target(
    shaders: Shaders,
    wanted: Sequence[PipelineRequest],
    target: str,
    folder: Path,
    progress: Progress = lambda done, count, last: None,
) -> list[Path]:
    """Write the code of pipelines for another GPU into a folder; raises the first error."""
    folder.mkdir(parents=True, exist_ok=True)

    def build(each: PipelineRequest) -> list[Path]:
        return shaders.compile_for(each, target, folder / file_name(each))

    return sorted(file for files in _for_each(build, wanted, progress) for file in files)


def _for_each(
    build: Callable[[PipelineRequest], Result],
    wanted: Sequence[PipelineRequest],
    progress: Progress,
) -> list[Result]:
    """The results of `build` on all processors, in the order in which they came."""
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        running = {workers.submit(build, each): each for each in wanted}
        results = []
        try:
            for done, future in enumerate(as_completed(running), 1):
                results.append(future.result())
                progress(done, len(wanted), running[future])
        finally:
            workers.shutdown(cancel_futures=True)
    return results


def file_name(request: PipelineRequest) -> str:
    """What a pipeline's files are called; function constants and a source are in a digest."""
    plain = f"{request.stem}-{request.function}"
    if not request.constants and request.source is None:
        return plain
    return f"{plain}-{digest(repr((request.constants, request.source)), request.safe_math)}"


def build_metallibs(files: ShaderFiles) -> list[Path]:
    """Write a library per stem beside the sources; none without `xcrun metal`."""
    if not _has_compiler():
        return []
    built = []
    for source in files.sources():
        text = shader_text(files, source.name)
        if WIDE in text:
            continue
        path = source.parent / f"{source.stem}-{digest(text, safe_math=True)}.metallib"
        for old in set(source.parent.glob(f"{source.stem}-*.metallib")) - {path}:
            old.unlink()
        _compile(text, path)
        built.append(path)
    return built


def _has_compiler() -> bool:
    if shutil.which("xcrun") is None:
        return False
    found = subprocess.run(["xcrun", "--find", "metal"], capture_output=True, check=False)
    return found.returncode == 0


def _compile(text: str, path: Path) -> None:
    """Write to a temporary file, then rename it."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        source, target = Path(folder) / "shader.metal", Path(folder) / "shader.metallib"
        source.write_text(text)
        flags = ["-fno-fast-math", "-o", str(target), str(source)]
        command = ["xcrun", "-sdk", "macosx", "metal", *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DeviceError(f"{path.name} does not compile:\n{done.stderr}")
        os.replace(target, path)
