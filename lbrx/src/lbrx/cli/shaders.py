"""lbrx shaders build: compile all kernels ahead of their first use."""

from __future__ import annotations

import argparse
import time

from lbrx.metal import context
from lbrx.metal.library import shader_folder
from lbrx.metal.prebuild import build_metallibs, build_pipelines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=["build"], help="build: compile all kernels for this device"
    )


def run(options: argparse.Namespace) -> int:
    start = time.perf_counter()
    libraries = build_metallibs(shader_folder())
    gpu = context()
    pipelines = build_pipelines(gpu.shaders, for_gpu=gpu.info.simd_hardware)
    seconds = time.perf_counter() - start
    print(f"{pipelines} pipelines for {gpu.info.name} in {seconds:.1f} s")
    print(f"{len(libraries)} Metal libraries" + ("" if libraries else " (needs `xcrun metal`)"))
    return 0
