"""Kernels that access memory beyond the end or before the start of what they were given."""

from __future__ import annotations

import os

import numpy as np

import softmetal

if target := os.environ.get("SOFTMETAL_TEST_TARGET"):  # as conftest.py does in the tests' process
    from emulated import install

    install(target)

TYPES = {"char": 1, "half": 2, "float": 4, "float4": 16}
SPACES = ("static", "dynamic", "device")
# What makes a kernel FLAT, GROUPS or FIBERS.
STARTS = {
    "flat": "",
    "groups": "out[g] = g;",
    "fibers": "threadgroup_barrier(mem_flags::mem_device);",
}
COUNT = 8  # elements that each kernel may access


def kernel(name: str, space: str, mode: str, type_: str) -> str:
    """A kernel that writes from element `from` to element `to` of its memory, and reads back."""
    group = "" if mode == "flat" else ", uint g [[threadgroup_position_in_grid]]"
    dynamic = f", threadgroup {type_}* s [[threadgroup(0)]]" if space == "dynamic" else ""
    device = f", device {type_}* s [[buffer(2)]]" if space == "device" else ""
    static = f"threadgroup {type_} s[{COUNT}];" if space == "static" else ""
    return (
        f"kernel void {name}(device uint* out [[buffer(0)]], constant int* range [[buffer(1)]]"
        f"{device}{dynamic}, uint i [[thread_position_in_grid]]{group}) {{ {static} {STARTS[mode]}"
        f" for (int k = range[0]; k < range[1]; k++) s[k] = {type_}(k + i);"
        f" out[i] = uint(float({'s[range[0]].x' if type_ == 'float4' else 's[range[0]]'})); }}\n"
    )


class Overruns:
    """Every kernel of `kernel`, and how to run it."""

    def __init__(self) -> None:
        self.device = softmetal.MTLCreateSystemDefaultDevice()
        self.queue = self.device.newCommandQueue()
        self.out = self.device.newBufferWithLength_options_(4096, 0)
        self.pipelines: dict[str, object] = {}

    def name(self, space: str, mode: str, type_: str) -> str:
        return f"{space}_{mode}_{type_}"

    def pipeline(self, space: str, mode: str, type_: str):
        name = self.name(space, mode, type_)
        if name not in self.pipelines:
            source = "#include <metal_stdlib>\nusing namespace metal;\n"
            source += kernel(name, space, mode, type_)
            library, error = self.device.newLibraryWithSource_options_error_(source, None, None)
            assert library is not None, error
            make = self.device.newComputePipelineStateWithFunction_error_
            self.pipelines[name], error = make(library.newFunctionWithName_(name), None)
            assert self.pipelines[name] is not None, error
        return self.pipelines[name]

    def run(self, space: str, mode: str, type_: str, first: int, end: int) -> str | None:
        """Access elements [first, end); the text of the command buffer's error."""
        size = TYPES[type_]
        commands = self.queue.commandBuffer()
        encoder = commands.computeCommandEncoder()
        encoder.setComputePipelineState_(self.pipeline(space, mode, type_))
        encoder.setBuffer_offset_atIndex_(self.out, 0, 0)
        encoder.setBytes_length_atIndex_(np.array([first, end], np.int32).tobytes(), 8, 1)
        if space == "device":
            target = self.device.newBufferWithLength_options_(COUNT * size, 0)
            encoder.setBuffer_offset_atIndex_(target, 0, 2)
        elif space == "dynamic":
            encoder.setThreadgroupMemoryLength_atIndex_(max(16, COUNT * size), 0)
        grid, group = softmetal.MTLSizeMake(64, 1, 1), softmetal.MTLSizeMake(32, 1, 1)
        encoder.dispatchThreads_threadsPerThreadgroup_(grid, group)
        encoder.endEncoding()
        commands.commit()
        commands.waitUntilCompleted()
        error = commands.error()
        return None if error is None else str(error.localizedDescription())
