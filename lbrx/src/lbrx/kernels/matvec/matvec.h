// Products of a few rows with a matrix, which is read once: memory bandwidth is the limit.
#pragma once
#include "matmul.h"
#include "records/matvec.h"

constant constexpr uint MOST_ROWS = 8;

inline ulong row_start(constant ProductRecord& p, uint row) { return min(row, p.m - 1) * p.x_row; }

template <typename T>
inline void put(device T* out, device const T* bias, constant ProductRecord& p, uint member, uint row,
                uint column, float sum) {
  if (row >= p.m) return;
  const T added = bias[row * p.bias_row + column * p.bias_column];
  out += ulong(member) * p.m * p.n;
  out[row * p.out_row + column * p.out_column] = finished<T>(sum, added);
}

// ---- one thread per group of columns ----

constant constexpr uint STRIP = 1024;  // columns of a thread, at most
constant constexpr uint STRIP_STEP = 8;

// A row-major matrix: sums of neighbouring columns are vector lanes, in order of k.
template <typename T>
kernel void matvec_strips_serial(device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
                                 device const T* bias [[buffer(2)]], device T* out [[buffer(3)]],
                                 constant ProductRecord& p [[buffer(4)]],
                                 uint2 at [[thread_position_in_grid]],
                                 uint2 size [[threads_per_grid]]) {
  const uint strip = (p.n + size.x - 1) / size.x;
  const uint first = min(at.x * strip, p.n), columns = min(strip, p.n - first);
  const ulong2 start = batch_start(p, at.y);
  x += start.x;
  y += start.y + first;
  float sums[MOST_ROWS][STRIP];
#pragma unroll
  for (uint r = 0; r < ROWS; r++)
    for (uint j = 0; j < columns; j++) sums[r][j] = 0;
  const uint whole = p.k / STRIP_STEP * STRIP_STEP;
  for (uint k = 0; k < whole; k += STRIP_STEP) {
    device const T* row = y + k * p.y_row;
    float left[MOST_ROWS][STRIP_STEP];
#pragma unroll
    for (uint r = 0; r < ROWS; r++)
#pragma unroll
      for (uint s = 0; s < STRIP_STEP; s++)
        left[r][s] = wide(x[row_start(p, r) + (k + s) * p.x_column]);
    for (uint j = 0; j < columns; j++) {
#pragma unroll
      for (uint r = 0; r < ROWS; r++) {
        float sum = sums[r][j];
#pragma unroll
        for (uint s = 0; s < STRIP_STEP; s++)
          sum = fma(left[r][s], wide(row[s * p.y_row + j]), sum);
        sums[r][j] = sum;
      }
    }
  }
  for (uint k = whole; k < p.k; k++) {
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
      const float left = wide(x[row_start(p, r) + k * p.x_column]);
      for (uint j = 0; j < columns; j++)
        sums[r][j] = fma(left, wide(y[k * p.y_row + j]), sums[r][j]);
    }
  }
#pragma unroll
  for (uint r = 0; r < ROWS; r++)
    for (uint j = 0; j < columns; j++) put(out, bias, p, at.y, r, first + j, sums[r][j]);
}

// ---- simdgroups ----

constant constexpr uint SIMD = 32;

template <typename T>
inline float4 four(device const T* from) {
  if (ALIGNED) return float4(*(device const vec<T, 4>*)from);
  return float4(from[0], from[1], from[2], from[3]);
}

constant constexpr uint SIMD_COLUMNS = 4;  // of a simdgroup
constant constexpr uint DOT_SIMDGROUPS = 2;

// A column-major matrix: the lanes of a simdgroup read along four columns.
template <typename T>
kernel void matvec_dots_simd(device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
                             device const T* bias [[buffer(2)]], device T* out [[buffer(3)]],
                             constant ProductRecord& p [[buffer(4)]],
                             uint2 group [[threadgroup_position_in_grid]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]]) {
  const uint first = (group.x * DOT_SIMDGROUPS + simdgroup) * SIMD_COLUMNS;
  if (first >= p.n) return;
  const ulong2 start = batch_start(p, group.y);
  x += start.x;
  device const T* columns[SIMD_COLUMNS];
  for (uint c = 0; c < SIMD_COLUMNS; c++)
    columns[c] = y + start.y + min(first + c, p.n - 1) * p.y_column;
  float sums[MOST_ROWS][SIMD_COLUMNS] = {};
  const uint whole = p.k / 4 * 4;
  for (uint k = lane * 4; k < whole; k += SIMD * 4) {
    float4 right[SIMD_COLUMNS];
    for (uint c = 0; c < SIMD_COLUMNS; c++) right[c] = four(columns[c] + k);
    for (uint r = 0; r < ROWS; r++) {
      device const T* row = x + row_start(p, r) + k * p.x_column;
      float4 left;
      for (uint i = 0; i < 4; i++) left[i] = wide(row[i * p.x_column]);
      for (uint c = 0; c < SIMD_COLUMNS; c++) sums[r][c] += dot(left, right[c]);
    }
  }
  if (whole + lane < p.k) {
    for (uint r = 0; r < ROWS; r++)
      for (uint c = 0; c < SIMD_COLUMNS; c++)
        sums[r][c] += wide(x[row_start(p, r) + (whole + lane) * p.x_column]) *
                      wide(columns[c][whole + lane]);
  }
  for (uint r = 0; r < ROWS; r++) {
    for (uint c = 0; c < SIMD_COLUMNS; c++) {
      const float sum = simd_sum(sums[r][c]);
      if (lane == 0 && first + c < p.n) put(out, bias, p, group.y, r, first + c, sum);
    }
  }
}

constant constexpr uint STRIP_COLUMNS = 32;  // of a threadgroup: eight threads, four columns each
constant constexpr uint STRIP_LINES = 32;    // rows of y at a time

// A row-major matrix: a threadgroup reads down a strip of columns, then adds its partial sums.
template <typename T>
kernel void matvec_strips_simd(device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
                               device const T* bias [[buffer(2)]], device T* out [[buffer(3)]],
                               constant ProductRecord& p [[buffer(4)]],
                               uint2 group [[threadgroup_position_in_grid]],
                               uint index [[thread_index_in_threadgroup]]) {
  threadgroup float lines[STRIP_LINES][STRIP_COLUMNS];
  const uint line = index / (STRIP_COLUMNS / 4), own = index % (STRIP_COLUMNS / 4) * 4;
  const uint column = group.x * STRIP_COLUMNS + own;
  const ulong2 start = batch_start(p, group.y);
  x += start.x;
  y += start.y + column;
  float4 sums[MOST_ROWS] = {};
  const uint columns = column < p.n ? min(p.n - column, 4u) : 0;
  for (uint k = line; columns > 0 && k < p.k; k += STRIP_LINES) {
    device const T* row = y + k * p.y_row;
    float4 right = 0;
    if (columns == 4) right = four(row);
    else for (uint c = 0; c < columns; c++) right[c] = wide(row[c]);
    for (uint r = 0; r < ROWS; r++) sums[r] += wide(x[row_start(p, r) + k * p.x_column]) * right;
  }
  for (uint r = 0; r < ROWS; r++) {
    for (uint c = 0; c < 4; c++) lines[line][own + c] = sums[r][c];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint target = group.x * STRIP_COLUMNS + index;
    if (index < STRIP_COLUMNS && target < p.n) {
      float sum = 0;
      for (uint i = 0; i < STRIP_LINES; i++) sum += lines[i][index];
      put(out, bias, p, group.y, r, target, sum);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
