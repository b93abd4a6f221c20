// Products of a few rows with quantized matrices in integers.
#pragma once
#include "quant_codes.h"
#include "records/quant_integers.h"

constant constexpr uint MOST_ROWS = 8;
constant constexpr uint MOST_COLUMNS = 4;
constant constexpr uint MOST_SUMS = 8;  // rows times columns
constant constexpr uint CACHE_LINE = 64;

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

// The codes of 32 values in two vectors, which fit registers of any width.
struct Halves {
  Shorts<UNIT> lo, hi;
};
template <typename C>
inline Halves halves_of(Block block, uint run) {
  const Codes codes = codes_of<C>(block, run);
  return {codes.lo, codes.hi};
}
// A byte has a value of each half.
typedef uchar Bytes __attribute__((ext_vector_type(16), aligned(1)));
inline Halves nibbles_at(device const uchar* from) {
  const Bytes bytes = *reinterpret_cast<device const Bytes*>(from);
  const Shorts<UNIT> both = __builtin_convertvector(bytes, Shorts<UNIT>);
  return {both & 15, both >> 4};
}
template <>
inline Halves halves_of<Q4_0>(Block block, uint) {
  const Halves nibbles = nibbles_at(block.data + 2);
  return {nibbles.lo - 8, nibbles.hi - 8};
}
template <>
inline Halves halves_of<Q4_1>(Block block, uint) { return nibbles_at(block.data + 4); }

// Sums for one row of x, lane by lane, and what offsets add to them.
struct RowSum {
  Floats<8> lanes;
  float shift;
};

template <typename C>
inline void add_blocks(thread RowSum (&sums)[MOST_SUMS], thread const Block (&blocks)[MOST_COLUMNS],
                       ulong b, thread const Packed (&x)[MOST_ROWS]) {
  const uint runs = C::elements() / RUN;
#pragma unroll
  for (uint run = 0; run < runs; run++) {
    const ulong at = b * runs + run;
    Halves codes[MOST_COLUMNS];
    Floats<MOST_COLUMNS> first, second, first_offset, second_offset;
#pragma unroll
    for (uint c = 0; c < COLUMNS; c++) {
      codes[c] = halves_of<C>(blocks[c], run);
      const float2 one = scale_and_offset<C>(blocks[c], run * 2);
      const float2 other = C::PAIRED ? one : scale_and_offset<C>(blocks[c], run * 2 + 1);
      first[c] = one.x, first_offset[c] = one.y;
      second[c] = other.x, second_offset[c] = other.y;
    }
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
      const Codes given = x[r].codes[at];
      const Floats<MOST_COLUMNS> firsts = first * x[r].steps[at], seconds = second * x[r].steps[at];
      const float2 totals = C::SHIFTED ? x[r].sums[at] : 0;
#pragma unroll
      for (uint c = 0; c < COLUMNS; c++) {
        thread RowSum& sum = sums[r * COLUMNS + c];
        const Ints<8> low = pair_sums<UNIT>(codes[c].lo, given.lo);
        const Ints<8> high = pair_sums<UNIT>(codes[c].hi, given.hi);
        if (C::PAIRED) {
          sum.lanes = fused<8>(floats<8>(low + high), firsts[c], sum.lanes);
        } else {
          sum.lanes = fused<8>(floats<8>(low), firsts[c], sum.lanes);
          sum.lanes = fused<8>(floats<8>(high), seconds[c], sum.lanes);
        }
        if (!C::SHIFTED) continue;
        sum.shift += C::PAIRED ? first_offset[c] * totals.x
                               : fma(first_offset[c], totals.y,
                                     second_offset[c] * (totals.x - totals.y));
      }
    }
  }
}

inline float sum_of(RowSum a, RowSum b) {
  const Floats<8> eight = a.lanes + b.lanes;
  const auto four = eight.lo + eight.hi;
  return (four.x + four.z) + (four.y + four.w) + (a.shift + b.shift);
}

// Rows of x times the rows of a matrix whose blocks begin at `starts`. Blocks alternate between two
// independent sums, to hide latency.
template <typename C>
inline void add_rows(thread RowSum (&even)[MOST_SUMS], thread RowSum (&odd)[MOST_SUMS], Weight weight,
                     thread const ulong (&starts)[MOST_COLUMNS], uint blocks,
                     thread const Packed (&x)[MOST_ROWS]) {
#pragma unroll
  for (uint i = 0; i < ROWS * COLUMNS; i++) even[i] = odd[i] = {0, 0};
  uint b = 0;
  for (; b + 1 < blocks; b += 2) {
    Block own[MOST_COLUMNS], next[MOST_COLUMNS];
#pragma unroll
    for (uint c = 0; c < COLUMNS; c++) {
      own[c] = block_at<C>(weight, starts[c] + b);
      next[c] = block_at<C>(weight, starts[c] + b + 1);
      // What follows in memory for the next columns.
      for (uint i = 0; i < 2 * C::bytes(); i += CACHE_LINE)
        __builtin_prefetch(own[c].data + COLUMNS * blocks * C::bytes() + i);
    }
    add_blocks<C>(even, own, b, x);
    add_blocks<C>(odd, next, b + 1, x);
  }
  if (b < blocks) {
    Block own[MOST_COLUMNS];
#pragma unroll
    for (uint c = 0; c < COLUMNS; c++) own[c] = block_at<C>(weight, starts[c] + b);
    add_blocks<C>(even, own, b, x);
  }
}

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
    constant WeightsRecord& p [[buffer(16)]], uint2 at [[thread_position_in_grid]]) {
  Weight weight = {data_0, scales_0, offsets_0, book};
  device void* out = out_0;
  uint group = at.x, columns = p.first, groups = (columns + COLUMNS - 1) / COLUMNS;
  if (group >= groups) {
    group -= groups;
    columns = p.second;
    groups = (columns + COLUMNS - 1) / COLUMNS;
    weight = {data_1, scales_1, offsets_1, book};
    out = out_1;
    if (group >= groups) {
      group -= groups;
      columns = p.third;
      weight = {data_2, scales_2, offsets_2, book};
      out = out_2;
    }
  }
  const uint column = group * COLUMNS, row = at.y * ROWS, blocks = p.k / C::elements();
  // Rows and columns beyond the last repeat it.
  ulong starts[MOST_COLUMNS];
#pragma unroll
  for (uint c = 0; c < COLUMNS; c++) starts[c] = ulong(min(column + c, columns - 1)) * blocks;
  Packed x[MOST_ROWS];
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
    const ulong given = ulong(min(row + r, p.m - 1)) * (p.k / RUN);
    x[r] = {codes + given, steps + given, sums + given};
  }
  RowSum even[MOST_SUMS], odd[MOST_SUMS];
  add_rows<C>(even, odd, weight, starts, blocks, x);
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
#pragma unroll
    for (uint c = 0; c < COLUMNS; c++) {
      const uint i = r * COLUMNS + c;
      if (row + r < p.m && column + c < columns)
        put(out, ulong(row + r) * columns + column + c, sum_of(even[i], odd[i]));
    }
  }
}
