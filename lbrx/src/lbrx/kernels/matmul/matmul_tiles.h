// Matrix products in tiles that simdgroups multiply.
#pragma once
#include "matmul.h"
#include "product_steps.h"
#include "records/matmul_tiles.h"
#include "tile.h"

using tile::Tiling;

// The operands of a threadgroup in threadgroup memory, each in the order that it has in device
// memory.
template <typename T, typename G, bool SWIZZLED = false>
struct Operands {
  using XRows = tile::Panel<T, G::M, G::DEPTH, G::THREADS, SWIZZLED>;
  using XColumns = tile::Panel<T, G::DEPTH, G::M, G::THREADS, SWIZZLED>;
  using YRows = tile::Panel<T, G::DEPTH, G::N, G::THREADS, SWIZZLED>;
  using YColumns = tile::Panel<T, G::N, G::DEPTH, G::THREADS, SWIZZLED>;
  static constant constexpr uint X_SIZE = XRows::size > XColumns::size ? XRows::size : XColumns::size;
  static constant constexpr uint Y_SIZE = YRows::size > YColumns::size ? YRows::size : YColumns::size;
  static constant constexpr uint SIZE = X_SIZE + Y_SIZE;  // of one stage

  device const T* x;
  device const T* y;
  uint rows, columns;
  uint first, end;  // of k
  uint thread_index;

  uint turns() const { return (end - first + G::DEPTH - 1) / G::DEPTH; }

  // Starts to copy what belongs to a turn, `DEPTH` of k.
  void copy(threadgroup T* to, constant ProductRecord& p, uint turn) const {
    const uint k = first + turn * G::DEPTH, depth = k < end ? end - k : 0;
    device const T* from_x = x + k * p.x_column;
    device const T* from_y = y + k * p.y_row;
    if (X_TRANSPOSED) XColumns::load(to, from_x, p.x_column, depth, rows, thread_index, ALIGNED);
    else XRows::load(to, from_x, p.x_row, rows, depth, thread_index, ALIGNED);
    to += X_SIZE;
    if (Y_TRANSPOSED) YColumns::load(to, from_y, p.y_column, columns, depth, thread_index, ALIGNED);
    else YRows::load(to, from_y, p.y_row, depth, columns, thread_index, ALIGNED);
  }
};

// What a simdgroup multiplies at a time: a depth of 16.
template <typename T, typename G>
struct Step {
  tile::Left<T, G::ROWS, 16> left;
  tile::Right<T, 16, G::COLUMNS> right;

  void load(threadgroup const T* from, uint row, uint column, uint k) {
    using All = Operands<T, G>;
    if (X_TRANSPOSED)
      left.load(from + k * All::XColumns::leading + row, All::XColumns::leading, true);
    else left.load(from + row * All::XRows::leading + k, All::XRows::leading, false);
    from += All::X_SIZE;
    if (Y_TRANSPOSED)
      right.load(from + column * All::YColumns::leading + k, All::YColumns::leading, true);
    else right.load(from + k * All::YRows::leading + column, All::YRows::leading, false);
  }
};

// How simdgroups compute the results of a threadgroup: each its own ROWS by COLUMNS.
template <typename T, typename G, bool TOGETHER>
struct Engine {
  using Results = tile::Sums<T, G::ROWS, G::COLUMNS>;
  using Given = Operands<T, G>;
  static constant constexpr uint DOWN = G::ROWS / 8, ACROSS = G::COLUMNS / 8;  // blocks of a lane
  static constant constexpr uint SIZE = Given::SIZE, STEPS = G::DEPTH / 16;
  Results sums;

  // The place of a lane's pair in block (i, j).
  static uint row(uint simdgroup, uint lane, uint i) {
    return simdgroup / G::ACROSS * G::ROWS + i * 8 + Results::row(lane);
  }
  static uint column(uint simdgroup, uint lane, uint j) {
    return simdgroup % G::ACROSS * G::COLUMNS + j * 8 + Results::column(lane);
  }
  float2 pair(uint i, uint j) const { return sums.pair(i, j); }

  // Sums are in order of k.
  void run(thread const Given& operands, constant ProductRecord& p, threadgroup T* memory, uint simdgroup) {
    const uint row = simdgroup / G::ACROSS * G::ROWS, column = simdgroup % G::ACROSS * G::COLUMNS;
    tile::clear(sums);
    if (G::STAGES == 1) in_turns(operands, p, memory, row, column);
    else ahead(operands, p, memory, row, column);
  }

