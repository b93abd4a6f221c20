// Running sums along an axis of a contiguous array, [outer, length, inner]. A run is cut into blocks:
// their totals, the totals before each of them, then the sums within. For safe maths.
#pragma once
#include <metal_stdlib>
using namespace metal;

constant constexpr uint SCAN_GRID_ROW = 1 << 24;  // threads along x
constant constexpr uint SCAN_LANES = 256;
constant constexpr uint CHUNK = 16;  // elements that are added up before the total is

struct Scan {
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
  return {total, a.lost + (isfinite(total) ? lost : 0.0f)};
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
  ulong column;   // of its run, or of the first of them
  ulong total;    // where its total is, or that of the first of them
  uint count;     // elements of a run
  uint columns;
};

inline Block block_of(constant Scan& s, ulong task) {
  const ulong tiles = (s.inner + SCAN_LANES - 1) / SCAN_LANES;
  const ulong column = task % tiles * SCAN_LANES;
  const ulong block = task / tiles % s.blocks, run = task / tiles / s.blocks;
  const ulong start = block * s.block;
  return {(run * s.length + start) * s.inner + column, column,
          (run * s.blocks + block) * s.inner + column, uint(min(s.length - start, s.block)),
          uint(min(s.inner - column, ulong(SCAN_LANES)))};
}

inline ulong task_of(uint2 position) { return position.x + ulong(position.y) * SCAN_GRID_ROW; }
inline ulong tasks(constant Scan& s) {
  return s.outer * s.blocks * ((s.inner + SCAN_LANES - 1) / SCAN_LANES);
}

template <typename T>
kernel void total_rows(device const T* in [[buffer(0)]],
                       device typename Totals<T>::Total* totals [[buffer(1)]],
                       constant Scan& s [[buffer(2)]],
                       uint2 position [[thread_position_in_grid]]) {
  if (task_of(position) >= tasks(s)) return;
  const Block block = block_of(s, task_of(position));
  device const T* x = in + block.first;
  typename Totals<T>::Total total = {};
  for (uint i = 0; i < block.count; i += CHUNK) {
    typename Totals<T>::Value sum = 0;
    for (uint j = i; j < min(i + CHUNK, block.count); j++) sum += typename Totals<T>::Value(x[j]);
    total = plus(total, sum);
  }
  totals[block.total] = total;
}

template <typename T, typename Out>
kernel void scan_rows(device const T* in [[buffer(0)]], device Out* out [[buffer(1)]],
                      device const typename Totals<T>::Total* before [[buffer(2)]],
                      constant Scan& s [[buffer(3)]],
                      uint2 position [[thread_position_in_grid]]) {
  using Value = typename Totals<T>::Value;
  if (task_of(position) >= tasks(s)) return;
  const Block block = block_of(s, task_of(position));
  device const T* x = in + block.first;
  device Out* y = out + block.first;
  typename Totals<T>::Total total = {};
  if (s.blocks > 1) total = before[block.total];
  uint i = 0;
  for (; i + CHUNK <= block.count; i += CHUNK) {
    Value sum = 0, sums[CHUNK];
    for (uint j = 0; j < CHUNK; j++) sums[j] = sum += Value(x[i + j]);
    for (uint j = 0; j < CHUNK; j++) y[i + j] = Out(value(total, sums[j]));
    total = plus(total, sum);
  }
  for (; i < block.count; i++) {
    total = plus(total, Value(x[i]));
    y[i] = Out(value(total));
  }
}

template <typename T>
kernel void total_columns(device const T* in [[buffer(0)]],
                          device typename Totals<T>::Total* totals [[buffer(1)]],
                          constant Scan& s [[buffer(2)]],
                          uint2 position [[thread_position_in_grid]]) {
  if (task_of(position) >= tasks(s)) return;
  const Block block = block_of(s, task_of(position));
  device const T* x = in + block.first;
  typename Totals<T>::template Lanes<SCAN_LANES> lanes;
  for (uint j = 0; j < block.columns; j++) lanes.set(j, {});
  for (uint i = 0; i < block.count; i++, x += s.inner) {
    for (uint j = 0; j < block.columns; j++) {
      lanes.set(j, plus(lanes.get(j), typename Totals<T>::Value(x[j])));
    }
  }
  for (uint j = 0; j < block.columns; j++) totals[block.total + j] = lanes.get(j);
}

template <typename T, typename Out>
kernel void scan_columns(device const T* in [[buffer(0)]], device Out* out [[buffer(1)]],
                         device const typename Totals<T>::Total* before [[buffer(2)]],
                         constant Scan& s [[buffer(3)]],
                         uint2 position [[thread_position_in_grid]]) {
  if (task_of(position) >= tasks(s)) return;
  const Block block = block_of(s, task_of(position));
  device const T* x = in + block.first;
  device Out* y = out + block.first;
  typename Totals<T>::template Lanes<SCAN_LANES> lanes;
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
