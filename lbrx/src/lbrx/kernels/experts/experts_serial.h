// Products with experts on CPUs: a thread decodes some rows of an expert once for all results of a run.
#pragma once
#include "experts.h"
#include "wide.h"

constant constexpr uint TILE_COLUMNS = 16;  // rows of an expert, of a thread
constant constexpr uint STRIP = 4;          // of them at a time, and rows of x
constant constexpr uint RUN_RESULTS = 32;   // of a run, at most
constant constexpr uint DEPTH = 1024;       // values of a row that stay in the first-level cache

inline Lanes lanes_at(device const void* x, ulong at) {
  if (VALUES == HALF) return line_at(static_cast<device const half*>(x) + at, 0);
  if (VALUES == BFLOAT) return line_at(static_cast<device const bfloat*>(x) + at, 0);
  return line_at(static_cast<device const float*>(x) + at, 0);
}

// A few rows of x, which begin at `starts`, times a strip of an expert's rows.
template <uint ROWS>
inline void add_strip(thread float (*sums)[STRIP], device const void* x, thread const ulong* starts,
                      thread const float (&strip)[STRIP][DEPTH], uint depth) {
  Lanes lanes[ROWS][STRIP] = {};
  const uint whole = depth / LINE * LINE;
  for (uint i = 0; i < whole; i += LINE) {
    Lanes right[STRIP];
#pragma unroll
    for (uint c = 0; c < STRIP; c++) right[c] = *reinterpret_cast<thread const Lanes*>(strip[c] + i);
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
      const Lanes left = lanes_at(x, starts[r] + i);
#pragma unroll
      for (uint c = 0; c < STRIP; c++) lanes[r][c] = fused<LINE>(left, right[c], lanes[r][c]);
    }
  }
#pragma unroll
  for (uint r = 0; r < ROWS; r++) {
#pragma unroll
    for (uint c = 0; c < STRIP; c++) {
      float sum = sum_of(lanes[r][c]);
      for (uint i = whole; i < depth; i++)
        sum = fma(element(VALUES, x, starts[r] + i), strip[c][i], sum);
      sums[r][c] += sum;
    }
  }
}

template <typename R>
kernel void experts_serial(device const uchar* data [[buffer(0)]],
                           device const void* scales [[buffer(1)]],
                           device const void* offsets [[buffer(2)]],
                           device const char* book [[buffer(3)]],
                           device const void* x [[buffer(4)]], device void* out [[buffer(5)]],
                           device const int* indices [[buffer(6)]],
                           device const uint* order [[buffer(7)]],
                           device const ExpertRun* runs [[buffer(8)]],
                           constant ExpertsRecord& p [[buffer(9)]],
                           uint2 at [[thread_position_in_grid]]) {
  const Sent sent = {indices, order, runs};
  const ExpertRun run = sent.run(p, at.y);
  if (run.length == 0) return;
  const Weight weight = {data, scales, offsets, book};
  const ulong expert = ulong(run.expert) * p.n;
  uint results[RUN_RESULTS];
  // Rows beyond the last repeat it.
  for (uint r = 0; r < RUN_RESULTS; r++)
    results[r] = sent.result(p, run.first + min(r, run.length - 1));
  const uint end = min((at.x + 1) * TILE_COLUMNS, p.n);
  for (uint column = at.x * TILE_COLUMNS; column < end; column += STRIP) {
    alignas(64) float strip[STRIP][DEPTH];
    float sums[RUN_RESULTS][STRIP] = {};
    for (uint k = 0; k < p.k; k += DEPTH) {
      const uint depth = min(DEPTH, p.k - k);
      for (uint c = 0; c < STRIP; c++) {
        const ulong row = expert + min(column + c, p.n - 1);
        for (uint i = 0; i < depth; i += UNIT) R::read(weight, row, p.k, (k + i) / UNIT, strip[c] + i);
      }
      if (run.length == 1) {
        const ulong start = x_start(p, results[0]) + k;
        add_strip<1>(sums, x, &start, strip, depth);
        continue;
      }
      for (uint first = 0; first < run.length; first += STRIP) {
        ulong starts[STRIP];
        for (uint r = 0; r < STRIP; r++) starts[r] = x_start(p, results[first + r]) + k;
        add_strip<STRIP>(sums + first, x, starts, strip, depth);
      }
    }
    for (uint r = 0; r < run.length; r++)
      for (uint c = 0; c < min(STRIP, end - column); c++)
        put(out, ulong(results[r]) * p.n + column + c, sums[r][c]);
  }
}
