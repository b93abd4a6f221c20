"""What Apple's driver lets pass without its debug layer: SOFTMETAL_STRICT=no-validation."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from metal_programs import Program, read

import softmetal
from softmetal.errors import ValidationError


@pytest.fixture(params=[False, True], ids=["layer", "driver"])
def driver(request, monkeypatch):
    if request.param:
        monkeypatch.setenv("SOFTMETAL_STRICT", "no-validation")
    return request.param


@pytest.fixture(scope="module")
def program(metal, device):
    return Program(metal, device)


@pytest.mark.parametrize("call", ["dispatchThreads", "dispatchThreadgroups"])
@pytest.mark.parametrize("size", [(0, 0, 0), (0, 1, 1), (4, 0, 1)])
def test_dispatches_of_nothing(driver, program, call, size):
    pipeline = program.pipeline("add_one")
    buffer = program.buffer(np.arange(4, dtype="i4"))

    def step(encoder):
        encoder.setComputePipelineState_(pipeline)
        encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
        dispatch = getattr(encoder, f"{call}_threadsPerThreadgroup_")
        dispatch(program.size(*size), program.size(1))
        dispatch(program.size(4), program.size(1))

    if not driver:
        with pytest.raises(ValidationError, match="each side must be 1 to"):
            program.run(step)
        return
    program.run(step)
    assert read(buffer).tolist() == [1, 2, 3, 4]


def test_short_threadgroup_memory(driver, program):
    pipeline = program.pipeline("reverse")
    buffer = program.buffer(np.arange(2, dtype="i4"))

    def step(encoder):
        encoder.setComputePipelineState_(pipeline)
        encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
        encoder.setThreadgroupMemoryLength_atIndex_(8, 0)
        encoder.dispatchThreads_threadsPerThreadgroup_(program.size(2), program.size(2))

    if not driver:
        with pytest.raises(ValidationError, match="8 bytes at index 0 is not a multiple of 16"):
            program.run(step)
        return
    program.run(step)
    assert read(buffer).tolist() == [1, 0]


def test_unset_function_constants(driver, program):
    def make():
        return program.pipeline("scaled")

    if not driver:
        with pytest.raises(AssertionError, match=r"'scale' .* has no value"):
            make()
        return
    pipeline, x, y = (
        make(),
        program.buffer(np.arange(4, dtype="i4")),
        program.buffer(np.ones(4, "i4")),
    )

    def step(encoder):
        encoder.setComputePipelineState_(pipeline)
        encoder.setBuffer_offset_atIndex_(x, 0, 0)
        encoder.setBuffer_offset_atIndex_(y, 0, 2)
        encoder.dispatchThreads_threadsPerThreadgroup_(program.size(4), program.size(4))

    program.run(step)
    assert read(y).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("layer", [True, False])
def test_checking_modes_leave_the_layer_as_it_is(layer, program, monkeypatch):
    monkeypatch.setenv("SOFTMETAL_STRICT", "validation" if layer else "no-validation")
    pipeline, nothing = program.pipeline("add_one"), softmetal.MTLSizeMake(0, 0, 0)
    refused = pytest.raises(ValidationError, match="each side must be 1 to")
    with softmetal.checking("bounds"):
        encoder = program.queue.commandBuffer().computeCommandEncoder()
        encoder.setComputePipelineState_(pipeline)
        with refused if layer else nullcontext():
            encoder.dispatchThreads_threadsPerThreadgroup_(nothing, nothing)
        encoder.endEncoding()
