// Products of a few rows with a column-major matrix whose columns are aligned to 16 bytes. Each
// thread keeps its part of x in registers and reads the same part of many columns.
#pragma once
#include "matvec.h"

constant uint BATCH [[function_constant(3)]];    // columns that a thread reads at a time
constant uint TILE [[function_constant(4)]];     // columns between sums over a threadgroup
constant uint TILES [[function_constant(5)]];    // of a threadgroup
constant uint VECTORS [[function_constant(6)]];  // that a thread reads of a column
constant constexpr uint MOST_BATCH = 4, MOST_TILE = 8, MOST_VECTORS = 8, MOST_THREADS = 512;
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

// This thread's vectors of some columns; columns beyond the last repeat it.
inline void load_lines(device const uint4* y, uint first, uint columns, ulong stride, uint own,
                       uint threads, uint vectors, thread uint4 (&words)[MOST_BATCH][MOST_VECTORS]) {
#pragma unroll
  for (uint b = 0; b < BATCH; b++) {
    device const uint4* column = y + min(first + b, columns - 1) * stride;
#pragma unroll
    for (uint v = 0; v < VECTORS; v++) {
      const uint at = own + v * threads;
      words[b][v] = at < vectors ? column[at] : uint4(0);
    }
  }
}

template <typename T>
inline void multiply_lines(thread const uint4 (&words)[MOST_BATCH][MOST_VECTORS],
                           thread const float (&own)[MOST_VECTORS][16 / sizeof(T)], bool more,
                           uint index, threadgroup float (*parts)[MOST_THREADS]) {
#pragma unroll
  for (uint b = 0; b < BATCH; b++) {
    float sum = more ? parts[b][index] : 0.0f;
#pragma unroll
    for (uint v = 0; v < VECTORS; v++) {
      float right[16 / sizeof(T)];
      spread(words[b][v], static_cast<thread T*>(nullptr), right);
#pragma unroll
      for (uint i = 0; i < 16 / sizeof(T); i++) sum = fma(own[v][i], right[i], sum);
    }
    parts[b][index] = sum;
  }
}

template <typename T>
[[max_total_threads_per_threadgroup(512)]]
kernel void matvec_lines_simd(device const T* x [[buffer(0)]], device const uint4* y [[buffer(1)]],
                              device const T* bias [[buffer(2)]], device T* out [[buffer(3)]],
                              constant Product& p [[buffer(4)]],
                              uint2 group [[threadgroup_position_in_grid]],
                              uint index [[thread_index_in_threadgroup]],
                              uint2 size [[threads_per_threadgroup]]) {
  constexpr uint PER = 16 / sizeof(T);
  threadgroup float parts[MOST_TILE][MOST_THREADS];
  const uint threads = size.x, vectors = p.k / PER, span = threads * VECTORS;
  const uint end = min((group.x + 1) * TILES * TILE, p.n);
  const ulong2 start = batch_start(p, group.y);
  const ulong stride = p.y_column / PER, x_step = p.x_column;
  x += start.x;
  y += start.y / PER;
  float own[MOST_VECTORS][PER];
  uint4 words[MOST_BATCH][MOST_VECTORS];
  for (uint tile = 0; tile < TILES; tile++) {
    const uint first = (group.x * TILES + tile) * TILE;
    if (first >= end) break;
    for (uint from = 0; from < vectors; from += span) {
      const bool fresh = vectors > span || tile == 0;
      if (fresh) {
#pragma unroll
        for (uint v = 0; v < VECTORS; v++) {
          const uint at = from + v * threads + index;
#pragma unroll
          for (uint i = 0; i < PER; i++)
            own[v][i] = at < vectors ? wide(x[(at * PER + i) * x_step]) : 0.0f;
        }
      }
      if (fresh) load_lines(y, first, end, stride, from + index, threads, vectors, words);
      // Columns are under way while those before them are multiplied. Of a chunk's last columns
      // there is no next: they are read again, from the cache.
      for (uint line = 0; line < TILE; line += 2 * BATCH) {
        uint4 others[MOST_BATCH][MOST_VECTORS];
        load_lines(y, first + line + BATCH, end, stride, from + index, threads, vectors, others);
        multiply_lines<T>(words, own, from != 0, index, parts + line);
        const uint next = vectors <= span || line + 2 * BATCH < TILE ? 2 * BATCH : 0;
        load_lines(y, first + line + next, end, stride, from + index, threads, vectors, words);
        multiply_lines<T>(others, own, from != 0, index, parts + line + BATCH);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint line = index / ADDING; line < TILE; line += threads / ADDING) {
      float sum = 0;
      for (uint i = index % ADDING; i < threads; i += ADDING) sum += parts[line][i];
#pragma unroll
      for (uint step = ADDING / 2; step; step /= 2) sum += simd_shuffle_xor(sum, step);
      if (index % ADDING == 0 && first + line < end) put(out, bias, p, group.y, 0, first + line, sum);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
