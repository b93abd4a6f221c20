// Running sums along an axis of a contiguous array, [outer, length, inner]. A run is cut into
// blocks: their totals, the totals before each of them, then the sums within. For safe maths.
#pragma once
#include <metal_stdlib>
using namespace metal;

constant constexpr uint SCAN_GRID_ROW = 1 << 24;  // threads along x
constant constexpr uint SCAN_LANES = 256;
constant constexpr uint CHUNK = 16;               // elements that are added up before the total is
constant constexpr uint SCAN_WIDTH = 32;          // of a simdgroup

struct Scan {
  ulong tasks;
  ulong outer, length, inner;
  ulong block;   // elements of a run
  ulong blocks;  // in a run
};

// A float total and what its rounding lost, as one more float: as good as twice the precision.
struct Exact {
  float total, lost;
};

inline Exact plus(Exact a, float x) {
  const float total = a.total + x;
  const float taken = total - a.total;
  const float lost = (a.total - (total - taken)) + (x - taken);
  return {total, a.lost + (fabs(total) < INFINITY ? lost : 0.0f)};
}
inline Exact plus(Exact a, Exact b) {
  const Exact sum = plus(a, b.total);
  return {sum.total, sum.lost + b.lost};
}
inline float value(Exact a) { return a.total + a.lost; }
inline float value(Exact a, float x) { return a.total + (a.lost + x); }

inline ulong plus(ulong a, ulong x) { return a + x; }
inline ulong value(ulong a) { return a; }
inline ulong value(ulong a, ulong x) { return a + x; }

// What elements are added up in, what a total is, and totals side by side.
template <typename T>
struct Totals {
  using Value = ulong;
  using Total = ulong;
  template <uint N>
  struct Lanes {
    ulong total[N];
    void set(uint j, Total t) { total[j] = t; }
    Total get(uint j) const { return total[j]; }
  };
};
struct FloatTotals {
  using Value = float;
  using Total = Exact;
  template <uint N>
  struct Lanes {
    float total[N], lost[N];
    void set(uint j, Total t) {
      total[j] = t.total;
      lost[j] = t.lost;
    }
    Total get(uint j) const { return {total[j], lost[j]}; }
  };
};
template <> struct Totals<float> : FloatTotals {};
template <> struct Totals<half> : FloatTotals {};
template <> struct Totals<bfloat> : FloatTotals {};

// ---- serial: one thread a block ----

// A block of a run, or of runs side by side.
struct Block {
  ulong first;    // element of the array
  ulong total;    // where its total is, or that of the first of them
  uint count;     // elements of a run
  uint columns;
};

template <uint N>
inline Block block_of(constant Scan& s, ulong task) {
  const ulong tiles = (s.inner + N - 1) / N;
  const ulong column = task % tiles * N;
  const ulong block = task / tiles % s.blocks, run = task / tiles / s.blocks;
  const ulong start = block * s.block;
  return {(run * s.length + start) * s.inner + column,
          (run * s.blocks + block) * s.inner + column, uint(min(s.length - start, s.block)),
          uint(min(s.inner - column, ulong(N)))};
}

inline ulong task_of(uint2 position) { return position.x + ulong(position.y) * SCAN_GRID_ROW; }

// Adds the elements up.
template <typename T>
inline void add_up(device const T* x, uint count, thread ulong& total) {
  for (uint i = 0; i < count; i++) total += ulong(x[i]);
}
template <typename T>
inline void add_up(device const T* x, uint count, thread Exact& total) {
  FloatTotals::Lanes<CHUNK> lanes;
  for (uint j = 0; j < CHUNK; j++) lanes.set(j, {0, 0});
  uint i = 0;
  for (; i + CHUNK <= count; i += CHUNK) {
    for (uint j = 0; j < CHUNK; j++) lanes.set(j, plus(lanes.get(j), float(x[i + j])));
  }
  for (uint j = 0; j < CHUNK; j++) total = plus(total, lanes.get(j));
  for (; i < count; i++) total = plus(total, float(x[i]));
}

