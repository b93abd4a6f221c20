// Tiles of matrices that a simdgroup multiplies, with sides that are multiples of 16: arrays of
// simdgroup_matrix, or the tensor cores of an NVIDIA GPU under softmetal. Copies into threadgroup
// memory may go on in the background there.
//
// A lane knows which elements of the sums it holds: of every 8 by 8 block two neighbours, in the row
// and column that `row()` and `column()` say. They are the first two of the 64 that Apple's type of
// thread_elements() has, and subscripts are all that it offers. Apple does not document the order;
// MLX relies on it too, and it is the same from the M1 on.
#pragma once
#include <metal_stdlib>
using namespace metal;

#if __has_include(<softmetal/tiles>)
#include <softmetal/tiles>
#define LBRX_SOFTMETAL_TILES
#endif

namespace tile {

// What the target has for products of T: tensor cores, and those that four simdgroups use together.
#ifdef LBRX_SOFTMETAL_TILES
template <typename T>
struct Target {
  static constant constexpr bool TENSOR = softmetal::has_tensor_tiles<T>;
  static constant constexpr bool WARPGROUPS = softmetal::has_warpgroup_tiles<T>;
  static constant constexpr bool ASYNC = softmetal::has_async_copies;
};
#else
template <typename T>
struct Target {
  static constant constexpr bool TENSOR = false, WARPGROUPS = false, ASYNC = false;
};
#endif

// The tiling of a product: a threadgroup has DOWN by ACROSS simdgroups, each with ROWS by COLUMNS
// results. `DEPTH` of k is in threadgroup memory at a time, `STAGES` times.
template <uint DOWN_, uint ACROSS_, uint ROWS_, uint COLUMNS_, uint DEPTH_, uint STAGES_>
struct Tiling {
  static constant constexpr uint DOWN = DOWN_, ACROSS = ACROSS_, ROWS = ROWS_, COLUMNS = COLUMNS_;
  static constant constexpr uint DEPTH = DEPTH_, STAGES = STAGES_;
  static constant constexpr uint M = DOWN * ROWS, N = ACROSS * COLUMNS;
  static constant constexpr uint THREADS = DOWN * ACROSS * 32;
};

// ---- tiles of a simdgroup ----

// The sums of a product of tiles of T.
template <typename T, uint ROWS, uint COLUMNS, bool TENSOR = Target<T>::TENSOR>
struct Sums {
  simdgroup_matrix<float, 8, 8> blocks[ROWS / 8][COLUMNS / 8];

  // The pair in block (i, j).
  float2 pair(uint i, uint j) const {
    return float2(blocks[i][j].thread_elements()[0], blocks[i][j].thread_elements()[1]);
  }
  void set(uint i, uint j, float2 pair) {
    blocks[i][j].thread_elements()[0] = pair.x;
    blocks[i][j].thread_elements()[1] = pair.y;
  }
  // A lane's place in every block: its row, and the first of its two columns.
  static uint row(uint lane) { return (lane >> 4 & 1) * 4 + (lane >> 2 & 1) * 2 + (lane >> 1 & 1); }
  static uint column(uint lane) { return (lane >> 3 & 1) * 4 + (lane & 1) * 2; }
  // The maximum and the sum over the lanes that hold a row.
  static float row_max(float x) {
    x = max(x, simd_shuffle_xor(x, 1));
    return max(x, simd_shuffle_xor(x, 8));
  }
  static float row_sum(float x) {
    x += simd_shuffle_xor(x, 1);
    return x + simd_shuffle_xor(x, 8);
  }
};

// An operand. Memory holds rows `leading` elements apart, of the tile or of its transpose.
template <typename T, uint ROWS, uint COLUMNS>
struct Operand {
  simdgroup_matrix<T, 8, 8> blocks[ROWS / 8][COLUMNS / 8];

