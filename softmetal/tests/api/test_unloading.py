"""Kernels are unloaded when nothing uses their pipeline any more."""

from __future__ import annotations

import gc
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from metal_programs import Program, read

from softmetal.api.pipeline import MTLComputePipelineDescriptor, MTLComputePipelineState

COUNT = 3000


@pytest.fixture(scope="module")
def program(metal, device):
    return Program(metal, device)


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def copies(program, folder: Path):
    """Pipelines of distinct kernels: copies of one compiled kernel under other names."""
    artifact = program.pipeline("add_one")._artifact
    for number in range(COUNT):
        path = folder / f"{number}.so"
        shutil.copyfile(artifact.path, path)
        yield MTLComputePipelineState(
            program.device, replace(artifact, path=path), MTLComputePipelineDescriptor.new(), 0
        )
        path.unlink()


def start(program, pipeline, x, event=None):
    commands = program.queue.commandBuffer()
    if event is not None:
        commands.encodeWaitForEvent_value_(event, 1)
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(x, 0, 0)
    encoder.dispatchThreads_threadsPerThreadgroup_(program.size(8), program.size(8))
    encoder.endEncoding()
    commands.commit()
    return commands


def test_thousands_of_pipelines_leave_neither_files_nor_mappings(program, tmp_path):
    x, before, most = program.buffer(np.zeros(8, "i4")), None, 0
    files = len(os.listdir("/proc/self/fd"))
    for number, pipeline in enumerate(copies(program, tmp_path)):
        start(program, pipeline, x).waitUntilCompleted()
        del pipeline
        if number == 100:
            before = mappings()
        elif number > 100 and number % 100 == 0:
            most = max(most, mappings())
    np.testing.assert_array_equal(read(x), [COUNT] * 8)
    assert len(os.listdir("/proc/self/fd")) <= files
    assert before is not None
    assert most <= before + 10


def test_a_kernel_in_flight_stays(program, tmp_path):
    x, event = program.buffer(np.zeros(8, "i4")), program.device.newSharedEvent()
    kernels = copies(program, tmp_path)
    started = [start(program, next(kernels), x, event) for _ in range(20)]
    gc.collect()
    start(program, next(kernels), program.buffer(np.zeros(8, "i4")))  # unloads what is unused
    event.setSignaledValue_(1)
    for commands in started:
        commands.waitUntilCompleted()
        assert commands.error() is None, commands.error()
    np.testing.assert_array_equal(read(x), [20] * 8)


def test_pipelines_of_one_kernel_share_it(program):
    first, second = program.pipeline("add_one"), program.pipeline("add_one")
    assert first._kernel == second._kernel
    x = program.buffer(np.zeros(8, "i4"))
    del first
    gc.collect()
    for _ in range(2):  # the first commit unloads what was dropped
        start(program, second, x).waitUntilCompleted()
    np.testing.assert_array_equal(read(x), [2] * 8)
