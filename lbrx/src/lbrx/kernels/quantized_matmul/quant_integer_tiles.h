// Products of many rows with a quantized matrix in integers, in tiles of the result.
#pragma once
#include "quant_codes.h"
#include "records/quant_integers.h"

// Of a tile, which one thread computes: rows of x, and rows of the matrix in vectors of 16.
constant constexpr uint TILE_ROWS = 32, STRIP = 4, VECTORS = 4;
constant constexpr uint TILE_COLUMNS = LINE * VECTORS, PAIRS = RUN / 2;

typedef Ints<LINE> Pairs;  // of neighbouring codes

inline Codes as_codes(Pairs pairs) { return __builtin_bit_cast(Codes, pairs); }
inline Pairs as_pairs(Codes codes) { return __builtin_bit_cast(Pairs, codes); }

// The matrix for `multiply_tiles`: for each panel of TILE_COLUMNS rows and each run, pairs of codes
// with the panel's rows side by side, and likewise scales and offsets. A thread takes a block of
// each of 16 rows.
template <typename C>
kernel void pack_matrix(device const uchar* data [[buffer(0)]],
                        device const void* scales [[buffer(1)]],
                        device const void* offsets [[buffer(2)]],
                        device const char* book [[buffer(3)]], device Pairs* pairs [[buffer(4)]],
                        device float* steps [[buffer(5)]], device float* shifts [[buffer(6)]],
                        constant PanelRecord& p [[buffer(7)]],
                        uint2 at [[thread_position_in_grid]]) {
  const uint blocks = p.k / C::elements(), runs = C::elements() / RUN;
  const uint panel = at.y / VECTORS, vector = at.y % VECTORS;
  const uint units = C::PAIRED ? 1 : 2;
  Block rows[LINE];
  for (uint i = 0; i < LINE; i++) {
    // Rows beyond the last repeat it; their products are not used.
    const ulong row = min(at.y * LINE + i, p.n - 1);
    rows[i] = block_at<C>({data, scales, offsets, book}, row * blocks + at.x);
  }
  for (uint run = 0; run < runs; run++) {
    const ulong place = ulong(panel) * (p.k / RUN) + at.x * runs + run;
    Pairs codes[LINE];
#pragma unroll
    for (uint i = 0; i < LINE; i++) codes[i] = as_pairs(codes_of<C>(rows[i], run));
    transpose(codes);
#pragma unroll
    for (uint i = 0; i < PAIRS; i++) pairs[(place * PAIRS + i) * VECTORS + vector] = codes[i];
    for (uint unit = 0; unit < units; unit++) {
      const ulong first = ((place * units + unit) * VECTORS + vector) * LINE;
      for (uint i = 0; i < LINE; i++) {
        steps[first + i] = C::scale(rows[i], run * 2 + unit);
        if (C::SHIFTED) shifts[first + i] = C::offset(rows[i], run * 2 + unit);
      }
    }
  }
}

// One run of a few rows of x times a panel of the matrix, added to their totals.
inline void add_strip(thread Unit (&totals)[STRIP][VECTORS], thread const Packed (&x)[STRIP],
                      ulong run, device const Pairs* pairs, device const Unit* scales,
                      device const Unit* offsets) {
#pragma unroll
  for (uint unit = 0; unit < SCALES_OF_RUN; unit++) {
    Ints<LINE> sums[STRIP][VECTORS] = {};
    const uint count = SCALES_OF_RUN == 1 ? PAIRS : PAIRS / 2;
    for (uint i = unit * count; i < (unit + 1) * count; i++) {
#pragma unroll
      for (uint r = 0; r < STRIP; r++) {
        const Pairs two = reinterpret_cast<device const int*>(x[r].codes + run)[i];
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
        totals[r][v] = fused<LINE>(floats<LINE>(sums[r][v]), step, totals[r][v]);
        if (!HAS_OFFSETS) continue;
        totals[r][v] = fused<LINE>(offsets[unit * VECTORS + v], total, totals[r][v]);
      }
    }
  }
}

kernel void multiply_tiles(device const Pairs* pairs [[buffer(0)]],
                           device const Unit* scales [[buffer(1)]],
                           device const Unit* offsets [[buffer(2)]],
                           device const Codes* codes [[buffer(3)]],
                           device const float* steps [[buffer(4)]],
                           device const float2* sums [[buffer(5)]], device void* out [[buffer(6)]],
                           constant PanelRecord& p [[buffer(7)]],
                           uint2 at [[thread_position_in_grid]]) {
  const uint runs = p.k / RUN, first = at.x * TILE_ROWS, column = at.y * TILE_COLUMNS;
  const uint strips = (min(TILE_ROWS, p.m - first) + STRIP - 1) / STRIP;
  Unit totals[TILE_ROWS / STRIP][STRIP][VECTORS] = {};
  for (ulong run = 0; run < runs; run++) {
    const ulong place = at.y * runs + run, beside = place * SCALES_OF_RUN * VECTORS;
    for (uint strip = 0; strip < strips; strip++) {
      Packed x[STRIP];
#pragma unroll
      for (uint r = 0; r < STRIP; r++) {
        const ulong row = min(first + strip * STRIP + r, p.m - 1);
        x[r] = {codes + row * runs, steps + row * runs, sums + row * runs};
      }
      add_strip(totals[strip], x, run, pairs + place * PAIRS * VECTORS, scales + beside,
                offsets + beside);
    }
  }
  for (uint r = 0; r < min(TILE_ROWS, p.m - first); r++) {
    thread const float* row = reinterpret_cast<thread const float*>(totals[r / STRIP][r % STRIP]);
    const ulong start = ulong(first + r) * p.stride + column;
    for (uint i = 0; i < min(TILE_COLUMNS, p.n - column); i++) put(out, start + i, row[i]);
  }
}