  void in_turns(thread const Given& operands, constant ProductRecord& p, threadgroup T* memory, uint row,
                uint column) {
    Step<T, G> step;
    for (uint turn = 0; turn < operands.turns(); turn++) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      operands.copy(memory, p, turn);
      tile::Copy<>::commit();
      tile::Copy<>::template wait<0>();
      threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
      for (uint s = 0; s < STEPS; s++) {
        step.load(memory, row, column, s * 16);
        tile::multiply_add(sums, step.left, step.right);
      }
    }
  }

  // Copies are STAGES - 1 turns ahead of the products, and loads from threadgroup memory one step.
  void ahead(thread const Given& operands, constant ProductRecord& p, threadgroup T* memory, uint row,
             uint column) {
    Step<T, G> steps[2];
#pragma unroll
    for (uint stage = 0; stage + 1 < G::STAGES; stage++) {
      operands.copy(memory + stage * SIZE, p, stage);
      tile::Copy<>::commit();
    }
    tile::Copy<>::template wait<int(G::STAGES) - 2>();
    threadgroup_barrier(mem_flags::mem_threadgroup);
    steps[0].load(memory, row, column, 0);
    uint reading = 0, writing = G::STAGES - 1;
    const uint turns = operands.turns();
    for (uint turn = 0; turn < turns; turn++) {
#pragma unroll
      for (uint s = 0; s < STEPS; s++) {
        if (s == 0) {
          operands.copy(memory + writing * SIZE, p, turn + G::STAGES - 1);
          tile::Copy<>::commit();
        }
        if (s + 1 == STEPS) {
          reading = reading + 1 == G::STAGES ? 0 : reading + 1;
          writing = writing + 1 == G::STAGES ? 0 : writing + 1;
          tile::Copy<>::template wait<int(G::STAGES) - 2>();
          threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        steps[(s + 1) % 2].load(memory + reading * SIZE, row, column, (s + 1) % STEPS * 16);
        tile::multiply_add(sums, steps[s % 2].left, steps[s % 2].right);
      }
    }
  }
};

#ifdef LBRX_SOFTMETAL_TILES
// Four simdgroups compute 64 rows and all columns together: for Hopper's tensor cores, which read
// both operands from threadgroup memory while the threads go on.
template <typename T, typename G>
struct Engine<T, G, true> {
  using Given = Operands<T, G, true>;
  using Warpgroup = softmetal::warpgroup<T>;
  static constant constexpr uint DOWN = 2, ACROSS = G::N / 8;
  static constant constexpr uint LINE = 128, BLOCK = G::DEPTH * LINE;  // bytes
  softmetal::warpgroup_sums<G::N> sums;

  static uint row(uint simdgroup, uint lane, uint i) { return simdgroup * 16 + i * 8 + lane / 4; }
  static uint column(uint simdgroup, uint lane, uint j) { return j * 8 + lane % 4 * 2; }
  float2 pair(uint i, uint j) const { return sums.pair(i, j); }

  // Copies are two turns behind the stages' end: the products of a turn end within the next one.
  void run(thread const Given& operands, constant ProductRecord& p, threadgroup T* memory, uint simdgroup) {
    memory = Warpgroup::aligned(memory);
    for (uint j = 0; j < ACROSS; j++)
      for (uint i = 0; i < DOWN; i++) sums.set(i, j, 0.0f);
#pragma unroll
    for (uint stage = 0; stage + 2 < G::STAGES; stage++) {
      operands.copy(memory + stage * Given::SIZE, p, stage);
      tile::Copy<>::commit();
    }
    // There is at least one turn: with a test before the first, sums would be copied before the end.
    uint reading = 0, writing = G::STAGES - 2, turn = 0;
    const uint turns = operands.turns();
    do {
      tile::Copy<>::template wait<int(G::STAGES) - 3>();
      Warpgroup::publish();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      multiply(memory + reading * Given::SIZE, simdgroup / 4);
      operands.copy(memory + writing * Given::SIZE, p, turn + G::STAGES - 2);
      tile::Copy<>::commit();
      Warpgroup::template wait<1>();
      reading = reading + 1 == G::STAGES ? 0 : reading + 1;
      writing = writing + 1 == G::STAGES ? 0 : writing + 1;
      turn++;
    } while (turn < turns);
    Warpgroup::template wait<0>();
  }

  // Bytes from one depth of 16 to the next: eight lines are a group, and each line has 64 elements.
  void multiply(threadgroup const T* x, uint down) {
    threadgroup const T* y = x + Given::X_SIZE;
    x += down * 64 * 64;
    Warpgroup::begin();
#pragma unroll
    for (uint k = 0; k < G::DEPTH; k += 16) {
      const ulong left = Warpgroup::operand(x + (X_TRANSPOSED ? k * 64 : k), 8 * LINE, BLOCK);
      const ulong right = Warpgroup::operand(y + (Y_TRANSPOSED ? k : k * 64), 8 * LINE, BLOCK);
      Warpgroup::template multiply_add<true>(sums, left, right, X_TRANSPOSED, !Y_TRANSPOSED);
    }
    Warpgroup::commit();
  }
};
#endif

// From a sum to the result in a column: bias and activation.
template <typename Out>
struct Finishing {
  device const Out* bias;
  constant ProductRecord* p;

  Out operator()(float sum, uint column) const {
    return finished<Out>(sum, p->bias_column ? bias[min(column, p->n - 1)] : Out(0));
  }
};

