// Products with a quantized matrix in tiles: its values are decoded into threadgroup memory.
#pragma once
#include "product_steps.h"
#include "quant_runs.h"
#include "records/quant_matmul.h"
#include "records/quant_product.h"
#include "tile.h"

using tile::Tiling;

// From a sum to the product in a column.
template <typename T>
struct RoundedSum {
  T operator()(float sum, uint) const { return T(sum); }
};

// The number of an element type on the host.
template <typename T> struct TypeNumber { static constant constexpr uint value = FLOAT; };
template <> struct TypeNumber<half> { static constant constexpr uint value = HALF; };
template <> struct TypeNumber<bfloat> { static constant constexpr uint value = BFLOAT; };

// Rows of x as T.
template <typename T, typename G, typename Lines>
inline void copy_rows(threadgroup T* to, device const void* x, constant QuantizedProductRecord& p, uint row, uint k,
                      uint thread_index) {
  const uint rows = p.m - row, depth = k < p.k ? p.k - k : 0;
  if (ALIGNED && TypeNumber<T>::value == VALUES) {
    Lines::load(to, static_cast<device const T*>(x) + ulong(row) * p.k + k, p.k, rows, depth,
                thread_index, true);
    return;
  }
  for (uint i = thread_index; i < G::M * G::DEPTH; i += G::THREADS) {
    const uint r = i / G::DEPTH, c = i % G::DEPTH;
    const bool inside = r < rows && c < depth;
    to[Lines::offset(r, c / Lines::CHUNK * Lines::CHUNK) + c % Lines::CHUNK] =
        inside ? T(element(VALUES, x, ulong(row + r) * p.k + k + c)) : T(0);
  }
}

// What a thread reads of a turn: runs of the matrix, and where they belong.
template <typename T, typename C, typename G, typename Lines>
struct Decoding {
  static constant constexpr uint IN_LINE = G::DEPTH / RUN, RUNS = G::N * IN_LINE / G::THREADS;
  typename RunReader<C>::Raw raw[RUNS];

  static RunPlace place(constant QuantizedProductRecord& p, uint column, uint k, uint at) {
    const uint run = k / RUN + at % IN_LINE;
    return {min(column + at / IN_LINE, p.n - 1), min(run, (p.k - 1) / RUN), p.k, run * RUN < p.k};
  }
  void load(Weight weight, constant QuantizedProductRecord& p, uint column, uint k, uint thread_index) {
#pragma unroll
    for (uint r = 0; r < RUNS; r++)
      raw[r] = RunReader<C>::load(weight, place(p, column, k, r * G::THREADS + thread_index));
  }
  // Decodes what was loaded for the same k.
  void write(threadgroup T* to, Weight weight, constant QuantizedProductRecord& p, uint column, uint k,
             uint thread_index) const {
#pragma unroll
    for (uint r = 0; r < RUNS; r++) {
      const uint number = r * G::THREADS + thread_index, in_line = number % IN_LINE;
      RunValues<T> values;
      RunReader<C>::decode(raw[r], weight, place(p, column, k, number), values);
      values.template write<Lines>(to, number / IN_LINE, RunReader<C>::place(in_line, 0),
                                   RunReader<C>::place(in_line, 1));
    }
  }
};

// How simdgroups compute the results of a threadgroup: each its own ROWS by COLUMNS.
template <typename T, typename C, typename G, bool TOGETHER>
struct Engine {
  using Left = tile::Panel<T, G::M, G::DEPTH, G::THREADS>;
  using Right = tile::Panel<T, G::N, G::DEPTH, G::THREADS>;
  using Results = tile::Sums<T, G::ROWS, G::COLUMNS>;
  static constant constexpr uint DOWN = G::ROWS / 8, ACROSS = G::COLUMNS / 8;  // blocks of a lane
  static constant constexpr uint SIZE = Left::size + Right::size;
  Results sums;

