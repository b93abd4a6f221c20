// Products of a few rows with a quantized matrix, which is read once and decoded in registers.
#pragma once
#include "quant_schemes.h"
#include "records/quant_product.h"
#include "records/quant_rows.h"

constant constexpr uint MOST_ROWS = 8;

constant constexpr uint SIMD = 32;
constant constexpr uint SIMD_ROWS = 4;  // of the matrix, for each of two simdgroups
constant constexpr uint SIMDGROUPS = 2;

// The lanes of a simdgroup read along four rows of the matrix, sixteen values at a time.
template <typename C>
kernel void matvec_simd(device const uchar* data [[buffer(0)]],
                        device const void* scales [[buffer(1)]],
                        device const void* offsets [[buffer(2)]],
                        device const char* book [[buffer(3)]], device const void* x [[buffer(4)]],
                        device void* out [[buffer(5)]], constant QuantizedProductRecord& p [[buffer(6)]],
                        uint2 group [[threadgroup_position_in_grid]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  const uint first = (group.x * SIMDGROUPS + simdgroup) * SIMD_ROWS, x_row = group.y * ROWS;
  if (first >= p.n) return;
  const uint blocks = p.k / C::elements(), units = C::elements() / UNIT;
  float sums[MOST_ROWS][SIMD_ROWS] = {};
  for (uint unit = lane; unit < p.k / UNIT; unit += SIMD) {
    for (uint w = 0; w < SIMD_ROWS; w++) {
      const ulong row = min(first + w, p.n - 1);
      const Block block = block_at<C>({data, scales, offsets, book}, row * blocks + unit / units);
      const float scale = C::scale(block, unit % units), offset = C::offset(block, unit % units);
      float codes[UNIT];
      for (uint i = 0; i < UNIT; i++) codes[i] = C::code(block, unit % units, i);
      for (uint r = 0; r < ROWS; r++) {
        const ulong start = ulong(min(x_row + r, p.m - 1)) * p.k + unit * UNIT;
        float products = 0, total = 0;
        for (uint i = 0; i < UNIT; i++) {
          const float value = element(VALUES, x, start + i);
          products += codes[i] * value;
          if (C::SHIFTED) total += value;
        }
        sums[r][w] += scale * products;
        if (C::SHIFTED) sums[r][w] += offset * total;
      }
    }
  }
  for (uint r = 0; r < ROWS; r++) {
    for (uint w = 0; w < SIMD_ROWS; w++) {
      const float sum = simd_sum(sums[r][w]);
      if (lane == 0 && first + w < p.n && x_row + r < p.m)
        put(out, ulong(x_row + r) * p.n + first + w, sum);
    }
  }
}