// Stores a lane's pairs of four blocks, sixteen bytes at once where lanes can exchange them.
template <typename T, bool TOGETHER, uint SIZE = sizeof(T)>
struct Whole {
  static constant constexpr bool can = false;
  static void store(thread const vec<T, 2>*, device T*, uint) {}
};
#ifdef LBRX_SOFTMETAL_TILES
template <typename T>
struct Whole<T, true, 2> {
  static constant constexpr bool can = true;
  static void store(thread const vec<T, 2>* pairs, device T* to, uint lane) {
    uint words[4];
#pragma unroll
    for (uint b = 0; b < 4; b++) words[b] = as_type<uint>(pairs[b]);
    softmetal::exchange_blocks(words);
    *(device uint4*)(to + lane % 4 * 8) = uint4(words[0], words[1], words[2], words[3]);
  }
};
#endif

// A threadgroup computes M by N results of one batch member from a part of k, `depth` long; its z
// is the member and the part. `out` has a plane for each part.
template <typename T, typename Out, typename Stored, typename G>
kernel void matmul_tiles(device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
                         device const Out* bias [[buffer(2)]], device Stored* out [[buffer(3)]],
                         constant ProductRecord& p [[buffer(4)]], constant uint& depth [[buffer(5)]],
                         threadgroup float4* memory [[threadgroup(0)]],
                         uint3 group [[threadgroup_position_in_grid]],
                         uint3 groups [[threadgroups_per_grid]],
                         uint thread_index [[thread_index_in_threadgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]] STEP_PARAMETERS) {
  // Neighbouring threadgroups share operands: tiles are numbered down a few rows, then to the right.
  const uint row = ((group.y << SWIZZLE) + (group.x & ((1u << SWIZZLE) - 1))) * G::M;
  const uint column = (group.x >> SWIZZLE) * G::N;
  if (row >= p.m || column >= p.n) return;
  const uint parts = (p.k + depth - 1) / depth;
  const uint member = group.z / parts, part = group.z % parts;
  const ulong2 start = batch_start(p, member);
  constexpr bool TOGETHER = tile::Target<T>::WARPGROUPS && G::STAGES > 3 && G::DEPTH == 64;
  using Computing = Engine<T, G, TOGETHER>;
  const typename Computing::Given operands = {
      x + start.x + row * p.x_row, y + start.y + column * p.y_column, p.m - row, p.n - column,
      part * depth, min(p.k, (part + 1) * depth), thread_index};
  Computing engine;
  engine.run(operands, p, (threadgroup T*)memory, simdgroup);

  out += (ulong(part) * (groups.z / parts) + member) * p.m * p.n;
  const ResultPart result = {row, column, min(G::M, p.m - row), min(G::N, p.n - column),
                             member * p.m + row};
  const Finishing<Out> finishing = {bias, &p};
#ifdef STEP_OPERANDS
  using Through = SteppedResults<G>;
  threadgroup float* sums = (threadgroup float*)memory;
  tile::Copy<>::template wait<0>();
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Through::put(sums, engine, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const Steps steps = STEP_OPERANDS;
  Through::store(steps, finishing, sums, out, p.out_row, result, STORED > 1, thread_index);
#else
  const bool whole = result.rows == G::M && result.columns == G::N;
  constexpr uint BLOCKS = Computing::ACROSS < 4 ? Computing::ACROSS : 4;  // at a time
#pragma unroll
  for (uint i = 0; i < Computing::DOWN; i++) {
    const uint r = row + Computing::row(simdgroup, lane, i);
    device Stored* to = out + r * p.out_row;
#pragma unroll
    for (uint j = 0; j < Computing::ACROSS; j += BLOCKS) {
      vec<Stored, 2> pairs[BLOCKS];
#pragma unroll
      for (uint b = 0; b < BLOCKS; b++) {
        const uint c = column + Computing::column(simdgroup, lane, j + b);
        const float2 pair = engine.pair(i, j + b);
        pairs[b] = vec<Stored, 2>(finishing(pair.x, c), finishing(pair.y, c + 1));
      }
      if (Whole<Stored, TOGETHER>::can && STORED == 8 && whole) {
        Whole<Stored, TOGETHER>::store(pairs, to + column + j * 8, lane);
        continue;
      }
#pragma unroll
      for (uint b = 0; b < BLOCKS; b++) {
        const uint c = column + Computing::column(simdgroup, lane, j + b);
        if (r >= p.m || c >= p.n) continue;
        if (STORED > 1 && c + 1 < p.n) {
          *(device vec<Stored, 2>*)(to + c) = pairs[b];
        } else {
          to[c] = pairs[b].x;
          if (c + 1 < p.n) to[c + 1] = pairs[b].y;
        }
      }
    }
  }
#endif
}

#define TILES_INSTANCE(name, type, out, stored, ...)                                           \
  template [[host_name(name)]] kernel void matmul_tiles<type, out, stored, Tiling<__VA_ARGS__>>( \
      device const type*, device const type*, device const out*, device stored*,               \
      constant ProductRecord&, constant uint&, threadgroup float4*, uint3, uint3, uint, uint,         \
      uint STEP_TYPES);