  static uint row(uint simdgroup, uint lane, uint i) {
    return simdgroup / G::ACROSS * G::ROWS + i * 8 + Results::row(lane);
  }
  static uint column(uint simdgroup, uint lane, uint j) {
    return simdgroup % G::ACROSS * G::COLUMNS + j * 8 + Results::column(lane);
  }
  float2 pair(uint i, uint j) const { return sums.pair(i, j); }

  // With two stages the next values are read while the last ones are multiplied.
  void run(Weight weight, device const void* x, constant QuantizedProductRecord& p, uint row, uint column,
           threadgroup T* stages, uint thread_index, uint simdgroup) {
    Decoding<T, C, G, Right> decoding;
    tile::clear(sums);
    if (G::STAGES > 1) {
      copy_rows<T, G, Left>(stages, x, p, row, 0, thread_index);
      tile::Copy<>::commit();
      decoding.load(weight, p, column, 0, thread_index);
      decoding.write(stages + Left::size, weight, p, column, 0, thread_index);
    }
    uint turn = 0;
    for (uint k = 0; k < p.k; k += G::DEPTH) {
      threadgroup T* here = stages + turn * SIZE;
      threadgroup T* next = stages + (G::STAGES > 1 ? 1 - turn : 0) * SIZE;
      if (G::STAGES == 1) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        copy_rows<T, G, Left>(here, x, p, row, k, thread_index);
        tile::Copy<>::commit();
        decoding.load(weight, p, column, k, thread_index);
        decoding.write(here + Left::size, weight, p, column, k, thread_index);
      }
      tile::Copy<>::template wait<0>();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (G::STAGES > 1) {
        copy_rows<T, G, Left>(next, x, p, row, k + G::DEPTH, thread_index);
        tile::Copy<>::commit();
        decoding.load(weight, p, column, k + G::DEPTH, thread_index);
      }
      multiply(here, simdgroup / G::ACROSS * G::ROWS, simdgroup % G::ACROSS * G::COLUMNS);
      if (G::STAGES > 1) {
        decoding.write(next + Left::size, weight, p, column, k + G::DEPTH, thread_index);
        turn = 1 - turn;
      }
    }
  }

  void multiply(threadgroup const T* from, uint row, uint column) {
#pragma unroll
    for (uint d = 0; d < G::DEPTH; d += 16) {
      tile::Left<T, G::ROWS, 16> left;
      tile::Right<T, 16, G::COLUMNS> right;
      left.load(from + row * Left::leading + d, Left::leading, false);
      right.load(from + Left::size + column * Right::leading + d, Right::leading, true);
      tile::multiply_add(sums, left, right);
    }
  }
};

#ifdef LBRX_SOFTMETAL_TILES
// Four simdgroups compute 64 rows and all columns together: for Hopper's tensor cores, which read
// both operands from threadgroup memory while the threads decode the next values.
template <typename T, typename C, typename G>
struct Engine<T, C, G, true> {
  using Left = tile::Panel<T, G::M, G::DEPTH, G::THREADS, true>;
  using Right = tile::Panel<T, G::N, G::DEPTH, G::THREADS, true>;
  using Warpgroup = softmetal::warpgroup<T>;
  using Lane = tile::Sums<T, 16, 16>;
  static constant constexpr uint DOWN = 2, ACROSS = G::N / 8, SIZE = Left::size + Right::size;
  softmetal::warpgroup_sums<G::N> sums;

  static uint row(uint simdgroup, uint lane, uint i) {
    return simdgroup * 16 + i * 8 + Lane::row(lane);
  }
  static uint column(uint, uint lane, uint j) { return j * 8 + Lane::column(lane); }
  float2 pair(uint i, uint j) const { return sums.pair(i, j); }

