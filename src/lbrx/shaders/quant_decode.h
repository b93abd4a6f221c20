// Quantized values as floats.
#pragma once
#include "quant_schemes.h"

// Sixteen values of a block, put one after the other.
template <typename C>
inline void decode_unit(Block block, uint unit, device void* out, ulong at) {
  const float scale = C::scale(block, unit), offset = C::offset(block, unit);
#pragma nounroll
  for (uint i = 0; i < UNIT; i++) {
    const float product = scale * float(C::code(block, unit, i));
    put(out, at + i, C::SHIFTED ? product + offset : product);
  }
}

// A thread a block.
template <typename C>
kernel void decode_blocks(device const uchar* data [[buffer(0)]],
                          device const void* scales [[buffer(1)]],
                          device const void* offsets [[buffer(2)]],
                          device const char* book [[buffer(3)]], device void* out [[buffer(4)]],
                          uint at [[thread_position_in_grid]]) {
  const Block block = block_at<C>({data, scales, offsets, book}, at);
#pragma unroll
  for (uint unit = 0; unit < C::elements() / UNIT; unit++)
    decode_unit<C>(block, unit, out, ulong(at) * C::elements() + unit * UNIT);
}

// A thread sixteen values.
template <typename C>
kernel void decode_units(device const uchar* data [[buffer(0)]],
                         device const void* scales [[buffer(1)]],
                         device const void* offsets [[buffer(2)]],
                         device const char* book [[buffer(3)]], device void* out [[buffer(4)]],
                         uint at [[thread_position_in_grid]]) {
  const uint units = C::elements() / UNIT;
  const Block block = block_at<C>({data, scales, offsets, book}, at / units);
  decode_unit<C>(block, at % units, out, ulong(at) * UNIT);
}
