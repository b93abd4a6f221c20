// Products of a few rows with a quantized matrix, which is read once and never expanded.
#pragma once
#include "quant_schemes.h"

struct Product {
  uint m, n, k;
};

constant uint ROWS [[function_constant(3)]];  // of x in one pass
constant constexpr uint MOST_ROWS = 8;

// ---- a thread a row of the matrix, in whole numbers ----

constant constexpr uint RUN = 2 * UNIT;

// Rows of x as eight-bit codes with a scale for 32 of them, and the sums of 16 that offsets are
// multiplied by. Codes lie in shorts, as they are multiplied.
kernel void pack_rows(device const void* x [[buffer(0)]], device short* codes [[buffer(1)]],
                      device float* steps [[buffer(2)]], device float* sums [[buffer(3)]],
                      uint at [[thread_position_in_grid]]) {
  float values[RUN];
  float largest = 0, strange = 0;
  for (uint i = 0; i < RUN; i++) {
    values[i] = element(VALUES, x, ulong(at) * RUN + i);
    largest = max(largest, abs(values[i]));
    strange += values[i] * 0;
  }
  // Below this, an inverse would be infinite; NaN and infinity make the whole result NaN.
  const float inverse = largest < 1e-35f ? 0.0f : 127 / largest;
  const float step = largest / 127 + strange;
  int total[2] = {0, 0};
  for (uint i = 0; i < RUN; i++) {
    const short code = short(rint(values[i] * inverse));
    codes[ulong(at) * RUN + i] = code;
    total[i / UNIT] += code;
  }
  steps[at] = step;
  for (uint half = 0; half < 2; half++) sums[at * 2 + half] = float(total[half]) * step;
}

// Rows of x as `pack_rows` leaves them.
struct Packed {
  device const short* codes;
  device const float* steps;
  device const float* sums;
};

// Sums of rows, lane by lane, and what their offsets add up to.
struct Sums {
  alignas(64) float lanes[MOST_ROWS][UNIT];
  float shifts[MOST_ROWS];
};

// The loops over lanes become vector instructions, if nothing unrolls them before.

// Adds the products with 32 values of a block, two a lane: in 16 bits they cannot overflow.
template <typename C>
inline void add_paired(thread Sums& sums, Block block, uint run,
                       thread const Packed (&x)[MOST_ROWS], ulong at) {
  alignas(64) short codes[RUN];
#pragma nounroll
  for (uint i = 0; i < UNIT; i++) {
    if (C::NEIGHBOURS) {
      const short2 two = C::neighbours(block, run, i);
      codes[2 * i] = two.x;
      codes[2 * i + 1] = two.y;
    } else {
      codes[i] = C::code(block, run * 2, i);
      codes[i + UNIT] = C::code(block, run * 2 + 1, i);
    }
  }
  const float scale = C::scale(block, run * 2), offset = C::offset(block, run * 2);
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
    device const short* row = x[r].codes + at * RUN;
    device const short* rest = row + UNIT;
    const float step = scale * x[r].steps[at];
#pragma nounroll
    for (uint i = 0; i < UNIT; i++) {
      const short products = short(codes[i] * row[i]) + short(codes[i + UNIT] * rest[i]);
      sums.lanes[r][i] = fma(float(products), step, sums.lanes[r][i]);
    }
    const float total = x[r].sums[at * 2] + x[r].sums[at * 2 + 1];
    if (C::SHIFTED) sums.shifts[r] = fma(offset, total, sums.shifts[r]);
  }
}

// The same for 16 values that have a scale of their own, or larger codes.
template <typename C>
inline void add_unit(thread Sums& sums, Block block, uint unit,
                     thread const Packed (&x)[MOST_ROWS], ulong at) {
  alignas(32) short codes[UNIT];
#pragma nounroll
  for (uint i = 0; i < UNIT; i++) codes[i] = C::code(block, unit, i);
  const float scale = C::scale(block, unit), offset = C::offset(block, unit);
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
    device const short* row = x[r].codes + at * UNIT;
    const float step = scale * x[r].steps[at / 2];
#pragma nounroll
    for (uint i = 0; i < UNIT; i++) {
      const short product = codes[i] * row[i];
      sums.lanes[r][i] = fma(float(product), step, sums.lanes[r][i]);
    }
    if (C::SHIFTED) sums.shifts[r] = fma(offset, x[r].sums[at], sums.shifts[r]);
  }
}

inline float sum_of(thread float (&lanes)[UNIT]) {
  for (uint half = UNIT / 2; half > 0; half /= 2)
    for (uint i = 0; i < half; i++) lanes[i] += lanes[i + half];
  return lanes[0];
}

template <typename C>
kernel void matvec_serial(device const uchar* data [[buffer(0)]],
                          device const void* scales [[buffer(1)]],
                          device const void* offsets [[buffer(2)]],
                          device const char* book [[buffer(3)]],
                          device const short* codes [[buffer(4)]],
                          device const float* steps [[buffer(5)]],
                          device const float* sums [[buffer(6)]], device void* out [[buffer(7)]],
                          constant Product& p [[buffer(8)]],
                          uint2 at [[thread_position_in_grid]]) {
  const uint first = at.y * ROWS, blocks = p.k / C::elements();
  Packed x[MOST_ROWS];
  Sums totals;
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
    // Rows beyond the last are the last again.
    const ulong row = min(first + r, p.m - 1);
    x[r] = {codes + row * p.k, steps + row * (p.k / RUN), sums + row * (p.k / UNIT)};
    totals.shifts[r] = 0;
    for (uint i = 0; i < UNIT; i++) totals.lanes[r][i] = 0;
  }
  for (ulong b = 0; b < blocks; b++) {
    const Block block = block_at<C>({data, scales, offsets, book}, ulong(at.x) * blocks + b);
    const uint units = C::elements() / UNIT;
    if (C::PAIRED) {
#pragma unroll
      for (uint run = 0; run < units / 2; run++)
        add_paired<C>(totals, block, run, x, b * (units / 2) + run);
    } else {
#pragma unroll
      for (uint unit = 0; unit < units; unit++)
        add_unit<C>(totals, block, unit, x, b * units + unit);
    }
  }
#pragma unroll
  for (uint r = 0; r < ROWS; r++)
    if (first + r < p.m)
      put(out, ulong(first + r) * p.n + at.x, sum_of(totals.lanes[r]) + totals.shifts[r]);
}

// ---- simdgroups ----

constant constexpr uint SIMD = 32;
constant constexpr uint SIMD_ROWS = 4;  // of the matrix, for each of two simdgroups
constant constexpr uint SIMDGROUPS = 2;

// The lanes of a simdgroup go along four rows of the matrix, sixteen values at a time.
template <typename C>
kernel void matvec_simd(device const uchar* data [[buffer(0)]],
                        device const void* scales [[buffer(1)]],
                        device const void* offsets [[buffer(2)]],
                        device const char* book [[buffer(3)]], device const void* x [[buffer(4)]],
                        device void* out [[buffer(5)]], constant Product& p [[buffer(6)]],
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
