// Matrix products in tiles of 8 by 8 that a simdgroup multiplies: for GPUs with simdgroup_matrix.
#pragma once
#include "matmul.h"

constant bool X_TRANSPOSED [[function_constant(1)]];
constant bool Y_TRANSPOSED [[function_constant(2)]];
constant bool WHOLE [[function_constant(3)]];  // sizes are multiples of the tiles, and rows are aligned
constant uint SWIZZLE [[function_constant(4)]];

constant constexpr uint SIMD = 32;
constant constexpr uint SIDE = 2;               // a threadgroup is 2 by 2 simdgroups
constant constexpr uint THREADS = SIDE * SIDE * SIMD;
constant constexpr uint DEPTH = 16;             // of k in threadgroup memory at a time
constant constexpr uint PADDING = 16;           // bytes after a row, to avoid bank conflicts

// A tile of a matrix in threadgroup memory, zero-padded.
template <typename T, uint ROWS, uint COLUMNS>
struct Tile {
  static constant constexpr uint leading = COLUMNS + PADDING / sizeof(T);
  static constant constexpr uint bytes = ROWS * leading * sizeof(T);

  static void load(threadgroup T* to, device const T* from, ulong stride, uint rows, uint columns,
                   uint thread_index) {
    for (uint i = thread_index * 4; i < ROWS * COLUMNS; i += THREADS * 4) {
      const uint row = i / COLUMNS, column = i % COLUMNS;
      threadgroup T* place = to + row * leading + column;
      device const T* source = from + row * stride + column;
      if (WHOLE) {
        *(threadgroup vec<T, 4>*)place = *(device const vec<T, 4>*)source;
      } else {
        for (uint c = 0; c < 4; c++)
          place[c] = row < rows && column + c < columns ? source[c] : T(0);
      }
    }
  }
};

// An 8 by 8 matrix at a row and column of a tile, which may be stored transposed.
template <typename Plain, typename Transposed, typename T>
inline void load_matrix(thread simdgroup_matrix<T, 8, 8>& matrix, threadgroup const T* tile,
                        uint row, uint column, bool transposed) {
  if (transposed)
    simdgroup_load(matrix, tile + column * Transposed::leading + row, Transposed::leading,
                   ulong2(0), true);
  else
    simdgroup_load(matrix, tile + row * Plain::leading + column, Plain::leading);
}

// A threadgroup computes SIZE by SIZE results of one batch member from a part of k, `depth` long; its z
// is the member and the part. `out` has a plane for each part.
template <typename T, typename Out, uint SIZE>
kernel void matmul_tiles(device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
                         device const Out* bias [[buffer(2)]], device Out* out [[buffer(3)]],
                         constant Product& p [[buffer(4)]], constant uint& depth [[buffer(5)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint3 groups [[threadgroups_per_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint OWN = SIZE / SIDE;   // rows and columns of a simdgroup
  constexpr uint COUNT = OWN / 8;     // matrices along each
  using Rows = Tile<T, SIZE, DEPTH>;
  using Columns = Tile<T, DEPTH, SIZE>;
  constexpr uint STAGED = Rows::bytes > Columns::bytes ? Rows::bytes : Columns::bytes;
  constexpr uint STRIPS = SIDE * SIDE * 8 * OWN * sizeof(float);
  constexpr uint BYTES = 2 * STAGED > STRIPS ? 2 * STAGED : STRIPS;
  threadgroup float memory[BYTES / sizeof(float)];
  threadgroup T* left = (threadgroup T*)memory;
  threadgroup T* right = left + STAGED / sizeof(T);

  // Neighbouring threadgroups share operands: tiles are numbered down a few rows, then to the right.
  const uint row = ((group.y << SWIZZLE) + (group.x & ((1u << SWIZZLE) - 1))) * SIZE;
  const uint column = (group.x >> SWIZZLE) * SIZE;
  if (row >= p.m || column >= p.n) return;
  const uint parts = (p.k + depth - 1) / depth;
  const uint member = group.z / parts, part = group.z % parts;
  const ulong2 start = batch_start(p, member);
  x += start.x + row * p.x_row;
  y += start.y + column * p.y_column;
  const uint rows = p.m - row, columns = p.n - column;
  const uint own_row = simdgroup / SIDE * OWN, own_column = simdgroup % SIDE * OWN;

  simdgroup_matrix<float, 8, 8> sums[COUNT][COUNT];
  for (uint i = 0; i < COUNT; i++)
    for (uint j = 0; j < COUNT; j++) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

  const uint end = min(p.k, (part + 1) * depth);
  for (uint k = part * depth; k < end; k += DEPTH) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device const T* from_x = x + k * p.x_column;
    device const T* from_y = y + k * p.y_row;
    if (X_TRANSPOSED) Columns::load(left, from_x, p.x_column, end - k, rows, thread_index);
    else Rows::load(left, from_x, p.x_row, rows, end - k, thread_index);
    if (Y_TRANSPOSED) Rows::load(right, from_y, p.y_column, columns, end - k, thread_index);
    else Columns::load(right, from_y, p.y_row, end - k, columns, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint d = 0; d < DEPTH; d += 8) {
      simdgroup_matrix<T, 8, 8> a[COUNT], b[COUNT];
#pragma unroll
      for (uint i = 0; i < COUNT; i++) {
        load_matrix<Rows, Columns>(a[i], left, own_row + i * 8, d, X_TRANSPOSED);
        load_matrix<Columns, Rows>(b[i], right, d, own_column + i * 8, Y_TRANSPOSED);
      }
#pragma unroll
      for (uint i = 0; i < COUNT; i++)
#pragma unroll
        for (uint j = 0; j < COUNT; j++)
          simdgroup_multiply_accumulate(sums[i][j], a[i], b[j], sums[i][j]);
    }
  }

  // Eight rows at a time through threadgroup memory, where the position of each element is known.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* strip = memory + simdgroup * 8 * OWN;
  out += (ulong(part) * (groups.z / parts) + member) * p.m * p.n;
#pragma unroll
  for (uint i = 0; i < COUNT; i++) {
#pragma unroll
    for (uint j = 0; j < COUNT; j++) simdgroup_store(sums[i][j], strip + j * 8, OWN);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = lane; e < 8 * OWN; e += SIMD) {
      const uint r = own_row + i * 8 + e / OWN, c = own_column + e % OWN;
      if (r < rows && c < columns)
        out[(ulong(row) + r) * p.n + column + c] =
            finished<Out>(strip[e], bias[(column + c) * p.bias_column]);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
