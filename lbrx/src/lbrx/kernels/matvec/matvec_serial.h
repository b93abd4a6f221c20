// Products of a few rows with a column-major matrix, on CPUs.
#pragma once
#include "matvec.h"
#include "wide.h"

constant constexpr uint DOT_COLUMNS = 16;  // of a thread
constant constexpr uint CHAINS = 4;        // of independent sums, to hide latency
constant constexpr uint LEFT = 4096;       // elements of x that stay in the first-level cache

// Up to four rows of x times a column. Columns are read in order, which memory is fastest at.
template <typename T>
inline void add_dots(thread float* sums, uint rows, thread const float* left, uint stride,
                     device const T* column, uint depth) {
  const uint chains = CHAINS / rows, step = chains * LINE;
  Lanes lanes[CHAINS] = {};
  for (uint i = 0; i + step <= depth; i += step) {
#pragma unroll
    for (uint c = 0; c < chains; c++) {
      const Lanes y = line_at(column + i, c);
#pragma unroll
      for (uint r = 0; r < rows; r++) {
        thread const Lanes* x = reinterpret_cast<thread const Lanes*>(left + r * stride + i);
        lanes[r * chains + c] = fused<LINE>(x[c], y, lanes[r * chains + c]);
      }
    }
  }
#pragma unroll
  for (uint r = 0; r < rows; r++) {
    float sum = 0;
    for (uint i = depth / step * step; i < depth; i++)
      sum = fma(left[r * stride + i], wide(column[i]), sum);
#pragma unroll
    for (uint c = 1; c < chains; c++) lanes[r * chains] += lanes[r * chains + c];
    sums[r * DOT_COLUMNS] += sum_of(lanes[r * chains]) + sum;
  }
}

template <typename T>
kernel void matvec_dots_serial(device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
                               device const T* bias [[buffer(2)]], device T* out [[buffer(3)]],
                               constant ProductRecord& p [[buffer(4)]],
                               uint2 at [[thread_position_in_grid]]) {
  const uint first = at.x * DOT_COLUMNS, columns = min(DOT_COLUMNS, p.n - first);
  const ulong2 start = batch_start(p, at.y);
  const uint block = LEFT / ROWS, together = min(ROWS, CHAINS);
  alignas(64) float left[LEFT];
  float sums[MOST_ROWS][DOT_COLUMNS] = {};
  for (uint k = 0; k < p.k; k += block) {
    const uint depth = min(block, p.k - k);
    for (uint r = 0; r < ROWS; r++) {
      device const T* row = x + start.x + row_start(p, r) + k * p.x_column;
      for (uint i = 0; i < depth; i++) left[r * block + i] = wide(row[i * p.x_column]);
    }
    for (uint c = 0; c < columns; c++) {
      device const T* column = y + start.y + (first + c) * p.y_column + k;
#pragma unroll
      for (uint r = 0; r < ROWS; r += together)
        add_dots(&sums[r][c], together, left + r * block, block, column, depth);
    }
  }
  for (uint r = 0; r < ROWS; r++)
    for (uint c = 0; c < columns; c++) put(out, bias, p, at.y, r, first + c, sums[r][c]);
}
