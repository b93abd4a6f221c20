"""What commands cost the host and the device: dispatches, barriers, encoders, indirect commands."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lbrx.mac_report.steps import Recorder
from lbrx.metal import Context, context
from lbrx.metal.binding import Metal, autorelease_pool
from lbrx.metal.encoder_library import encoder_library
from lbrx.metal.packed_commands import CommandPacker

FEW, MANY = 100, 300  # commands, whose difference leaves out what each command buffer costs
ROUNDS = 5
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add_one(device uint* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += 1; }
"""
GRID = (32, 1, 1)
Encode = Callable[[Any, int], None]
"""Puts so many commands into a command buffer."""


@dataclass(frozen=True)
class _Kernel:
    """A kernel that does almost nothing, and its memory."""

    gpu: Context
    state: Any
    handle: Any
    offset: int

    def bind(self, encoder: Any) -> None:
        encoder.setComputePipelineState_(self.state)
        encoder.setBuffer_offset_atIndex_(self.handle, self.offset, 0)

    def dispatch(self, encoder: Any) -> None:
        size = Metal.MTLSizeMake(*GRID)
        encoder.dispatchThreads_threadsPerThreadgroup_(size, size)


def record_costs(record: Recorder) -> None:
    gpu = context()
    pipeline = gpu.shaders.pipeline("costs", "add_one", source=SOURCE)
    buffer = gpu.buffer(4 * GRID[0])
    kernel = _Kernel(gpu, pipeline.state, buffer.block.handle, buffer.offset)
    ways: dict[str, Encode] = {
        "dispatches": lambda commands, count: _dispatches(kernel, commands, count, False),
        "dispatches with barriers": lambda commands, count: _dispatches(
            kernel, commands, count, True
        ),
        "encoders": lambda commands, count: _encoders(kernel, commands, count),
        "indirect commands with barriers": _Indirect(kernel),
    }
    if encoder_library() is not None:
        ways["dispatches by the library"] = _Packed(kernel)
    for name, encode in ways.items():
        if not record.skips(name):
            with record.trying(name) as values:
                values.update(measured(gpu, encode))


def measured(gpu: Context, encode: Encode) -> dict[str, float]:
    """Microseconds of one more command, for the host that encodes it and on the device."""
    encode(gpu.device.newCommandQueue().commandBuffer(), FEW)  # makes what is made once
    host: dict[int, float] = {}
    device: dict[int, float] = {}
    queue = gpu.device.newCommandQueue()
    for _ in range(ROUNDS):
        for count in (FEW, MANY):
            with autorelease_pool():
                commands = queue.commandBuffer()
                start = time.perf_counter()
                encode(commands, count)
                spent = time.perf_counter() - start
                commands.commit()
                commands.waitUntilCompleted()
                if commands.error() is not None:
                    raise RuntimeError(str(commands.error().localizedDescription()))
                taken = float(commands.GPUEndTime() - commands.GPUStartTime())
            host[count] = min(spent, host.get(count, spent))
            device[count] = min(taken, device.get(count, taken))
    each = {"host": host, "device": device}
    return {
        f"{name}_microseconds": round((of[MANY] - of[FEW]) / (MANY - FEW) * 1e6, 4)
        for name, of in each.items()
    }


def _dispatches(kernel: _Kernel, commands: Any, count: int, barriers: bool) -> None:
    make = commands.computeCommandEncoderWithDispatchType_
    encoder = make(Metal.MTLDispatchTypeConcurrent)
    for _ in range(count):
        if barriers:
            encoder.memoryBarrierWithScope_(Metal.MTLBarrierScopeBuffers)
        kernel.bind(encoder)
        kernel.dispatch(encoder)
    encoder.endEncoding()


def _encoders(kernel: _Kernel, commands: Any, count: int) -> None:
    for _ in range(count):
        encoder = commands.computeCommandEncoder()
        kernel.bind(encoder)
        kernel.dispatch(encoder)
        encoder.endEncoding()


class _Indirect:
    """Commands of an indirect command buffer that is filled once."""

    def __init__(self, kernel: _Kernel) -> None:
        self._kernel = kernel
        self._list: Any = None

    def _filled(self) -> Any:
        kernel, make = self._kernel, Metal.MTLIndirectCommandBufferDescriptor.alloc().init()
        make.setCommandTypes_(Metal.MTLIndirectCommandTypeConcurrentDispatchThreads)
        make.setInheritBuffers_(False)
        make.setInheritPipelineState_(False)
        make.setMaxKernelBufferBindCount_(1)
        device = kernel.gpu.device
        new = device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
        found = new(make, MANY, Metal.MTLResourceStorageModeShared)
        if found is None:
            raise RuntimeError("the device makes no indirect command buffer")
        size = Metal.MTLSizeMake(*GRID)
        for index in range(MANY):
            command = found.indirectComputeCommandAtIndex_(index)
            command.setComputePipelineState_(kernel.state)
            command.setKernelBuffer_offset_atIndex_(kernel.handle, kernel.offset, 0)
            command.concurrentDispatchThreads_threadsPerThreadgroup_(size, size)
            command.setBarrier()
        return found

    def __call__(self, commands: Any, count: int) -> None:
        if self._list is None:
            self._list = self._filled()
        encoder, kernel = commands.computeCommandEncoder(), self._kernel
        # Before Apple9 indirect commands need their pipelines used in their encoder.
        kernel.bind(encoder)
        kernel.dispatch(encoder)
        usage = Metal.MTLResourceUsageRead | Metal.MTLResourceUsageWrite
        encoder.useResources_count_usage_([kernel.handle], 1, usage)
        encoder.executeCommandsInBuffer_withRange_(self._list, (0, count))
        encoder.endEncoding()


class _Packed:
    """Packed lists, which one call encodes."""

    def __init__(self, kernel: _Kernel) -> None:
        self._lists = {}
        for count in (FEW, MANY):
            packer = CommandPacker()
            for _ in range(count):
                packer.pipeline(kernel.state)
                packer.buffer(kernel.handle, kernel.offset, 0)
                packer.dispatch(GRID, GRID)
            self._lists[count] = packer.packed()

    def __call__(self, commands: Any, count: int) -> None:
        make = commands.computeCommandEncoderWithDispatchType_
        encoder = make(Metal.MTLDispatchTypeConcurrent)
        self._lists[count].encode(encoder)
        encoder.endEncoding()
