// Products with a quantized matrix in whole numbers, for devices where a thread does a long run.
//
// Rows of x are codes of sixteen bits with a scale for 32 of them: as exact as half precision, and
// processors multiply pairs of such numbers and add them up in one instruction. `pair_sums` is what
// their compilers know as that.
#pragma once
#include "quant_schemes.h"

struct Product {
  uint m, n, k;
  uint stride;  // of the result's rows: n may be some of its columns
};

constant constexpr uint RUN = 2 * UNIT;  // codes of x with one scale
constant constexpr float LARGEST = 32767;

template <uint N> using Shorts = short __attribute__((ext_vector_type(N)));
template <uint N> using Ints = int __attribute__((ext_vector_type(N)));
template <uint N> using Floats = float __attribute__((ext_vector_type(N)));
typedef Shorts<RUN> Codes;
typedef Floats<UNIT> Unit;

// No sum of 32 products overflows: codes of weights are below 512.
template <uint N>
inline Ints<N / 2> pair_sums(Shorts<N> a, Shorts<N> b) {
  const Ints<N> products = __builtin_convertvector(a, Ints<N>) * __builtin_convertvector(b, Ints<N>);
  return products.even + products.odd;
}
template <uint N>
inline Floats<N> floats(Ints<N> x) { return __builtin_convertvector(x, Floats<N>); }
template <uint N>
inline Floats<N> fused(Floats<N> a, Floats<N> b, Floats<N> c) { return __builtin_elementwise_fma(a, b, c); }

// Sixteen numbers of x. The loop becomes vector instructions, if nothing unrolls it before.
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
  // Without their signs, numbers are in the order of their bits; beyond infinity's are those of NaN.
  const Ints<UNIT> bits = __builtin_elementwise_max(__builtin_bit_cast(Ints<UNIT>, units[0]) & 0x7fffffff,
                                                    __builtin_bit_cast(Ints<UNIT>, units[1]) & 0x7fffffff);
  const int top = __builtin_reduce_max(bits);
  const float largest = as_type<float>(top);
  // Below this, an inverse would be infinite; NaN and infinity make the whole result NaN.
  const float inverse = largest < 1e-33f ? 0.0f : LARGEST / largest;
  const float step = top >= 0x7f800000 ? NAN : largest / LARGEST;
  int totals[2];
#pragma unroll
  for (uint i = 0; i < 2; i++) {
    const auto rounded = __builtin_convertvector(__builtin_elementwise_rint(units[i] * inverse), Ints<UNIT>);
    codes[at * 2 + i] = __builtin_convertvector(rounded, Shorts<UNIT>);
    totals[i] = __builtin_reduce_add(rounded);
  }
  steps[at] = step;
  sums[at] = float2(totals[0] + totals[1], totals[0]) * step;
}

// ---- a few rows: a thread a row of the matrix ----

constant uint ROWS [[function_constant(3)]];  // of x in one pass
constant constexpr uint MOST_ROWS = 8;

// Rows of x as `pack_rows` leaves them.
struct Packed {
  device const Codes* codes;
  device const float* steps;
  device const float2* sums;
};

// The codes of 32 values. The loop over them becomes vector instructions, if nothing unrolls it before.
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

template <typename C>
inline float2 scale_and_offset(Block block, uint unit) {
  return float2(C::scale(block, unit), C::SHIFTED ? C::offset(block, unit) : 0);
}
// Both at once, where they lie side by side.
inline float2 two_halves(Block block) { return float2(*reinterpret_cast<device const half2*>(block.data)); }
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
      const Ints<8> low = pair_sums<UNIT>(codes.lo, given.lo), high = pair_sums<UNIT>(codes.hi, given.hi);
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

// Up to three matrices in one launch, one after the other; of those that there are not, any stand in.
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
  // Blocks take turns with two sums, so that one need not wait for the other.
  Sum even[MOST_ROWS], odd[MOST_ROWS];
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
    // Rows beyond the last are the last again.
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

// ---- many rows: tiles of the result ----

// Of a tile, which one thread computes: rows of x, and rows of the matrix in vectors of 16.
constant constexpr uint TILE_ROWS = 32, STRIP = 4, LANES = 16, VECTORS = 4, TILE_COLUMNS = LANES * VECTORS;
constant constexpr uint PAIRS = RUN / 2;

constant uint SCALES_OF_RUN [[function_constant(4)]];  // one, or one for each 16 values
constant bool HAS_OFFSETS [[function_constant(5)]];

// Two codes that lie side by side, in an int.
inline Codes as_codes(Ints<LANES> pairs) { return __builtin_bit_cast(Codes, pairs); }
inline Ints<LANES> as_pairs(Codes codes) { return __builtin_bit_cast(Ints<LANES>, codes); }

