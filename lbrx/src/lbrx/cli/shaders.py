"""lbrx shaders build: compile kernels ahead of their first use."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from lbrx.compile_notice import silenced
from lbrx.errors import SettingError
from lbrx.kernels.samples import sample_pipelines
from lbrx.metal import Context, binding, context
from lbrx.metal.library import PipelineRequest, shader_files
from lbrx.metal.prebuild import (
    build_for_target,
    build_metallibs,
    build_pipelines,
    plain_kernels,
)
from lbrx.models.usual_models import model_pipelines, usual_models

SERIAL = "_serial"  # in the names of kernels for devices without simd hardware
CLEAR = "\r\x1b[K"  # the terminal's line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=["build"], help="build: compile usual kernels for this device"
    )
    parser.add_argument(
        "--stems",
        metavar="A,B",
        help="only kernels of these shaders, such as softmax,norm; then also all of them that have "
        "no function constants (default: those of usual models and operations)",
    )
    parser.add_argument(
        "--target",
        metavar="SM",
        help="write code for NVIDIA GPUs of this architecture instead: sm_80, sm_90 or sm_100",
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="the folder for that code")


def run(options: argparse.Namespace) -> int:
    if (options.target is None) != (options.out is None):
        raise SettingError("--target and --out go together: give both or neither")
    stems = None if options.stems is None else options.stems.split(",")
    with silenced():  # it shows its progress
        if options.target is not None:
            return _write_code(stems, options.target, options.out)
        return _build(stems)


def _build(stems: list[str] | None) -> int:
    start = time.perf_counter()
    gpu = context()
    libraries = build_metallibs(shader_files())
    wanted = _wanted(gpu, stems)
    progress = Progress(start)
    try:
        build_pipelines(gpu.shaders, wanted, progress)
    finally:
        progress.clear()
    seconds = time.perf_counter() - start
    print(f"{len(wanted)} pipelines for {gpu.info.name} in {seconds:.1f} s")
    print(f"{len(libraries)} Metal libraries" + ("" if libraries else " (needs `xcrun metal`)"))
    return 0


def _write_code(stems: list[str] | None, target: str, folder: Path) -> int:
    start = time.perf_counter()
    gpu = Context(binding.modelled_gpu())
    plain = plain_kernels(gpu.shaders, stems) if stems is not None else []
    known = dict.fromkeys((*plain, *sample_pipelines(gpu)))
    chosen = (each for each in known if stems is None or each.stem in stems)
    wanted = [each for each in chosen if SERIAL not in each.function]
    progress = Progress(start)
    try:
        files = build_for_target(gpu.shaders, wanted, target, folder, progress)
    finally:
        progress.clear()
    seconds = time.perf_counter() - start
    print(f"{len(files)} files of {len(wanted)} kernels for {target} in {folder}, {seconds:.1f} s")
    return 0


def _wanted(gpu: Context, stems: list[str] | None) -> list[PipelineRequest]:
    """Usual kernels, or all that are known of some stems."""
    found: dict[PipelineRequest, None] = {}
    if stems is not None:
        plain = plain_kernels(gpu.shaders, stems, for_gpu=gpu.info.simd_hardware)
        found |= dict.fromkeys(plain)
    for requests in (sample_pipelines(gpu), *map(model_pipelines, usual_models())):
        found |= dict.fromkeys(each for each in requests if stems is None or each.stem in stems)
    return list(found)


class Progress:
    """Shows how many kernels are compiled: one line of a terminal, or a line for each kernel."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.terminal = sys.stderr.isatty()

    def __call__(self, done: int, count: int, last: PipelineRequest) -> None:
        left = (time.perf_counter() - self.start) / done * (count - done)
        line = f"{done} of {count} kernels, about {left:.0f} s left: {last.stem} {last.function}"
        if self.terminal:
            print(f"{CLEAR}{line[:79]}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line from a terminal, for results or an error."""
        if self.terminal:
            print(CLEAR, end="", file=sys.stderr, flush=True)
