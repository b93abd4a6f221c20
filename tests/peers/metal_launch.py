"""Runs a kernel over numpy arrays through the Metal API."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

import softmetal as Metal  # noqa: N812
from softmetal import compiler
from softmetal.types import CompileOptions

DEVICE = Metal.MTLCreateSystemDefaultDevice()
QUEUE = DEVICE.newCommandQueue()


def make_pipeline(
    source: str, name: str, include: Path, constants: dict[int, bool] | None = None
) -> Any:
    # Metal compiles strings without search paths; a library's data carries what the compiler made.
    program = compiler.compile_library(source, CompileOptions(include_dirs=(str(include),)))
    data = compiler.program_to_bytes(program)
    library, error = DEVICE.newLibraryWithData_error_(data, None)
    assert library is not None, error
    values = Metal.MTLFunctionConstantValues.new()
    for index, value in (constants or {}).items():
        flag = ctypes.c_bool(value)
        values.setConstantValue_type_atIndex_(flag, Metal.MTLDataTypeBool, index)
    function, error = library.newFunctionWithName_constantValues_error_(name, values, None)
    assert function is not None, error
    pipeline, error = DEVICE.newComputePipelineStateWithFunction_error_(function, None)
    assert pipeline is not None, error
    return pipeline


def launch(
    pipeline: Any,
    arguments: list[Any],
    groups: tuple[int, int, int],
    threads: tuple[int, int, int],
) -> None:
    """Dispatch; arrays among `arguments` hold the results afterwards, scalars go as bytes."""
    commands = QUEUE.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    buffers: list[tuple[np.ndarray, Any]] = []
    for index, value in enumerate(arguments):
        if isinstance(value, np.ndarray):
            buffer = DEVICE.newBufferWithBytes_length_options_(value.tobytes(), value.nbytes, 0)
            buffers.append((value, buffer))
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)
        elif value is not None:
            encoder.setBytes_length_atIndex_(value.tobytes(), value.nbytes, index)
    size = Metal.MTLSizeMake
    encoder.dispatchThreadgroups_threadsPerThreadgroup_(size(*groups), size(*threads))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None, commands.error()
    for array, buffer in buffers:
        if array.flags.writeable:
            array[...] = np.frombuffer(
                buffer.contents().as_buffer(array.nbytes), array.dtype
            ).reshape(array.shape)
