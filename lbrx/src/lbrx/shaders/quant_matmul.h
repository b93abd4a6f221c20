// Products with a quantized matrix in tiles of 8 by 8: its values are decoded in threadgroup memory.
#pragma once
#include "quant_schemes.h"

struct Product {
  uint m, n, k;
};

constant constexpr uint SIMD = 32;
constant constexpr uint TILE_M = 32, TILE_N = 64, DEPTH = 32;  // of a threadgroup
constant constexpr uint OWN_M = TILE_M / 2, OWN_N = TILE_N / 2; // of each of 2 by 2 simdgroups
constant constexpr uint THREADS = 4 * SIMD;
constant constexpr uint PADDING = 16;  // bytes after a row, to avoid bank conflicts

template <typename T, typename C>
kernel void matmul_tiles(device const uchar* data [[buffer(0)]],
                         device const void* scales [[buffer(1)]],
                         device const void* offsets [[buffer(2)]],
                         device const char* book [[buffer(3)]], device const void* x [[buffer(4)]],
                         device void* out [[buffer(5)]], constant Product& p [[buffer(6)]],
                         uint2 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint leading = DEPTH + PADDING / sizeof(T);
  constexpr uint STAGED = (TILE_M + TILE_N) * leading * sizeof(T);
  constexpr uint STRIPS = 4 * 8 * OWN_N * sizeof(float);
  threadgroup float memory[(STAGED > STRIPS ? STAGED : STRIPS) / sizeof(float)];
  threadgroup T* left = (threadgroup T*)memory;
  threadgroup T* right = left + TILE_M * leading;

  const uint row = group.y * TILE_M, column = group.x * TILE_N;
  const uint rows = min(p.m - row, TILE_M), columns = min(p.n - column, TILE_N);
  const uint blocks = p.k / C::elements(), units = C::elements() / UNIT;
  const uint own_row = simdgroup / 2 * OWN_M, own_column = simdgroup % 2 * OWN_N;
  // A thread decodes sixteen values of one row of the weight.
  const uint weight_row = thread_index / 2, half_row = thread_index % 2;
  const ulong first_block = ulong(column + min(weight_row, columns - 1)) * blocks;

  simdgroup_matrix<float, 8, 8> sums[OWN_M / 8][OWN_N / 8];
  for (uint i = 0; i < OWN_M / 8; i++)
    for (uint j = 0; j < OWN_N / 8; j++) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

  for (uint k = 0; k < p.k; k += DEPTH) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = thread_index; i < TILE_M * DEPTH; i += THREADS) {
      const uint r = i / DEPTH, c = i % DEPTH;
      const bool inside = r < rows && k + c < p.k;
      left[r * leading + c] = inside ? T(element(VALUES, x, ulong(row + r) * p.k + k + c)) : T(0);
    }
    const uint unit = k / UNIT + half_row;
    threadgroup T* place = right + weight_row * leading + half_row * UNIT;
    if (unit < p.k / UNIT && weight_row < columns) {
      const Block block = block_at<C>({data, scales, offsets, book}, first_block + unit / units);
      const float scale = C::scale(block, unit % units), offset = C::offset(block, unit % units);
      for (uint i = 0; i < UNIT; i++) place[i] = T(scale * float(C::code(block, unit % units, i)) + offset);
    } else {
      for (uint i = 0; i < UNIT; i++) place[i] = T(0);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint d = 0; d < DEPTH; d += 8) {
      simdgroup_matrix<T, 8, 8> a[OWN_M / 8], b[OWN_N / 8];
      for (uint i = 0; i < OWN_M / 8; i++)
        simdgroup_load(a[i], left + (own_row + i * 8) * leading + d, leading);
      for (uint j = 0; j < OWN_N / 8; j++)
        simdgroup_load(b[j], right + (own_column + j * 8) * leading + d, leading, ulong2(0), true);
      for (uint i = 0; i < OWN_M / 8; i++)
        for (uint j = 0; j < OWN_N / 8; j++)
          simdgroup_multiply_accumulate(sums[i][j], a[i], b[j], sums[i][j]);
    }
  }

  // Eight rows at a time through threadgroup memory, where the position of each element is known.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* strip = memory + simdgroup * 8 * OWN_N;
  for (uint i = 0; i < OWN_M / 8; i++) {
    for (uint j = 0; j < OWN_N / 8; j++) simdgroup_store(sums[i][j], strip + j * 8, OWN_N);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = lane; e < 8 * OWN_N; e += SIMD) {
      const uint r = own_row + i * 8 + e / OWN_N, c = own_column + e % OWN_N;
      if (r < rows && c < columns) put(out, ulong(row + r) * p.n + column + c, strip[e]);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
