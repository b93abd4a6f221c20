// Products of a few rows with a quantized matrix in float: x is not rounded.
#pragma once
#include "quant_schemes.h"
#include "records/quant_product.h"
#include "records/quant_rows.h"

constant constexpr uint MOST_FLOAT_ROWS = 8;
constant constexpr uint CHAINS = 2;  // of independent sums, to hide latency

// Sixteen values of a block. A loop over them vectorises.
template <typename C>
inline void expand(Block block, uint unit, thread float (&values)[UNIT]) {
  const float scale = C::scale(block, unit), offset = C::offset(block, unit);
#pragma nounroll
  for (uint i = 0; i < UNIT; i++) {
    const float code = C::code(block, unit, i);
    values[i] = C::SHIFTED ? fma(scale, code, offset) : scale * code;
  }
}

inline float sum_of(thread float (&chains)[CHAINS][UNIT]) {
  for (uint i = 0; i < UNIT; i++) chains[0][i] += chains[1][i];
  for (uint reach = UNIT / 2; reach > 0; reach /= 2)
    for (uint i = 0; i < reach; i++) chains[0][i] += chains[0][i + reach];
  return chains[0][0];
}

// One thread per row of the matrix.
template <typename C>
kernel void matvec_floats(device const uchar* data [[buffer(0)]],
                          device const void* scales [[buffer(1)]],
                          device const void* offsets [[buffer(2)]],
                          device const char* book [[buffer(3)]],
                          device const float* x [[buffer(4)]], device float* out [[buffer(5)]],
                          constant QuantizedProductRecord& p [[buffer(6)]],
                          uint2 at [[thread_position_in_grid]]) {
  const uint first = at.y * ROWS, blocks = p.k / C::elements();
  device const float* rows[MOST_FLOAT_ROWS];
  float sums[MOST_FLOAT_ROWS][CHAINS][UNIT];
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
    // Rows beyond the last repeat it.
    rows[r] = x + ulong(min(first + r, p.m - 1)) * p.k;
    for (uint i = 0; i < CHAINS * UNIT; i++) sums[r][i / UNIT][i % UNIT] = 0;
  }
  for (ulong b = 0; b < blocks; b++) {
    const Block block = block_at<C>({data, scales, offsets, book}, ulong(at.x) * blocks + b);
#pragma unroll
    for (uint unit = 0; unit < C::elements() / UNIT; unit++) {
      alignas(64) float values[UNIT];
      expand<C>(block, unit, values);
      const ulong place = b * C::elements() + unit * UNIT;
#pragma unroll
      for (uint r = 0; r < ROWS; r++) {
        // Long blocks have enough independent work, and need the registers.
        thread float* lanes = sums[r][C::elements() == 2 * UNIT ? unit % CHAINS : 0];
#pragma nounroll
        for (uint i = 0; i < UNIT; i++) lanes[i] = fma(values[i], rows[r][place + i], lanes[i]);
      }
    }
  }
#pragma unroll
  for (uint r = 0; r < ROWS; r++)
    if (first + r < p.m) out[ulong(first + r) * p.n + at.x] = sum_of(sums[r]);
}