// Four rounds of a perfect shuffle of the rows' first and second half exchange rows and columns.
inline void transpose(thread Ints<LANES> (&rows)[LANES]) {
#pragma unroll
  for (uint round = 0; round < 4; round++) {
    Ints<LANES> next[LANES];
#pragma unroll
    for (uint i = 0; i < LANES / 2; i++) {
      const Ints<LANES> a = rows[i], b = rows[i + LANES / 2];
      next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
#pragma unroll
    for (uint i = 0; i < LANES; i++) rows[i] = next[i];
  }
}

// The matrix for `multiply_tiles`: for each panel of TILE_COLUMNS rows and each run, pairs of codes with
// the panel's rows side by side, and likewise scales and offsets. A thread takes a block of 16 rows.
template <typename C>
kernel void pack_matrix(device const uchar* data [[buffer(0)]],
                        device const void* scales [[buffer(1)]],
                        device const void* offsets [[buffer(2)]],
                        device const char* book [[buffer(3)]], device Ints<LANES>* pairs [[buffer(4)]],
                        device float* steps [[buffer(5)]], device float* shifts [[buffer(6)]],
                        constant Product& p [[buffer(7)]],
                        uint2 at [[thread_position_in_grid]]) {
  const uint blocks = p.k / C::elements(), runs = C::elements() / RUN;
  const uint panel = at.y / VECTORS, vector = at.y % VECTORS;
  const uint units = C::PAIRED ? 1 : 2;
  Block rows[LANES];
  for (uint i = 0; i < LANES; i++) {
    // Rows beyond the last are the last again: nobody looks at their products.
    const ulong row = min(at.y * LANES + i, p.n - 1);
    rows[i] = block_at<C>({data, scales, offsets, book}, row * blocks + at.x);
  }
  for (uint run = 0; run < runs; run++) {
    const ulong place = ulong(panel) * (p.k / RUN) + at.x * runs + run;
    Ints<LANES> codes[LANES];
#pragma unroll
    for (uint i = 0; i < LANES; i++) codes[i] = as_pairs(codes_of<C>(rows[i], run));
    transpose(codes);
#pragma unroll
    for (uint i = 0; i < PAIRS; i++) pairs[(place * PAIRS + i) * VECTORS + vector] = codes[i];
    for (uint unit = 0; unit < units; unit++) {
      const ulong first = ((place * units + unit) * VECTORS + vector) * LANES;
      for (uint i = 0; i < LANES; i++) {
        steps[first + i] = C::scale(rows[i], run * 2 + unit);
        if (C::SHIFTED) shifts[first + i] = C::offset(rows[i], run * 2 + unit);
      }
    }
  }
}

// One run of a few rows of x times a panel of the matrix, added to their totals.
inline void add_strip(thread Unit (&totals)[STRIP][VECTORS], thread const Packed (&x)[STRIP],
                      ulong run, device const Ints<LANES>* pairs, device const Unit* scales,
                      device const Unit* offsets) {
#pragma unroll
  for (uint unit = 0; unit < SCALES_OF_RUN; unit++) {
    Ints<LANES> sums[STRIP][VECTORS] = {};
    const uint count = SCALES_OF_RUN == 1 ? PAIRS : PAIRS / 2;
    for (uint i = unit * count; i < (unit + 1) * count; i++) {
#pragma unroll
      for (uint r = 0; r < STRIP; r++) {
        const Ints<LANES> two = reinterpret_cast<device const int*>(x[r].codes + run)[i];
#pragma unroll
        for (uint v = 0; v < VECTORS; v++)
          sums[r][v] += pair_sums<RUN>(as_codes(pairs[i * VECTORS + v]), as_codes(two));
      }
    }
#pragma unroll
    for (uint r = 0; r < STRIP; r++) {
      const float2 both = x[r].sums[run];
      const float total = SCALES_OF_RUN == 1 ? both.x : unit == 0 ? both.y : both.x - both.y;
#pragma unroll
      for (uint v = 0; v < VECTORS; v++) {
        const Unit step = scales[unit * VECTORS + v] * x[r].steps[run];
        totals[r][v] = fused<LANES>(floats<LANES>(sums[r][v]), step, totals[r][v]);
        if (HAS_OFFSETS) totals[r][v] = fused<LANES>(offsets[unit * VECTORS + v], total, totals[r][v]);
      }
    }
  }
}

kernel void multiply_tiles(device const Ints<LANES>* pairs [[buffer(0)]],
                           device const Unit* scales [[buffer(1)]],
                           device const Unit* offsets [[buffer(2)]],
                           device const Codes* codes [[buffer(3)]],
                           device const float* steps [[buffer(4)]],
                           device const float2* sums [[buffer(5)]], device void* out [[buffer(6)]],
                           constant Product& p [[buffer(7)]],
                           uint2 at [[thread_position_in_grid]]) {
  const uint runs = p.k / RUN, first = at.x * TILE_ROWS, column = at.y * TILE_COLUMNS;
  const uint strips = (min(TILE_ROWS, p.m - first) + STRIP - 1) / STRIP;
  Unit totals[TILE_ROWS / STRIP][STRIP][VECTORS] = {};
  for (ulong run = 0; run < runs; run++) {
    const ulong place = at.y * runs + run;
    for (uint strip = 0; strip < strips; strip++) {
      Packed x[STRIP];
#pragma unroll
      for (uint r = 0; r < STRIP; r++) {
        const ulong row = min(first + strip * STRIP + r, p.m - 1);
        x[r] = {codes + row * runs, steps + row * runs, sums + row * runs};
      }
      add_strip(totals[strip], x, run, pairs + place * PAIRS * VECTORS,
                scales + place * SCALES_OF_RUN * VECTORS, offsets + place * SCALES_OF_RUN * VECTORS);
    }
  }
  for (uint r = 0; r < min(TILE_ROWS, p.m - first); r++) {
    thread const float* row = reinterpret_cast<thread const float*>(totals[r / STRIP][r % STRIP]);
    const ulong start = ulong(first + r) * p.stride + column;
    for (uint i = 0; i < min(TILE_COLUMNS, p.n - column); i++) put(out, start + i, row[i]);
  }
}
