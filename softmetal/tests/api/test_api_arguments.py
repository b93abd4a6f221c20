"""Argument buffers that MTLArgumentEncoder writes: structures, arrays, values, and their errors."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

import softmetal
from softmetal.errors import ValidationError

SOURCE = """
#include <metal_stdlib>
using namespace metal;
enum Ids { kScale = 6 };
struct Values {
  device const float* x [[id(0)]];
  array<device const float*, 3> many [[id(1)]];
  device float* out [[id(4)]];
  float scale [[id(kScale)]];
  float4 weights [[id(7)]];
  ushort count;
};
kernel void join(constant Values& v [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  float sum = v.x[i];
  for (uint k = 0; k < 3; k++) sum += v.many[k][i] * v.weights[k];
  v.out[i] = i < v.count ? sum * v.scale + v.weights.w : -1;
}
kernel void each(constant Values* v [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  v[i].out[0] = v[i].scale;
}
struct Pair { device float* out; float value; };
kernel void described(constant Pair& p [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  p.out[i] = p.value + i;
}
template <typename T> struct Box { device T* x [[id(0)]]; };
template <typename T> kernel void boxed(constant Box<T>& b [[buffer(0)]]) { b.x[0] = T(1); }
template [[host_name("boxed_float")]] kernel void boxed<float>(constant Box<float>& b);
kernel void plain(device float* x [[buffer(1)]]) { x[0] = 1; }
"""


@pytest.fixture(scope="module")
def library() -> Any:
    device = softmetal.MTLCreateSystemDefaultDevice()
    made, error = device.newLibraryWithSource_options_error_(SOURCE, None, None)
    assert made is not None, error
    return made


def floats(device: Any, *values: float) -> Any:
    data = np.float32(values).tobytes()
    return device.newBufferWithBytes_length_options_(data, len(data), 0)


def run(function: Any, index: int, arguments: Any, used: list[Any], threads: int) -> None:
    device = function.device()
    state, error = device.newComputePipelineStateWithFunction_error_(function, None)
    assert state is not None, error
    commands = device.newCommandQueue().commandBuffer()
    encoder = commands.computeCommandEncoder()
    encoder.setComputePipelineState_(state)
    encoder.setBuffer_offset_atIndex_(arguments, 0, index)
    encoder.useResources_count_usage_(
        used, len(used), softmetal.MTLResourceUsageRead | softmetal.MTLResourceUsageWrite
    )
    encoder.dispatchThreads_threadsPerThreadgroup_((threads, 1, 1), (threads, 1, 1))
    encoder.endEncoding()
    commands.commit()
    commands.waitUntilCompleted()
    assert commands.error() is None, commands.error()


def read(buffer: Any, count: int) -> list[float]:
    return list(struct.unpack(f"{count}f", buffer.contents().as_buffer(4 * count)))


def test_a_structure_of_pointers_arrays_and_values(library: Any) -> None:
    function = library.newFunctionWithName_("join")
    device = function.device()
    encoder = function.newArgumentEncoderWithBufferIndex_(2)
    assert (encoder.encodedLength(), encoder.alignment()) == (80, 16)
    arguments = device.newBufferWithLength_options_(encoder.encodedLength(), 0)
    encoder.setArgumentBuffer_offset_(arguments, 0)
    x, out = floats(device, 9, 1, 2, 3), floats(device, 0, 0, 0)
    many = [floats(device, k, 2 * k, 3 * k) for k in (1, 2, 3)]
    encoder.setBuffer_offset_atIndex_(x, 4, 0)
    encoder.setBuffers_offsets_withRange_(many, [0, 0, 0], (1, 3))
    encoder.setBuffer_offset_atIndex_(out, 0, 4)
    encoder.constantDataAtIndex_(6).as_buffer(4)[:] = struct.pack("f", 10)
    encoder.constantDataAtIndex_(7).as_buffer(16)[:] = struct.pack("4f", 1, 10, 100, 0.5)
    encoder.constantDataAtIndex_(8).as_buffer(2)[:] = struct.pack("H", 2)
    run(function, 2, arguments, [x, out, *many], 3)
    want = [10 * (n + n * (1 + 20 + 300)) + 0.5 for n in (1, 2)]
    assert read(out, 3) == [*want, -1]


def test_elements_of_an_array_of_argument_buffers(library: Any) -> None:
    function = library.newFunctionWithName_("each")
    device = function.device()
    encoder = function.newArgumentEncoderWithBufferIndex_(0)
    arguments = device.newBufferWithLength_options_(3 * encoder.encodedLength(), 0)
    outs = [floats(device, 0) for _ in range(3)]
    for k, out in enumerate(outs):
        encoder.setArgumentBuffer_startOffset_arrayElement_(arguments, 0, k)
        encoder.setBuffer_offset_atIndex_(out, 0, 4)
        encoder.constantDataAtIndex_(6).as_buffer(4)[:] = struct.pack("f", k + 0.25)
    run(function, 0, arguments, outs, 3)
    assert [read(out, 1)[0] for out in outs] == [0.25, 1.25, 2.25]


def test_members_that_descriptors_give(library: Any) -> None:
    function = library.newFunctionWithName_("described")
    device = function.device()
    members = [softmetal.MTLArgumentDescriptor.argumentDescriptor() for _ in range(2)]
    members[0].setDataType_(softmetal.MTLDataTypeFloat)
    members[0].setIndex_(1)
    members[1].setDataType_(softmetal.MTLDataTypePointer)
    encoder = device.newArgumentEncoderWithArguments_(members)
    assert encoder.encodedLength() == 16
    arguments = device.newBufferWithLength_options_(16, 0)
    out = floats(device, 0, 0)
    encoder.setArgumentBuffer_offset_(arguments, 0)
    encoder.setBuffer_offset_atIndex_(out, 0, 0)
    encoder.constantDataAtIndex_(1).as_buffer(4)[:] = struct.pack("f", 7)
    run(function, 0, arguments, [out], 2)
    assert read(out, 2) == [7, 8]


@pytest.mark.parametrize(
    ("name", "index", "message"),
    [
        ("join", 1, r"has no buffer 1: its buffers are \[2\]"),
        ("plain", 1, "holds float, which is not a structure"),
        ("boxed_float", 0, "must have a type that does not depend on a template"),
    ],
)
def test_buffers_without_an_encoder(library: Any, name: str, index: int, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        library.newFunctionWithName_(name).newArgumentEncoderWithBufferIndex_(index)


def test_mistakes_of_encoding(library: Any) -> None:
    function = library.newFunctionWithName_("join")
    device = function.device()
    encoder = function.newArgumentEncoderWithBufferIndex_(2)
    buffer = floats(device, 1)
    with pytest.raises(ValidationError, match="call setArgumentBuffer_offset_ first"):
        encoder.setBuffer_offset_atIndex_(buffer, 0, 0)
    with pytest.raises(ValidationError, match="80 bytes at offset 0 does not fit"):
        encoder.setArgumentBuffer_offset_(buffer, 0)
    encoder.setArgumentBuffer_offset_(device.newBufferWithLength_options_(96, 0), 16)
    with pytest.raises(ValidationError, match="has no id 5: it has 0, 1, 2, 3, 4, 6, 7, 8"):
        encoder.setBuffer_offset_atIndex_(buffer, 0, 5)
    with pytest.raises(ValidationError, match="id 6 of the argument buffer is a value"):
        encoder.setBuffer_offset_atIndex_(buffer, 0, 6)
    with pytest.raises(ValidationError, match="id 0 of the argument buffer is a buffer"):
        encoder.constantDataAtIndex_(0)