  // The products of a turn end within the next one: three stages. Loads are two turns ahead of
  // decoding, as they take longer than a turn.
  void run(Weight weight, device const void* x, constant QuantizedProductRecord& p, uint row, uint column,
           threadgroup T* stages, uint thread_index, uint simdgroup) {
    stages = Warpgroup::aligned(stages);
    Decoding<T, C, G, Right> decoding, after, last;
    for (uint j = 0; j < ACROSS; j++)
      for (uint i = 0; i < DOWN; i++) sums.set(i, j, 0.0f);
    copy_rows<T, G, Left>(stages, x, p, row, 0, thread_index);
    tile::Copy<>::commit();
    decoding.load(weight, p, column, 0, thread_index);
    decoding.write(stages + Left::size, weight, p, column, 0, thread_index);
    decoding.load(weight, p, column, G::DEPTH, thread_index);
    after.load(weight, p, column, 2 * G::DEPTH, thread_index);
    // There is at least one turn: with a test before the first, sums would be copied before the end.
    uint reading = 0, k = 0;
    do {
      const uint writing = reading == 2 ? 0 : reading + 1;
      threadgroup T* next = stages + writing * SIZE;
      tile::Copy<>::template wait<0>();
      Warpgroup::publish();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      copy_rows<T, G, Left>(next, x, p, row, k + G::DEPTH, thread_index);
      tile::Copy<>::commit();
      last.load(weight, p, column, k + 3 * G::DEPTH, thread_index);
      multiply(stages + reading * SIZE, simdgroup / 4);
      decoding.write(next + Left::size, weight, p, column, k + G::DEPTH, thread_index);
      decoding = after;
      after = last;
      Warpgroup::template wait<1>();
      reading = writing;
      k += G::DEPTH;
    } while (k < p.k);
    Warpgroup::template wait<0>();
  }

  void multiply(threadgroup const T* from, uint down) {
    Warpgroup::begin();
#pragma unroll
    for (uint d = 0; d < G::DEPTH; d += 16) {
      const ulong left = Warpgroup::operand(from + down * 64 * 64 + d, 1024, 1024);
      const ulong right = Warpgroup::operand(from + Left::size + d, 1024, 1024);
      Warpgroup::template multiply_add<true>(sums, left, right, false, false);
    }
    Warpgroup::commit();
  }
};
#endif

template <typename T, typename C, typename G>
kernel void matmul_tiles(device const typename RunReader<C>::Word* data [[buffer(0)]],
                         device const void* scales [[buffer(1)]],
                         device const void* offsets [[buffer(2)]],
                         device const char* book [[buffer(3)]], device const void* x [[buffer(4)]],
                         device void* out [[buffer(5)]], constant QuantizedProductRecord& p [[buffer(6)]],
                         threadgroup float4* memory [[threadgroup(0)]],
                         uint2 group [[threadgroup_position_in_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]] STEP_PARAMETERS) {
  constexpr bool TOGETHER = tile::Target<T>::WARPGROUPS && G::STAGES == 3 && G::DEPTH == 64;
  using Computing = Engine<T, C, G, TOGETHER>;
  const uint row = group.y * G::M, column = group.x * G::N;
  Computing engine;
  engine.run({(device const uchar*)data, scales, offsets, book}, x, p, row, column, (threadgroup T*)memory, thread_index,
             simdgroup);
#ifdef STEP_OPERANDS
  using Through = SteppedResults<G>;
  threadgroup float* sums = (threadgroup float*)memory;
  tile::Copy<>::template wait<0>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Through::put(sums, engine, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const Steps steps = STEP_OPERANDS;
  const RoundedSum<Steps::Product> rounded;
  const ResultPart result = {row, column, min(G::M, p.m - row), min(G::N, p.n - column), row};
  Through::store(steps, rounded, sums, static_cast<device Steps::Stored*>(out), p.n, result, false,
                 thread_index);
#else
#pragma unroll
  for (uint i = 0; i < Computing::DOWN; i++) {
    const uint r = row + Computing::row(simdgroup, lane, i);
#pragma unroll
    for (uint j = 0; j < Computing::ACROSS; j++) {
      const uint c = column + Computing::column(simdgroup, lane, j);
      const float2 pair = engine.pair(i, j);
      if (r < p.m && c < p.n) put(out, ulong(r) * p.n + c, pair.x);
      if (r < p.m && c + 1 < p.n) put(out, ulong(r) * p.n + c + 1, pair.y);
    }
  }
#endif
}
