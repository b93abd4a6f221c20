"""A Metal program as it is written for a Mac, timed beside plain Python.

On Linux: python -m softmetal run examples/saxpy.py
"""

import math
import time
from array import array

import Metal

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void swish_axpy(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                       constant float& a [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] = a * x[i] / (1 + exp(-x[i])) + y[i];
}
"""
COUNT = 1 << 22
CHECKED = 1 << 16  # elements that Python computes too
ROUNDS = 5
A = 2.0


def make_pipeline(device):
    library, error = device.newLibraryWithSource_options_error_(SOURCE, None, None)
    if library is None:
        raise SystemExit(str(error))
    function = library.newFunctionWithName_("swish_axpy")
    pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
    if pipeline is None:
        raise SystemExit(str(error))
    return pipeline


def shared_floats(device, values):
    """A buffer with these values, and a view of its memory as floats."""
    size = len(values) * values.itemsize
    buffer = device.newBufferWithBytes_length_options_(
        values.tobytes(), size, Metal.MTLResourceStorageModeShared
    )
    return buffer, memoryview(buffer.contents().as_buffer(size)).cast("B").cast("f")


def run(queue, pipeline, x, y):
    """One dispatch; returns the seconds the device took."""
    command_buffer = queue.commandBuffer()
    encoder = command_buffer.computeCommandEncoder()
    encoder.setComputePipelineState_(pipeline)
    encoder.setBuffer_offset_atIndex_(x, 0, 0)
    encoder.setBuffer_offset_atIndex_(y, 0, 1)
    encoder.setBytes_length_atIndex_(array("f", [A]).tobytes(), 4, 2)
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
    values = array("f", (math.sin(i) for i in range(CHECKED))) * (COUNT // CHECKED)
    x_buffer, x = shared_floats(device, values)
    y_buffer, y = shared_floats(device, values)

    metal = python = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        expected = [
            A * a / (1 + math.exp(-a)) + b for a, b in zip(x[:CHECKED], y[:CHECKED], strict=True)
        ]
        python = min(python, (time.perf_counter() - start) * (COUNT / CHECKED))
        metal = min(metal, run(queue, pipeline, x_buffer, y_buffer))
        for got, wanted in zip(y[:CHECKED], expected, strict=True):
            assert math.isclose(got, wanted, rel_tol=1e-4, abs_tol=1e-5), (got, wanted)

    moved = 3 * x.nbytes / 1e9
    print(f"device      {device.name()}")
    print(f"swish_axpy  {COUNT:,} elements, results equal Python's")
    print(f"metal       {metal * 1e3:7.1f} ms  {moved / metal:5.1f} GB/s")
    print(f"Python      {python * 1e3:7.1f} ms  ({python / metal:.0f} times as long)")


if __name__ == "__main__":
    main()