  void load(threadgroup const T* from, uint leading, bool transposed) {
#pragma unroll
    for (uint i = 0; i < ROWS / 8; i++)
#pragma unroll
      for (uint j = 0; j < COLUMNS / 8; j++) {
        threadgroup const T* block =
            from + (transposed ? j * 8 * leading + i * 8 : i * 8 * leading + j * 8);
        simdgroup_load(blocks[i][j], block, leading, ulong2(0), transposed);
      }
  }
};

template <typename T, uint ROWS, uint DEPTH, bool TENSOR = Target<T>::TENSOR>
struct Left : Operand<T, ROWS, DEPTH> {
  // The n-th part of the depth, PART long.
  template <uint PART> Left<T, ROWS, PART, TENSOR> slice(uint n) const {
    Left<T, ROWS, PART, TENSOR> found;
#pragma unroll
    for (uint i = 0; i < ROWS / 8; i++)
#pragma unroll
      for (uint j = 0; j < PART / 8; j++) found.blocks[i][j] = this->blocks[i][PART / 8 * n + j];
    return found;
  }
  // Takes the sums of another product, rounded to T.
  void round(thread const Sums<T, ROWS, DEPTH, TENSOR>& sums) {
#pragma unroll
    for (uint i = 0; i < ROWS / 8; i++)
#pragma unroll
      for (uint j = 0; j < DEPTH / 8; j++) {
        const vec<T, 2> pair = vec<T, 2>(sums.pair(i, j));
        this->blocks[i][j].thread_elements()[0] = pair.x;
        this->blocks[i][j].thread_elements()[1] = pair.y;
      }
  }
};

template <typename T, uint DEPTH, uint COLUMNS, bool TENSOR = Target<T>::TENSOR>
struct Right : Operand<T, DEPTH, COLUMNS> {};

// sums += left right, in order of the depth.
template <typename T, uint ROWS, uint DEPTH, uint COLUMNS>
inline void multiply_add(thread Sums<T, ROWS, COLUMNS, false>& sums,
                         thread const Left<T, ROWS, DEPTH, false>& left,
                         thread const Right<T, DEPTH, COLUMNS, false>& right) {
#pragma unroll
  for (uint k = 0; k < DEPTH / 8; k++)
#pragma unroll
    for (uint i = 0; i < ROWS / 8; i++)
#pragma unroll
      for (uint j = 0; j < COLUMNS / 8; j++)
        simdgroup_multiply_accumulate(sums.blocks[i][j], left.blocks[i][k], right.blocks[k][j],
                                      sums.blocks[i][j]);
}

// ---- threadgroup memory ----

// Copies of 16 bytes into threadgroup memory, of which the elements from `count` on become zeros.
// They have arrived after `wait`, which lets the last groups that ended with `commit` go on.
template <bool ASYNC = Target<half>::ASYNC>
struct Copy {
  template <typename T>
  static void start(threadgroup T* to, device const T* from, uint count) {
    constexpr uint MOST = 16 / sizeof(T);
    if (count >= MOST) {
      *(threadgroup uint4*)to = *(device const uint4*)from;
    } else {
      for (uint i = 0; i < MOST; i++) to[i] = i < count ? from[i] : T(0);
    }
  }
  static void commit() {}
  template <int PENDING> static void wait() {}
};

#ifdef LBRX_SOFTMETAL_TILES
template <typename T, uint ROWS, uint COLUMNS>
struct Sums<T, ROWS, COLUMNS, true> : softmetal::tensor_sums<ROWS, COLUMNS> {};
template <typename T, uint ROWS, uint DEPTH>
struct Left<T, ROWS, DEPTH, true> : softmetal::tensor_left<T, ROWS, DEPTH> {
  template <uint PART> Left<T, ROWS, PART, true> slice(uint n) const {
    Left<T, ROWS, PART, true> found;
#pragma unroll
    for (uint i = 0; i < ROWS / 16; i++)
#pragma unroll
      for (uint j = 0; j < PART / 4; j++)
        found.words[i][j / 4][j % 4] = this->words[i][PART / 16 * n + j / 4][j % 4];
    return found;
  }
};
template <typename T, uint DEPTH, uint COLUMNS>
struct Right<T, DEPTH, COLUMNS, true> : softmetal::tensor_right<T, DEPTH, COLUMNS> {};

template <typename T, uint ROWS, uint DEPTH, uint COLUMNS>
inline void multiply_add(thread Sums<T, ROWS, COLUMNS, true>& sums,
                         thread const Left<T, ROWS, DEPTH, true>& left,
                         thread const Right<T, DEPTH, COLUMNS, true>& right) {
  softmetal::multiply_tiles<T, ROWS, DEPTH, COLUMNS>(sums, left, right);
}

template <> struct Copy<true> : softmetal::async_copy {};
inline float exp2(float x) { return softmetal::tile_exp2(x); }
#else
inline float exp2(float x) { return fast::exp2(x); }
#endif

// A part of a matrix in threadgroup memory, filled up with zeros to `LINES` of `LENGTH` elements. To
// avoid bank conflicts, 16 bytes follow each line; or, as warpgroups want it, lines are cut into
// blocks of 128 bytes, in which chunks of 16 bytes are in another order in each of eight lines.
template <typename T, uint LINES, uint LENGTH, uint THREADS, bool SWIZZLED = false>
struct Panel {
  static constant constexpr uint CHUNK = 16 / sizeof(T), BLOCK = 8 * CHUNK;
  static constant constexpr uint leading = SWIZZLED ? BLOCK : LENGTH + CHUNK;
  static constant constexpr uint size = LINES * (SWIZZLED ? LENGTH : leading);
  static constant constexpr uint IN_LINE = LENGTH / CHUNK, AT_ONCE = THREADS / IN_LINE;

  static uint offset(uint line, uint place) {
    if (!SWIZZLED) return line * leading + place;
    return (place / BLOCK * LINES + line) * BLOCK + (place / CHUNK % 8 ^ line % 8) * CHUNK;
  }

  // Starts to copy `lines` of `length` elements, which begin at multiples of 16 bytes if `aligned`.
  static void load(threadgroup T* to, device const T* from, ulong stride, uint lines, uint length,
                   uint thread_index, bool aligned) {
    static_assert(THREADS % IN_LINE == 0, "all of a thread's copies are at the same place of a line");
    const uint first = thread_index / IN_LINE, place = thread_index % IN_LINE * CHUNK;
    const uint count = length - min(place, length);
    from += first * stride + place;
    static_assert(!SWIZZLED || AT_ONCE % 8 == 0, "all of a thread's lines have the same order");
    to += offset(first, place);
#pragma unroll
    for (uint line = 0; line < LINES; line += AT_ONCE) {
      if (LINES % AT_ONCE == 0 || first + line < LINES)
        copy(to + line * leading, from, first + line < lines ? count : 0, aligned);
      from += AT_ONCE * stride;
    }
  }

  static void copy(threadgroup T* to, device const T* from, uint count, bool aligned) {
    if (aligned) Copy<>::start(to, from, count);
    else for (uint i = 0; i < CHUNK; i++) to[i] = i < count ? from[i] : T(0);
  }
};

template <typename T, uint ROWS, uint COLUMNS>
inline void clear(thread Sums<T, ROWS, COLUMNS>& sums) {
#pragma unroll
  for (uint i = 0; i < ROWS / 8; i++)
#pragma unroll
    for (uint j = 0; j < COLUMNS / 8; j++) sums.set(i, j, 0.0f);
}

}  // namespace tile