template <typename T>
kernel void total_rows(device const T* in [[buffer(0)]],
                       device typename Totals<T>::Total* totals [[buffer(1)]],
                       constant Scan& s [[buffer(2)]],
                       uint2 position [[thread_position_in_grid]]) {
  if (task_of(position) >= s.tasks) return;
  const Block block = block_of<1>(s, task_of(position));
  typename Totals<T>::Total total = {};
  add_up(in + block.first, block.count, total);
  totals[block.total] = total;
}

// The total of a chunk from its running sums, which each lost something too.
template <typename T>
inline Exact total_of(device const T* x, thread const float* sums) {
  float lost[CHUNK];
  for (uint j = 0; j < CHUNK; j++) {
    const float before = j == 0 ? 0.0f : sums[j - 1];
    const float taken = sums[j] - before;
    lost[j] = (before - (sums[j] - taken)) + (float(x[j]) - taken);
  }
  for (uint half_way = CHUNK / 2; half_way > 0; half_way /= 2) {
    for (uint j = 0; j < half_way; j++) lost[j] += lost[j + half_way];
  }
  const float total = sums[CHUNK - 1];
  return {total, fabs(total) < INFINITY ? lost[0] : 0.0f};
}
// Writes the running sums of `count` elements that `total` comes before.
template <typename T, typename Out>
inline void walk(device const T* x, device Out* y, uint count, ulong total) {
  for (uint i = 0; i < count; i++) y[i] = Out(total += ulong(x[i]));
}
template <typename T, typename Out>
inline void walk(device const T* x, device Out* y, uint count, Exact total) {
  uint i = 0;
  for (; i + CHUNK <= count; i += CHUNK) {
    float sums[CHUNK], sum = 0;
    for (uint j = 0; j < CHUNK; j++) sums[j] = sum += float(x[i + j]);
    for (uint j = 0; j < CHUNK; j++) y[i + j] = Out(value(total, sums[j]));
    total = plus(total, total_of(x + i, sums));
  }
  for (; i < count; i++) {
    total = plus(total, float(x[i]));
    y[i] = Out(value(total));
  }
}

template <typename T, typename Out>
kernel void scan_rows(device const T* in [[buffer(0)]], device Out* out [[buffer(1)]],
                      device const typename Totals<T>::Total* before [[buffer(2)]],
                      constant Scan& s [[buffer(3)]],
                      uint2 position [[thread_position_in_grid]]) {
  if (task_of(position) >= s.tasks) return;
  const Block block = block_of<1>(s, task_of(position));
  typename Totals<T>::Total total = {};
  if (s.blocks > 1) total = before[block.total];
  walk(in + block.first, out + block.first, block.count, total);
}

template <typename T, uint N>
kernel void total_columns(device const T* in [[buffer(0)]],
                          device typename Totals<T>::Total* totals [[buffer(1)]],
                          constant Scan& s [[buffer(2)]],
                          uint2 position [[thread_position_in_grid]]) {
  if (task_of(position) >= s.tasks) return;
  const Block block = block_of<N>(s, task_of(position));
  device const T* x = in + block.first;
  typename Totals<T>::template Lanes<N> lanes;
  for (uint j = 0; j < block.columns; j++) lanes.set(j, {});
  for (uint i = 0; i < block.count; i++, x += s.inner) {
    for (uint j = 0; j < block.columns; j++) {
      lanes.set(j, plus(lanes.get(j), typename Totals<T>::Value(x[j])));
    }
  }
  for (uint j = 0; j < block.columns; j++) totals[block.total + j] = lanes.get(j);
}

