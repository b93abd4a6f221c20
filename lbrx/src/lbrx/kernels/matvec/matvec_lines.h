// Products of one row with a column-major matrix whose columns are aligned to 16 bytes: a threadgroup
// reads along four columns.
#pragma once
#include "matvec.h"
#include "records/matvec_lines.h"

constant constexpr uint COLUMNS = 4, MOST_VECTORS = 4, MOST_THREADS = 512;
constant constexpr uint ADDING = 16;  // threads that add up a column

// Elements of 16 bytes.
inline void spread(uint4 bits, thread half*, thread float* to) {
  for (uint i = 0; i < 4; i++) {
    const half2 pair = as_type<half2>(bits[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}
inline void spread(uint4 bits, thread bfloat*, thread float* to) {
  for (uint i = 0; i < 4; i++) {
    to[2 * i] = as_type<float>(bits[i] << 16);
    to[2 * i + 1] = as_type<float>(bits[i] & 0xffff0000u);
  }
}
inline void spread(uint4 bits, thread float*, thread float* to) {
  for (uint i = 0; i < 4; i++) to[i] = as_type<float>(bits[i]);
}

template <typename T>
[[max_total_threads_per_threadgroup(512)]]
kernel void matvec_lines_simd(device const T* x [[buffer(0)]], device const uint4* y [[buffer(1)]],
                              device const T* bias [[buffer(2)]], device T* out [[buffer(3)]],
                              constant ProductRecord& p [[buffer(4)]],
                              uint2 group [[threadgroup_position_in_grid]],
                              uint index [[thread_index_in_threadgroup]],
                              uint2 size [[threads_per_threadgroup]]) {
  constexpr uint PER = 16 / sizeof(T);
  threadgroup float parts[COLUMNS][MOST_THREADS];
  const uint threads = size.x, vectors = p.k / PER, first = group.x * COLUMNS;
  const ulong2 start = batch_start(p, group.y);
  const ulong stride = p.y_column / PER, x_step = p.x_column;
  x += start.x;
  y += start.y / PER;
  float sums[COLUMNS] = {};
  for (uint from = 0; from < vectors; from += threads * VECTORS) {
    // All vectors are under way before the first is used. Columns beyond the last repeat it.
    uint4 words[COLUMNS][MOST_VECTORS];
#pragma unroll
    for (uint c = 0; c < COLUMNS; c++) {
      device const uint4* column = y + min(first + c, p.n - 1) * stride;
#pragma unroll
      for (uint v = 0; v < VECTORS; v++) {
        const uint at = from + v * threads + index;
        words[c][v] = at < vectors ? column[at] : uint4(0);
      }
    }
#pragma unroll
    for (uint v = 0; v < VECTORS; v++) {
      const uint at = from + v * threads + index;
      float own[PER];
#pragma unroll
      for (uint i = 0; i < PER; i++)
        own[i] = at < vectors ? wide(x[(at * PER + i) * x_step]) : 0.0f;
#pragma unroll
      for (uint c = 0; c < COLUMNS; c++) {
        float right[PER];
        spread(words[c][v], static_cast<thread T*>(nullptr), right);
#pragma unroll
        for (uint i = 0; i < PER; i++) sums[c] = fma(own[i], right[i], sums[c]);
      }
    }
  }
#pragma unroll
  for (uint c = 0; c < COLUMNS; c++) parts[c][index] = sums[c];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint c = index / ADDING; c < COLUMNS; c += threads / ADDING) {
    float sum = 0;
    for (uint i = index % ADDING; i < threads; i += ADDING) sum += parts[c][i];
#pragma unroll
    for (uint step = ADDING / 2; step; step /= 2) sum += simd_shuffle_xor(sum, step);
    if (index % ADDING == 0 && first + c < p.n) put(out, bias, p, group.y, 0, first + c, sum);
  }
}
