"""Run MSL kernels over threadgroups through the Metal API, on numpy arrays."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

Metal: Any = import_module("Metal" if sys.platform == "darwin" else "softmetal")

Array = NDArray[Any]
Line = tuple[str, str, int, str]  # subsystem, category, level, text


class Refused(Exception):
    """The compiler did not accept a source; the text is the NSError's."""


@functools.cache
def device() -> Any:
    return Metal.MTLCreateSystemDefaultDevice()


@functools.cache
def queue() -> Any:
    return device().newCommandQueue()


def _logs() -> bool:
    """Whether kernels can log: since macOS 15."""
    return hasattr(device(), "newLogStateWithDescriptor_error_")


def _commands(lines: list[Line]) -> Any:
    """A command buffer that appends what kernels log."""
    if not _logs():
        return queue().commandBuffer()
    state, _ = device().newLogStateWithDescriptor_error_(
        Metal.MTLLogStateDescriptor.alloc().init(), None
    )
    state.addLogHandler_(lambda *line: lines.append(line))
    descriptor = Metal.MTLCommandBufferDescriptor.alloc().init()
    descriptor.setLogState_(state)
    return queue().commandBufferWithDescriptor_(descriptor)


class Library:
    """A checked source. Kernels are compiled when first run."""

    def __init__(self, source: str, fast_math: bool = True) -> None:
        options = Metal.MTLCompileOptions.alloc().init()
        options.setFastMathEnabled_(fast_math)
        if _logs():
            options.setEnableLogging_(True)
        library, error = device().newLibraryWithSource_options_error_(source, options, None)
        if library is None:
            raise Refused(error.localizedDescription())
        self._library = library

    def _pipeline(self, name: str) -> Any:
        function = self._library.newFunctionWithName_(name)
        pipeline, error = device().newComputePipelineStateWithFunction_error_(function, None)
        assert pipeline is not None, error.localizedDescription()
        return pipeline

    def run(self, name: str, arrays: Sequence[Array], threads: int, group: int) -> None:
        """Dispatch `threads` threads in threadgroups of `group`; array k is buffer k, in and out."""
        self.run_logged(name, arrays, threads, group)

    def run_logged(
        self, name: str, arrays: Sequence[Array], threads: int, group: int
    ) -> list[Line]:
        """The same; returns what the kernel logged."""
        lines: list[Line] = []
        commands = _commands(lines)
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(self._pipeline(name))
        buffers = [
            device().newBufferWithBytes_length_options_(
                array.tobytes(), array.nbytes, Metal.MTLResourceStorageModeShared
            )
            for array in arrays
        ]
        for index, buffer in enumerate(buffers):
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)
        encoder.dispatchThreads_threadsPerThreadgroup_(
            Metal.MTLSizeMake(threads, 1, 1), Metal.MTLSizeMake(group, 1, 1)
        )
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        assert commands.error() is None, commands.error().localizedDescription()
        for array, buffer in zip(arrays, buffers, strict=True):
            raw = np.frombuffer(buffer.contents().as_buffer(array.nbytes), array.dtype)
            array[...] = raw.reshape(array.shape)
        return lines