template <typename T, typename Out, uint N>
kernel void scan_columns(device const T* in [[buffer(0)]], device Out* out [[buffer(1)]],
                         device const typename Totals<T>::Total* before [[buffer(2)]],
                         constant Scan& s [[buffer(3)]],
                         uint2 position [[thread_position_in_grid]]) {
  if (task_of(position) >= s.tasks) return;
  const Block block = block_of<N>(s, task_of(position));
  device const T* x = in + block.first;
  device Out* y = out + block.first;
  typename Totals<T>::template Lanes<N> lanes;
  for (uint j = 0; j < block.columns; j++) {
    lanes.set(j, {});
    if (s.blocks > 1) lanes.set(j, before[block.total + j]);
  }
  for (uint i = 0; i < block.count; i++, x += s.inner, y += s.inner) {
    for (uint j = 0; j < block.columns; j++) {
      lanes.set(j, plus(lanes.get(j), typename Totals<T>::Value(x[j])));
      y[j] = Out(value(lanes.get(j)));
    }
  }
}

// One thread a run: each block's total becomes that of the blocks before it.
template <typename Total>
kernel void scan_totals(device Total* totals [[buffer(0)]], constant Scan& s [[buffer(1)]],
                        uint2 position [[thread_position_in_grid]]) {
  const ulong run = task_of(position);
  if (run >= s.outer * s.inner) return;
  device Total* own = totals + run / s.inner * s.blocks * s.inner + run % s.inner;
  Total before = {};
  for (ulong block = 0; block < s.blocks; block++, own += s.inner) {
    const Total total = *own;
    *own = before;
    before = plus(before, total);
  }
}

// ---- simd: a simdgroup a block of a row; a thread a column ----

// What the lane so many places before or after has. Shuffles know no 64-bit numbers.
inline float earlier(float x, ushort by) { return simd_shuffle_up(x, by); }
inline ulong earlier(ulong x, ushort by) {
  return as_type<ulong>(simd_shuffle_up(as_type<uint2>(x), by));
}
inline ulong later(ulong x, ushort by) {
  return as_type<ulong>(simd_shuffle_down(as_type<uint2>(x), by));
}
inline Exact later(Exact x, ushort by) {
  return {simd_shuffle_down(x.total, by), simd_shuffle_down(x.lost, by)};
}
inline float last(float x) { return simd_broadcast(x, ushort(SCAN_WIDTH - 1)); }
inline ulong last(ulong x) {
  return as_type<ulong>(simd_broadcast(as_type<uint2>(x), ushort(SCAN_WIDTH - 1)));
}

template <typename T>
kernel void total_rows_simd(device const T* in [[buffer(0)]],
                            device typename Totals<T>::Total* totals [[buffer(1)]],
                            constant Scan& s [[buffer(2)]],
                            uint2 position [[thread_position_in_grid]],
                            uint lane [[thread_index_in_simdgroup]]) {
  const ulong task = task_of(position) / SCAN_WIDTH;
  if (task >= s.tasks) return;
  const Block block = block_of<1>(s, task);
  typename Totals<T>::Total total = {};
  for (uint i = lane; i < block.count; i += SCAN_WIDTH) {
    total = plus(total, typename Totals<T>::Value(in[block.first + i]));
  }
  for (ushort by = SCAN_WIDTH / 2; by > 0; by /= 2) total = plus(total, later(total, by));
  if (lane == 0) totals[block.total] = total;
}

template <typename T, typename Out>
kernel void scan_rows_simd(device const T* in [[buffer(0)]], device Out* out [[buffer(1)]],
                           device const typename Totals<T>::Total* before [[buffer(2)]],
                           constant Scan& s [[buffer(3)]],
                           uint2 position [[thread_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]]) {
  using Value = typename Totals<T>::Value;
  const ulong task = task_of(position) / SCAN_WIDTH;
  if (task >= s.tasks) return;
  const Block block = block_of<1>(s, task);
  typename Totals<T>::Total total = {};
  if (s.blocks > 1) total = before[block.total];
  for (uint i = 0; i < block.count; i += SCAN_WIDTH) {
    const bool inside = i + lane < block.count;
    Value sum = inside ? Value(in[block.first + i + lane]) : Value(0);
    for (ushort by = 1; by < SCAN_WIDTH; by *= 2) {
      const Value other = earlier(sum, by);
      sum += lane >= by ? other : Value(0);
    }
    if (inside) out[block.first + i + lane] = Out(value(total, sum));
    total = plus(total, last(sum));
  }
}
