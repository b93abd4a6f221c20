"""Kernels and steps that the tests of the API share."""

from __future__ import annotations

import numpy as np

SOURCE = """
#include <metal_stdlib>
using namespace metal;
constant int scale [[function_constant(0)]];
constant float2 shift [[function_constant(1)]];
kernel void add_one(device int* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] += 1; }
kernel void times(device int* x [[buffer(0)]], constant int& k [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) { x[i] *= k; }
kernel void scaled(device const int* x [[buffer(0)]], device int* y [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) { y[i] = x[i] * scale; }
kernel void shifted(device float2* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  x[i] += shift; }
kernel void reverse(device int* x [[buffer(0)]], threadgroup int* t [[threadgroup(0)]],
                    uint i [[thread_position_in_threadgroup]],
                    uint n [[threads_per_threadgroup]]) {
  t[i] = x[i]; threadgroup_barrier(mem_flags::mem_threadgroup); x[i] = t[n - 1 - i]; }
kernel void where(device uint* x [[buffer(0)]], uint3 p [[thread_position_in_grid]],
                  uint3 n [[threads_per_grid]]) {
  x[(p.z * n.y + p.y) * n.x + p.x] = p.x + 100 * p.y + 10000 * p.z; }
[[max_total_threads_per_threadgroup(64)]]
kernel void small(device int* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }
"""


class Program:
    """A device, its library and its queue."""

    def __init__(self, metal, device) -> None:
        self.metal, self.device = metal, device
        self.library, error = device.newLibraryWithSource_options_error_(SOURCE, None, None)
        assert self.library is not None, error
        self.queue = device.newCommandQueue()

    def pipeline(self, name, values=None, indirect=False):
        function, error = self.library.newFunctionWithName_constantValues_error_(
            name, values or self.metal.MTLFunctionConstantValues.new(), None
        )
        assert function is not None, error
        descriptor = self.metal.MTLComputePipelineDescriptor.new()
        descriptor.setComputeFunction_(function)
        descriptor.setSupportIndirectCommandBuffers_(indirect)
        make = self.device.newComputePipelineStateWithDescriptor_options_reflection_error_
        pipeline, error = make(descriptor, 0, None, None)
        assert pipeline is not None, error
        return pipeline

    def buffer(self, array):
        array = np.ascontiguousarray(array)
        return self.device.newBufferWithBytes_length_options_(array.tobytes(), array.nbytes, 0)

    def size(self, width, height=1, depth=1):
        return self.metal.MTLSizeMake(width, height, depth)

    def run(self, *steps):
        """One command buffer with one compute encoder: each step takes the encoder."""
        commands = self.queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        for step in steps:
            step(encoder)
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        assert commands.error() is None, commands.error()
        return commands


def read(buffer, dtype="i4"):
    return np.frombuffer(buffer.contents().as_buffer(buffer.length()), dtype).copy()
