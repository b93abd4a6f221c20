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

// Rows of x as bytes with a scale for 32 of them, and the sums of 16 that offsets are multiplied by.
kernel void pack_rows(device const void* x [[buffer(0)]], device char* codes [[buffer(1)]],
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
    const char code = char(rint(values[i] * inverse));
    codes[ulong(at) * RUN + i] = code;
    total[i / UNIT] += code;
  }
  steps[at] = step;
  for (uint half = 0; half < 2; half++) sums[at * 2 + half] = float(total[half]) * step;
}

// Rows of x as `pack_rows` leaves them.
struct Packed {
  device const char* codes;
  device const float* steps;
  device const float* sums;
};

// Adds the products with 32 values of a block, one lane for 2 of them: in 16 bits they cannot overflow.
template <typename C>
inline void add_paired(thread float (&lanes)[MOST_ROWS][UNIT], thread float (&shifts)[MOST_ROWS],
                       Block block, uint run, thread const Packed (&x)[MOST_ROWS], uint at) {
  const float scale = C::scale(block, run * 2), offset = C::offset(block, run * 2);
  float scales[MOST_ROWS];
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
    scales[r] = scale * x[r].steps[at];
    if (C::SHIFTED) shifts[r] = fma(offset, x[r].sums[at * 2] + x[r].sums[at * 2 + 1], shifts[r]);
  }
#pragma nounroll
  for (uint i = 0; i < UNIT; i++) {
    const uint first = C::NEIGHBOURS ? 2 * i : i, second = C::NEIGHBOURS ? 2 * i + 1 : i + UNIT;
    const short a = C::code(block, run * 2 + first / UNIT, first % UNIT);
    const short b = C::code(block, run * 2 + second / UNIT, second % UNIT);
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
      device const char* row = x[r].codes + at * RUN;
      const short products = short(a * short(row[first])) + short(b * short(row[second]));
      lanes[r][i] = fma(float(products), scales[r], lanes[r][i]);
    }
  }
}

// The same for 16 values that have a scale of their own, or larger codes.
template <typename C>
inline void add_unit(thread float (&lanes)[MOST_ROWS][UNIT], thread float (&shifts)[MOST_ROWS],
                     Block block, uint unit, thread const Packed (&x)[MOST_ROWS], uint at) {
  const float scale = C::scale(block, unit), offset = C::offset(block, unit);
  float scales[MOST_ROWS];
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
    scales[r] = scale * x[r].steps[at / 2];
    if (C::SHIFTED) shifts[r] = fma(offset, x[r].sums[at], shifts[r]);
  }
#pragma nounroll
  for (uint i = 0; i < UNIT; i++) {
    const short code = C::code(block, unit, i);
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
      const short product = code * short(x[r].codes[at * UNIT + i]);
      lanes[r][i] = fma(float(product), scales[r], lanes[r][i]);
    }
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
                          device const char* codes [[buffer(4)]],
                          device const float* steps [[buffer(5)]],
                          device const float* sums [[buffer(6)]], device void* out [[buffer(7)]],
                          constant Product& p [[buffer(8)]],
                          uint2 at [[thread_position_in_grid]]) {
  const uint first = at.y * ROWS, blocks = p.k / C::elements();
  Packed x[MOST_ROWS];
  float lanes[MOST_ROWS][UNIT];
  float shifts[MOST_ROWS];
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
    // Rows beyond the last are the last again.
    const ulong row = min(first + r, p.m - 1);
    x[r] = {codes + row * p.k, steps + row * (p.k / RUN), sums + row * (p.k / UNIT)};
    shifts[r] = 0;
    for (uint i = 0; i < UNIT; i++) lanes[r][i] = 0;
  }
  for (uint b = 0; b < blocks; b++) {
    const Block block = block_at<C>({data, scales, offsets, book}, ulong(at.x) * blocks + b);
    const uint units = C::elements() / UNIT;
    if (C::PAIRED) {
#pragma unroll
      for (uint run = 0; run < units / 2; run++)
        add_paired<C>(lanes, shifts, block, run, x, b * (units / 2) + run);
    } else {
#pragma unroll
      for (uint unit = 0; unit < units; unit++)
        add_unit<C>(lanes, shifts, block, unit, x, b * units + unit);
    }
  }
#pragma unroll
  for (uint r = 0; r < ROWS; r++)
    if (first + r < p.m) put(out, ulong(first + r) * p.n + at.x, sum_of(lanes[r]) + shifts[r]);
}
