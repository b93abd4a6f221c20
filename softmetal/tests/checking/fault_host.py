"""Runs seeded faults: the host's side of Metal in a few words."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from fault_model import Buffer, Fault, Launch, Size

import softmetal

UNTRACKED = softmetal.MTLResourceHazardTrackingModeUntracked
CONCURRENT = softmetal.MTLDispatchTypeConcurrent
ALL_MODES = ("bounds", "race", "uninit")


@cache
def library(source: str) -> Any:
    found, error = device().newLibraryWithSource_options_error_(source, None, None)
    assert found is not None, error.localizedDescription()
    return found


@cache
def device() -> Any:
    return softmetal.MTLCreateSystemDefaultDevice()


def size(sides: Size) -> Any:
    return softmetal.MTLSizeMake(*sides, *(1,) * (3 - len(sides)))


class Host:
    """A device with the kernels of one library; remembers its command buffers."""

    def __init__(self, source: str) -> None:
        self.device = device()
        self.library = library(source)
        self.queue = self.device.newCommandQueue()
        self.committed: list[Any] = []

    def pipeline(self, name: str) -> Any:
        descriptor = softmetal.MTLComputePipelineDescriptor.new()
        descriptor.setComputeFunction_(self.library.newFunctionWithName_(name))
        descriptor.setSupportIndirectCommandBuffers_(True)
        make = self.device.newComputePipelineStateWithDescriptor_options_reflection_error_
        found, error = make(descriptor, 0, None, None)
        assert found is not None, error.localizedDescription()
        return found

    def buffer(self, count: int = 64, options: int = 0) -> Any:
        """A buffer of floats."""
        return self.device.newBufferWithLength_options_(4 * count, options)

    def heap(self, count: int, **properties: int) -> Any:
        descriptor = softmetal.MTLHeapDescriptor.new()
        descriptor.setSize_(4 * count)
        descriptor.setStorageMode_(softmetal.MTLStorageModeShared)
        for name, value in properties.items():
            getattr(descriptor, f"set{name}_")(value)
        return self.device.newHeapWithDescriptor_(descriptor)

    def commands(self, queue: Any = None) -> Any:
        return (queue or self.queue).commandBuffer()

    def commit(self, commands: Any) -> None:
        commands.commit()
        self.committed.append(commands)

    def dispatch(self, encoder: Any, name: str, buffers: list[Any], threads: int = 64) -> None:
        """One threadgroup of a kernel."""
        encoder.setComputePipelineState_(self.pipeline(name))
        for index, buffer in enumerate(buffers):
            encoder.setBuffer_offset_atIndex_(buffer, 0, index)
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(size((1,)), size((threads,)))

    def run_one(self, commands: Any, name: str, buffers: list[Any]) -> None:
        """One serial encoder with one dispatch."""
        encoder = commands.computeCommandEncoder()
        self.dispatch(encoder, name, buffers)
        encoder.endEncoding()

    def launch(self, name: str, launch: Launch) -> list[Any]:
        """The buffers after the dispatch has been committed."""
        commands = self.commands()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(self.pipeline(name))
        buffers = [self._bind(encoder, k, b) for k, b in enumerate(launch.buffers)]
        for index, length in enumerate(launch.threadgroup):
            encoder.setThreadgroupMemoryLength_atIndex_(length, index)
        if launch.grid is not None:
            encoder.dispatchThreads_threadsPerThreadgroup_(size(launch.grid), size(launch.threads))
        else:
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(
                size(launch.groups), size(launch.threads)
            )
        encoder.endEncoding()
        self.commit(commands)
        return buffers

    def _bind(self, encoder: Any, index: int, buffer: Buffer) -> Any:
        data = np.ascontiguousarray(buffer.array).tobytes()
        if buffer.inline:
            encoder.setBytes_length_atIndex_(data, len(data), index)
            return None
        bound = self.device.newBufferWithBytes_length_options_(data, len(data), 0)
        encoder.setBuffer_offset_atIndex_(bound, buffer.offset, index)
        return bound

    def findings(self) -> list[str]:
        """Waits for everything; the findings of all command buffers."""
        found: list[str] = []
        for commands in self.committed:
            commands.waitUntilCompleted()
            if (error := commands.error()) is not None:
                found += error.localizedDescription().splitlines()
        return found


def run_fault(fault: Fault, fixed: bool, *modes: str, seed: int | None = None) -> list[str]:
    """The findings of the faulty kernel, or of its corrected twin, under these modes."""
    with softmetal.checking(*modes, seed=seed):
        host = Host(fault.source)
        if fault.host is not None:
            fault.host(host, fixed)
        else:
            assert fault.launch is not None
            host.launch("fixed" if fixed else "faulty", fault.launch)
        return host.findings()
