"""Runs a kernel over numpy arrays through the Metal API."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import softmetal as Metal  # noqa: N812
from softmetal import compiler
from softmetal.types import CompileOptions

DEVICE = Metal.MTLCreateSystemDefaultDevice()
QUEUE = DEVICE.newCommandQueue()
CONSTANT_TYPES = {
    "bool": Metal.MTLDataTypeBool,
    "int16": Metal.MTLDataTypeShort,
    "int32": Metal.MTLDataTypeInt,
}


def make_pipeline(
    source: str,
    name: str,
    include: Path | Sequence[Path],
    constants: dict[int, Any] | None = None,
    macros: tuple[tuple[str, str], ...] = (),
) -> Any:
    """The pipeline of a kernel; `constants` holds bools and numpy integers."""
    # Metal compiles strings without search paths; a library's data carries what the compiler made.
    folders = (include,) if isinstance(include, Path) else include
    options = CompileOptions(include_dirs=tuple(map(str, folders)), macros=macros)
    data = compiler.program_to_bytes(compiler.compile_library(source, options))
    library, error = DEVICE.newLibraryWithData_error_(data, None)
    assert library is not None, error
    values = Metal.MTLFunctionConstantValues.new()
    for index, value in (constants or {}).items():
        number = np.asarray(value)
        values.setConstantValue_type_atIndex_(
            number.tobytes(), CONSTANT_TYPES[number.dtype.name], index
        )
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
    scratch: int | None = None,
) -> None:
    """Dispatch; arrays among `arguments` hold the results afterwards, scalars go as bytes.

    `scratch` is the length of threadgroup memory 0, if the kernel has any.
    """
    commands = QUEUE.commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    buffers: list[tuple[np.ndarray, Any]] = []
    for index, value in enumerate(arguments):
        if isinstance(value, np.ndarray):
            buffer = DEVICE.newBufferWithBytes_length_options_(value.tobytes(), value.nbytes, 0)
            buffers.append((value, buffer))
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)
        elif isinstance(value, ctypes.Structure):
            encoder.setBytes_length_atIndex_(bytes(value), ctypes.sizeof(value), index)
        elif value is not None:
            encoder.setBytes_length_atIndex_(value.tobytes(), value.nbytes, index)
    if scratch is not None:
        encoder.setThreadgroupMemoryLength_atIndex_(scratch, 0)
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
