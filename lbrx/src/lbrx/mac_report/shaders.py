"""Every shader through the device's compiler, with its diagnostics."""

from __future__ import annotations

import time

from lbrx.kernels.samples import sample_pipelines
from lbrx.mac_report.report import Status
from lbrx.mac_report.steps import Recorder
from lbrx.metal import Context, context
from lbrx.metal.library import PipelineRequest, compiled_source
from lbrx.metal.prebuild import WIDE, plain_kernels

FULL_GROUP = 1024  # threads; a kernel that uses many registers allows fewer


def record_shaders(record: Recorder) -> None:
    gpu = context()
    good = {stem for stem in gpu.shaders.stems() if _library(record, gpu, stem)}
    wanted = dict.fromkeys(sample_pipelines(gpu))
    if gpu.info.simd_hardware:  # on other devices a kernel takes a second, not milliseconds
        wanted |= dict.fromkeys(plain_kernels(gpu.shaders, sorted(good), for_gpu=True))
    for done, request in enumerate(wanted):
        if record.seconds_left <= 0:
            rest = f"no time was left for {len(wanted) - done} kernels"
            record.add("other kernels", Status.SKIPPED, rest)
            return
        if request.source is not None or request.stem in good:
            _pipeline(record, gpu, request)


def _library(record: Recorder, gpu: Context, stem: str) -> bool:
    """Whether the source of a stem compiles."""
    name = f"{stem}.metal"
    text = gpu.shaders.text(stem)
    if WIDE in text and gpu.info.simd_hardware:
        record.add(name, Status.SKIPPED, "it is for CPUs")
        return False
    if record.skips(name):
        return False
    began = time.perf_counter()
    library, diagnostics = compiled_source(gpu.device, text, safe_math=True)
    status = Status.OK if library is not None else Status.FAILED
    seconds = time.perf_counter() - began
    kernels = 0 if library is None else len(library.functionNames())
    record.add(name, status, diagnostics, seconds=round(seconds, 3), kernels=kernels)
    return library is not None


def _pipeline(record: Recorder, gpu: Context, request: PipelineRequest) -> None:
    """A kernel as the package uses it, with its function constants."""
    with record.trying(f"{request.stem}.metal {request.function}") as values:
        began = time.perf_counter()
        made = gpu.shaders.pipeline(
            *(request.stem, request.function, dict(request.constants)),
            safe_math=request.safe_math,
            source=request.source,
        )
        values.update(
            seconds=round(time.perf_counter() - began, 3),
            max_threads=made.max_threads,
            simd_width=made.simd_width,
            constants=dict(request.constants) and repr(dict(request.constants)),
        )
        if made.max_threads < FULL_GROUP:
            values["note"] = "registers limit the threadgroup"
