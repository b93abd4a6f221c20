// Products of a few rows with quantized matrices in integers.
#pragma once
#include "quant_codes.h"

constant uint ROWS [[function_constant(3)]];  // of x in one pass
constant constexpr uint MOST_ROWS = 8;

template <typename C>
inline float2 scale_and_offset(Block block, uint unit) {
  return float2(C::scale(block, unit), C::SHIFTED ? C::offset(block, unit) : 0);
}
// Both at once, where they lie side by side.
inline float2 two_halves(Block block) {
  return float2(*reinterpret_cast<device const half2*>(block.data));
}
template <>
inline float2 scale_and_offset<Q4_1>(Block block, uint) { return two_halves(block); }
template <>
inline float2 scale_and_offset<Q5_1>(Block block, uint) { return two_halves(block); }

// Sums for one row of x, lane by lane, and what offsets add to them.
struct Sum {
  Floats<8> lanes;
  float shift;
};

template <typename C>
inline void add_block(thread Sum (&sums)[MOST_ROWS], Block block, ulong b,
                      thread const Packed (&x)[MOST_ROWS]) {
  const uint runs = C::elements() / RUN;
#pragma unroll
  for (uint run = 0; run < runs; run++) {
    const ulong at = b * runs + run;
    const Codes codes = codes_of<C>(block, run);
    const float2 first = scale_and_offset<C>(block, run * 2);
    const float2 second = C::PAIRED ? first : scale_and_offset<C>(block, run * 2 + 1);
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
      const Codes given = x[r].codes[at];
      const float step = x[r].steps[at];
      const Ints<8> low = pair_sums<UNIT>(codes.lo, given.lo);
      const Ints<8> high = pair_sums<UNIT>(codes.hi, given.hi);
      if (C::PAIRED) {
        sums[r].lanes = fused<8>(floats<8>(low + high), first.x * step, sums[r].lanes);
      } else {
        sums[r].lanes = fused<8>(floats<8>(low), first.x * step, sums[r].lanes);
        sums[r].lanes = fused<8>(floats<8>(high), second.x * step, sums[r].lanes);
      }
      if (!C::SHIFTED) continue;
      const float2 totals = x[r].sums[at];
      sums[r].shift += C::PAIRED ? first.y * totals.x
                                 : fma(first.y, totals.y, second.y * (totals.x - totals.y));
    }
  }
}

inline float sum_of(Sum a, Sum b) {
  const Floats<8> eight = a.lanes + b.lanes;
  const auto four = eight.lo + eight.hi;
  return (four.x + four.z) + (four.y + four.w) + (a.shift + b.shift);
}

// Up to three matrices in one launch. Missing ones are replaced by any other, which is not read.
struct Columns {
  uint first, second, third;  // rows of each matrix
  uint m, k;
};

template <typename C>
kernel void matvec_serial(
    device const uchar* data_0 [[buffer(0)]], device const void* scales_0 [[buffer(1)]],
    device const void* offsets_0 [[buffer(2)]], device const uchar* data_1 [[buffer(3)]],
    device const void* scales_1 [[buffer(4)]], device const void* offsets_1 [[buffer(5)]],
    device const uchar* data_2 [[buffer(6)]], device const void* scales_2 [[buffer(7)]],
    device const void* offsets_2 [[buffer(8)]], device const char* book [[buffer(9)]],
    device const Codes* codes [[buffer(10)]], device const float* steps [[buffer(11)]],
    device const float2* sums [[buffer(12)]], device void* out_0 [[buffer(13)]],
    device void* out_1 [[buffer(14)]], device void* out_2 [[buffer(15)]],
    constant Columns& p [[buffer(16)]], uint2 at [[thread_position_in_grid]]) {
  Weight weight = {data_0, scales_0, offsets_0, book};
  device void* out = out_0;
  uint column = at.x, columns = p.first;
  if (column >= columns) {
    column -= columns;
    columns = p.second;
    weight = {data_1, scales_1, offsets_1, book};
    out = out_1;
    if (column >= columns) {
      column -= columns;
      columns = p.third;
      weight = {data_2, scales_2, offsets_2, book};
      out = out_2;
    }
  }
  const uint first = at.y * ROWS, blocks = p.k / C::elements();
  const ulong start = ulong(column) * blocks;
  Packed x[MOST_ROWS];
  // Blocks alternate between two independent sums, to hide latency.
  Sum even[MOST_ROWS], odd[MOST_ROWS];
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
    // Rows beyond the last repeat it.
    const ulong row = min(first + r, p.m - 1);
    x[r] = {codes + row * (p.k / RUN), steps + row * (p.k / RUN), sums + row * (p.k / RUN)};
    even[r] = odd[r] = {0, 0};
  }
  for (uint b = 0; b + 1 < blocks; b += 2) {
    add_block<C>(even, block_at<C>(weight, start + b), b, x);
    add_block<C>(odd, block_at<C>(weight, start + b + 1), b + 1, x);
  }
  if (blocks % 2) add_block<C>(even, block_at<C>(weight, start + blocks - 1), blocks - 1, x);
#pragma unroll
  for (uint r = 0; r < ROWS; r++)
    if (first + r < p.m) put(out, ulong(first + r) * columns + column, sum_of(even[r], odd[r]));
}
