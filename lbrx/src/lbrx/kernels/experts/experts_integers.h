// Products of single rows with experts in integers, on CPUs.
#pragma once
#include "experts.h"
#include "quant_integers.h"

template <typename C>
kernel void experts_integers(device const uchar* data [[buffer(0)]],
                             device const void* scales [[buffer(1)]],
                             device const void* offsets [[buffer(2)]],
                             device const char* book [[buffer(3)]],
                             device const Codes* codes [[buffer(4)]],
                             device const float* steps [[buffer(5)]],
                             device const float2* sums [[buffer(6)]], device void* out [[buffer(7)]],
                             device const int* indices [[buffer(8)]],
                             constant ExpertsRecord& p [[buffer(9)]],
                             uint2 at [[thread_position_in_grid]]) {
  const uint column = at.x * COLUMNS, result = at.y, blocks = p.k / C::elements();
  const ulong expert = ulong(expert_of(indices, p, result)) * p.n;
  // Columns beyond the last repeat it.
  ulong starts[MOST_COLUMNS];
#pragma unroll
  for (uint c = 0; c < COLUMNS; c++) starts[c] = (expert + min(column + c, p.n - 1)) * blocks;
  Packed x[MOST_ROWS];
  const ulong row = ulong(result / p.each) * (p.k / RUN);
  x[0] = {codes + row, steps + row, sums + row};
  RowSum even[MOST_SUMS], odd[MOST_SUMS];
  add_rows<C>(even, odd, {data, scales, offsets, book}, starts, blocks, x);
#pragma unroll
  for (uint c = 0; c < COLUMNS; c++)
    if (column + c < p.n) put(out, ulong(result) * p.n + column + c, sum_of(even[c], odd[c]));
}
