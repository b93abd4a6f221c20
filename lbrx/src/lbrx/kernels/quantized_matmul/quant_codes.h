// Integer codes for products with a quantized matrix on CPUs.
//
// Rows of x are 16-bit integers with a scale for every 32 of them, which is as precise as float16.
// CPUs multiply pairs of 16-bit integers and add the products in one instruction; compilers
// recognise `pair_sums` as that.
#pragma once
#include "quant_schemes.h"
#include "wide.h"

constant constexpr uint RUN = 2 * UNIT;  // codes of x with one scale
constant constexpr float LARGEST = 32767;

typedef Shorts<RUN> Codes;
typedef Floats<UNIT> Unit;

// Sums of products of neighbouring codes. No sum of 32 products overflows: weight codes are < 512.
template <uint N>
inline Ints<N / 2> pair_sums(Shorts<N> a, Shorts<N> b) {
  const Ints<N> products = ints<N>(a) * ints<N>(b);
  return products.even + products.odd;
}

// Sixteen values of x. The loop vectorises unless it is unrolled first.
inline Unit unit_at(device const void* x, ulong at) {
  alignas(64) float values[UNIT];
#pragma nounroll
  for (uint i = 0; i < UNIT; i++) values[i] = element(VALUES, x, at + i);
  return *reinterpret_cast<thread const Unit*>(values);
}

// The codes of x, their scales, and their sums, which offsets are multiplied by: of 32, and of the
// first 16 of those.
kernel void pack_rows(device const void* x [[buffer(0)]], device Shorts<UNIT>* codes [[buffer(1)]],
                      device float* steps [[buffer(2)]], device float2* sums [[buffer(3)]],
                      uint at [[thread_position_in_grid]]) {
  const Unit units[2] = {unit_at(x, ulong(at) * RUN), unit_at(x, ulong(at) * RUN + UNIT)};
  // Magnitudes compare like their bits; NaN is above infinity.
  const int sizes[2] = {__builtin_reduce_max(bits<UNIT>(units[0]) & 0x7fffffff),
                        __builtin_reduce_max(bits<UNIT>(units[1]) & 0x7fffffff)};
  const int top = max(sizes[0], sizes[1]);
  const float largest = as_type<float>(top);
  // Codes are 0 if the scale would be denormal; NaN and infinity make the whole result NaN.
  const float inverse = largest < 1e-33f ? 0.0f : LARGEST / largest;
  const float step = top >= 0x7f800000 ? NAN : largest / LARGEST;
  int totals[2];
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    const Unit scaled = __builtin_elementwise_rint(units[i] * inverse);
    const Ints<UNIT> rounded = bits<UNIT>(scaled + 12582912.0f) - 0x4b400000;  // see `integer`
    codes[at * 2 + i] = __builtin_convertvector(rounded, Shorts<UNIT>);
    totals[i] = __builtin_reduce_add(rounded);
  }
  steps[at] = step;
  sums[at] = float2(totals[0] + totals[1], totals[0]) * step;
}

// Rows of x as written by `pack_rows`.
struct Packed {
  device const Codes* codes;
  device const float* steps;
  device const float2* sums;
};

// The codes of 32 values of a matrix.
template <typename C>
inline Codes codes_of(Block block, uint run) {
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
  return *reinterpret_cast<thread const Codes*>(codes);
}
