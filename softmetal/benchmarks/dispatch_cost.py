"""What a dispatch costs: host and device time for a kernel that does next to nothing.

SOFTMETAL_DEVICE=cuda:0 python softmetal/benchmarks/dispatch_cost.py [--count 2000]
python softmetal/benchmarks/dispatch_cost.py --count 1 --rounds 2000 [--pause 3]

Each kernel depends on the one before it. Times are microseconds for one kernel, medians of several
runs: for encoding, for commit, until the wait returns, and on the device; then the sum of the first
three, and what nine of ten runs stay below. With a pause, threads sleep and caches are cold.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import softmetal as metal

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void add(device float* x, constant float& a, uint i [[thread_position_in_grid]]) {
  x[i] += a;
}
"""
ONE = b"\x00\x00\x80\x3f"
THREADS = 256
Encode = Callable[[Any], None]


class Chain:
    """Kernels that add to the same buffer, one after the other."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.device = metal.MTLCreateSystemDefaultDevice()
        self.queue = self.device.newCommandQueue()
        library, error = self.device.newLibraryWithSource_options_error_(SOURCE, None, None)
        assert library is not None, error
        described = metal.MTLComputePipelineDescriptor.alloc().init()
        described.setComputeFunction_(library.newFunctionWithName_("add"))
        described.setSupportIndirectCommandBuffers_(True)
        make = self.device.newComputePipelineStateWithDescriptor_options_reflection_error_
        self.pipeline = make(described, 0, None, None)[0]
        private = metal.MTLResourceStorageModePrivate
        self.values = self.device.newBufferWithLength_options_(4 * THREADS, private)
        self.one = self.device.newBufferWithBytes_length_options_(ONE, len(ONE), 0)
        self.size = metal.MTLSizeMake(THREADS, 1, 1)
        self.list = self._recorded()

    def dispatched(self, encoder: Any) -> None:
        """Every kernel is bound and dispatched."""
        encoder.setComputePipelineState_(self.pipeline)
        for _ in range(self.count):
            encoder.setBuffer_offset_atIndex_(self.values, 0, 0)
            encoder.setBytes_length_atIndex_(ONE, len(ONE), 1)
            encoder.dispatchThreads_threadsPerThreadgroup_(self.size, self.size)

    def replayed(self, encoder: Any) -> None:
        """All kernels are in an indirect command buffer."""
        usage = metal.MTLResourceUsageRead | metal.MTLResourceUsageWrite
        encoder.useResource_usage_(self.values, usage)
        encoder.useResource_usage_(self.one, metal.MTLResourceUsageRead)
        encoder.executeCommandsInBuffer_withRange_(self.list, (0, self.count))

    def _recorded(self) -> Any:
        descriptor = metal.MTLIndirectCommandBufferDescriptor.alloc().init()
        descriptor.setCommandTypes_(metal.MTLIndirectCommandTypeConcurrentDispatchThreads)
        descriptor.setInheritBuffers_(False)
        descriptor.setInheritPipelineState_(False)
        descriptor.setMaxKernelBufferBindCount_(2)
        make = self.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
        commands = make(descriptor, self.count, metal.MTLResourceStorageModeShared)
        for index in range(self.count):
            slot = commands.indirectComputeCommandAtIndex_(index)
            slot.setComputePipelineState_(self.pipeline)
            slot.setKernelBuffer_offset_atIndex_(self.values, 0, 0)
            slot.setKernelBuffer_offset_atIndex_(self.one, 0, 1)
            slot.concurrentDispatchThreads_threadsPerThreadgroup_(self.size, self.size)
            slot.setBarrier()
        return commands

    def run(self, encode: Encode) -> list[float]:
        begin = time.perf_counter()
        commands = self.queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encode(encoder)
        encoder.endEncoding()
        encoded = time.perf_counter()
        commands.commit()
        committed = time.perf_counter()
        commands.waitUntilCompleted()
        ended = time.perf_counter()
        assert commands.error() is None, commands.error()
        on_device = commands.GPUEndTime() - commands.GPUStartTime()
        return [encoded - begin, committed - encoded, ended - committed, on_device]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="kernels in a command buffer")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each kind")
    parser.add_argument("--pause", type=float, default=0, help="milliseconds before each run")
    options = parser.parse_args()
    chain = Chain(options.count)
    print(f"{chain.device.name()}, {chain.count} kernels: us for each")
    for name, encode in (("dispatched", chain.dispatched), ("replayed", chain.replayed)):
        chain.run(encode), chain.run(encode)  # the second execution builds a graph
        runs = []
        for _ in range(options.rounds):
            time.sleep(options.pause / 1000)
            runs.append([each / chain.count * 1e6 for each in chain.run(encode)])
        parts = zip(("encode", "commit", "wait", "device"), zip(*runs, strict=True), strict=True)
        whole = sorted(sum(run[:3]) for run in runs)
        text = [f"{part} {statistics.median(times):.2f}" for part, times in parts]
        text += [f"in all {statistics.median(whole):.2f} ({whole[len(whole) * 9 // 10]:.2f})"]
        print(f"{name:10}", ", ".join(text))


if __name__ == "__main__":
    main()
