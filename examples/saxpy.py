"""A Metal program as one writes it on a Mac, timed beside numpy.

On Linux: python -m softmetal run examples/saxpy.py
"""

import time

import Metal
import numpy as np

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void swish_axpy(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                       constant float& a [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] = a * x[i] / (1 + exp(-x[i])) + y[i];
}
"""
COUNT = 1 << 24
ROUNDS = 5


def make_pipeline(device):
    library, error = device.newLibraryWithSource_options_error_(SOURCE, None, None)
    if library is None:
        raise SystemExit(str(error))
    function = library.newFunctionWithName_("swish_axpy")
    pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
    if pipeline is None:
        raise SystemExit(str(error))
    return pipeline


def shared_array(device, values):
    """A buffer, and a numpy array over the same memory."""
    buffer = device.newBufferWithLength_options_(values.nbytes, Metal.MTLResourceStorageModeShared)
    array = np.frombuffer(buffer.contents().as_buffer(values.nbytes), values.dtype)
    array[:] = values
    return buffer, array


def run(queue, pipeline, x, y, a):
    """One dispatch; returns the seconds the device took."""
    command_buffer = queue.commandBuffer()
    encoder = command_buffer.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(x, 0, 0)
    encoder.setBuffer_offset_atIndex_(y, 0, 1)
    encoder.setBytes_length_atIndex_(np.float32(a).tobytes(), 4, 2)
    encoder.dispatchThreads_threadsPerThreadgroup_(
        Metal.MTLSizeMake(COUNT, 1, 1), Metal.MTLSizeMake(256, 1, 1)
    )
    encoder.endEncoding()
    command_buffer.commit()
    command_buffer.waitUntilCompleted()
    if command_buffer.error() is not None:
        raise SystemExit(str(command_buffer.error()))
    return command_buffer.GPUEndTime() - command_buffer.GPUStartTime()


def main():
    device = Metal.MTLCreateSystemDefaultDevice()
    pipeline, queue = make_pipeline(device), device.newCommandQueue()
    values = np.random.default_rng(0).standard_normal((2, COUNT)).astype(np.float32)
    (x_buffer, x), (y_buffer, y) = (shared_array(device, v) for v in values)

    metal = numpy = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        expected = np.float32(2) * x / (1 + np.exp(-x)) + y
        numpy = min(numpy, time.perf_counter() - start)
        metal = min(metal, run(queue, pipeline, x_buffer, y_buffer, 2.0))
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)

    moved = 3 * x.nbytes / 1e9
    print(f"device      {device.name()}")
    print(f"swish_axpy  {COUNT:,} elements, results equal numpy's")
    print(f"metal       {metal * 1e3:7.1f} ms  {moved / metal:5.1f} GB/s")
    print(f"numpy       {numpy * 1e3:7.1f} ms  ({numpy / metal:.1f} times as long)")


if __name__ == "__main__":
    main()
