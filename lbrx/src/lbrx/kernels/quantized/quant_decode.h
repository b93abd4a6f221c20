// Decoding of quantized values.
#pragma once
#include "quant_schemes.h"

// Decodes sixteen values of a block into contiguous memory.
template <typename C>
inline void decode_unit(Block block, uint unit, device void* out, ulong at) {
  const float scale = C::scale(block, unit), offset = C::offset(block, unit);
#pragma nounroll
  for (uint i = 0; i < UNIT; i++) {
    const float product = scale * float(C::code(block, unit, i));
    put(out, at + i, C::SHIFTED ? product + offset : product);
  }
}

// The same for 32 values, two per byte.
template <typename C>
inline void decode_run(Block block, uint run, device void* out, ulong at) {
  const float scale = C::scale(block, run * 2), offset = C::offset(block, run * 2);
#pragma nounroll
  for (uint i = 0; i < UNIT; i++) {
    const short2 codes = C::neighbours(block, run, i);
    const float first = scale * float(codes.x), second = scale * float(codes.y);
    put(out, at + 2 * i, C::SHIFTED ? first + offset : first);
    put(out, at + 2 * i + 1, C::SHIFTED ? second + offset : second);
  }
}

// One thread per block.
template <typename C>
kernel void decode_blocks(device const uchar* data [[buffer(0)]],
                          device const void* scales [[buffer(1)]],
                          device const void* offsets [[buffer(2)]],
                          device const char* book [[buffer(3)]], device void* out [[buffer(4)]],
                          uint at [[thread_position_in_grid]]) {
  const Block block = block_at<C>({data, scales, offsets, book}, at);
  const ulong first = ulong(at) * C::elements();
  if (C::NEIGHBOURS) {
#pragma unroll
    for (uint run = 0; run < C::elements() / UNIT / 2; run++)
      decode_run<C>(block, run, out, first + run * 2 * UNIT);
    return;
  }
#pragma unroll
  for (uint unit = 0; unit < C::elements() / UNIT; unit++)
    decode_unit<C>(block, unit, out, first + unit * UNIT);
}

// Two values of a 16-bit type, as memory has them.
inline uint pair_bits(float first, float second) {
  if (VALUES == HALF) return as_type<uint>(half2(first, second));
  return as_type<ushort>(bfloat(first)) | uint(as_type<ushort>(bfloat(second))) << 16;
}

// One thread per sixteen bytes of values, a part of a unit: neighbours store neighbouring vectors.
template <typename C>
kernel void decode_vectors(device const uchar* data [[buffer(0)]],
                           device const void* scales [[buffer(1)]],
                           device const void* offsets [[buffer(2)]],
                           device const char* book [[buffer(3)]], device uint4* out [[buffer(4)]],
                           uint at [[thread_position_in_grid]]) {
  const uint each = VALUES == FLOAT ? 4 : 8, parts = UNIT / each;
  const uint number = at / parts, first = at % parts * each, units = C::elements() / UNIT;
  const Block block = block_at<C>({data, scales, offsets, book}, number / units);
  const uint unit = number % units;
  const float scale = C::scale(block, unit), offset = C::offset(block, unit);
  float values[8];
#pragma unroll
  for (uint i = 0; i < each; i++) {
    const float product = scale * float(C::code(block, unit, first + i));
    values[i] = C::SHIFTED ? product + offset : product;
  }
  uint4 bits;
#pragma unroll
  for (uint i = 0; i < 4; i++)
    bits[i] = VALUES == FLOAT ? as_type<uint>(values[i]) : pair_bits(values[2 * i], values[2 * i + 1]);
  out[at] = bits;
}
