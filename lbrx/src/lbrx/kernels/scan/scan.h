// Running sums and products along an axis of a contiguous array, [outer, length, inner]. A run is
// cut into blocks: their totals, the totals before each of them, then the results within. For safe
// maths.
#pragma once
#include "records/scan.h"
using namespace metal;

constant constexpr uint SCAN_GRID_ROW = 1 << 24;  // threads along x
constant constexpr uint SCAN_LANES = 256;
constant constexpr uint CHUNK = 16;               // elements that are added up before the total is
constant constexpr uint SCAN_WIDTH = 32;          // of a simdgroup

// A float total and what its rounding lost, as one more float: as good as twice the precision.
struct RunningSum {
  float total = 0, lost = 0;
};
struct RunningProduct {
  float total = 1, lost = 0;
};
struct RunningIntegerProduct {
  ulong total = 1;
};

inline RunningSum joined(RunningSum a, float x) {
  const float total = a.total + x;
  const float taken = total - a.total;
  const float lost = (a.total - (total - taken)) + (x - taken);
  return {total, a.lost + (fabs(total) < INFINITY ? lost : 0.0f)};
}
inline RunningSum joined(RunningSum a, RunningSum b) {
  const RunningSum sum = joined(a, b.total);
  return {sum.total, sum.lost + b.lost};
}
inline float value(RunningSum a) { return a.total + a.lost; }
inline float value(RunningSum a, float x) { return a.total + (a.lost + x); }

inline RunningProduct joined(RunningProduct a, float x) {
  const float total = a.total * x;
  const float lost = fma(a.total, x, -total) + a.lost * x;
  return {total, fabs(total) < INFINITY ? lost : 0.0f};
}
inline RunningProduct joined(RunningProduct a, RunningProduct b) {
  const RunningProduct product = joined(a, b.total);
  const float lost = product.lost + a.total * b.lost;
  return {product.total, fabs(product.total) < INFINITY ? lost : 0.0f};
}
inline float value(RunningProduct a) { return a.total + a.lost; }
inline float value(RunningProduct a, RunningProduct b) { return value(joined(a, b)); }

inline float joined(float a, float x) { return a + x; }
inline ulong joined(ulong a, ulong x) { return a + x; }
inline ulong value(ulong a) { return a; }
inline ulong value(ulong a, ulong x) { return a + x; }

inline RunningIntegerProduct joined(RunningIntegerProduct a, ulong x) { return {a.total * x}; }
inline RunningIntegerProduct joined(RunningIntegerProduct a, RunningIntegerProduct b) {
  return {a.total * b.total};
}
inline ulong value(RunningIntegerProduct a) { return a.total; }
inline ulong value(RunningIntegerProduct a, RunningIntegerProduct b) { return a.total * b.total; }

// What elements are joined in, what a total is, and totals side by side.
template <typename Own>
struct IntegerTotals {
  using Value = ulong;
  using Total = Own;
  template <uint N>
  struct Lanes {
    Total total[N];
    void set(uint j, Total t) { total[j] = t; }
    Total get(uint j) const { return total[j]; }
  };
};
template <typename Own>
struct FloatTotals {
  using Value = float;
  using Total = Own;
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

// The two operations: how totals are kept for elements of a type, and the running totals within a
// simdgroup. A product's relative errors would add up over all simdgroups if these were plain floats.
template <typename T, typename IfFloat, typename IfInteger> struct Either { using type = IfInteger; };
template <typename F, typename I> struct Either<float, F, I> { using type = F; };
template <typename F, typename I> struct Either<half, F, I> { using type = F; };
template <typename F, typename I> struct Either<bfloat, F, I> { using type = F; };

struct Adding {
  static constant constexpr bool in_order = false;
  template <typename T>
  using Totals = typename Either<T, FloatTotals<RunningSum>, IntegerTotals<ulong>>::type;
  template <typename T> using Prefix = typename Totals<T>::Value;
};
struct Multiplying {
  static constant constexpr bool in_order = true;  // see join_all
  template <typename T>
  using Totals = typename Either<T, FloatTotals<RunningProduct>, IntegerTotals<RunningIntegerProduct>>::type;
  template <typename T> using Prefix = typename Totals<T>::Total;
};
template <typename Op, typename T> using Total = typename Op::template Totals<T>::Total;
template <typename Op, typename T> using Value = typename Op::template Totals<T>::Value;

// ---- serial: one thread a block ----

// A block of a run, or of runs side by side.
struct ScanBlock {
  ulong first;    // element of the array
  ulong total;    // where its total is, or that of the first of them
  uint count;     // elements of a run
  uint columns;
};

template <uint N>
inline ScanBlock block_of(constant ScanRecord& s, ulong task) {
  const ulong tiles = (s.inner + N - 1) / N;
  const ulong column = task % tiles * N;
  const ulong block = task / tiles % s.blocks, run = task / tiles / s.blocks;
  const ulong start = block * s.block;
  return {(run * s.length + start) * s.inner + column,
          (run * s.blocks + block) * s.inner + column, uint(min(s.length - start, s.block)),
          uint(min(s.inner - column, ulong(N)))};
}

inline ulong task_of(uint2 position) { return position.x + ulong(position.y) * SCAN_GRID_ROW; }

// Joins the elements to a total.
template <typename T, typename Total>
inline void join_all(device const T* x, uint count, thread Total& total) {
  for (uint i = 0; i < count; i++) total = joined(total, ulong(x[i]));
}
template <typename Own, typename T>
inline void join_lanes(device const T* x, uint count, thread Own& total) {
  typename FloatTotals<Own>::template Lanes<CHUNK> lanes;
  for (uint j = 0; j < CHUNK; j++) lanes.set(j, {});
  uint i = 0;
  for (; i + CHUNK <= count; i += CHUNK) {
    for (uint j = 0; j < CHUNK; j++) lanes.set(j, joined(lanes.get(j), float(x[i + j])));
  }
  for (uint j = 0; j < CHUNK; j++) total = joined(total, lanes.get(j));
  for (; i < count; i++) total = joined(total, float(x[i]));
}
template <typename T>
inline void join_all(device const T* x, uint count, thread RunningSum& total) {
  join_lanes(x, count, total);
}
// In order: a product of elements that are not neighbours may overflow where no prefix does.
template <typename T>
inline void join_all(device const T* x, uint count, thread RunningProduct& total) {
  for (uint i = 0; i < count; i++) total = joined(total, float(x[i]));
}

template <typename Op, typename T>
kernel void total_rows(device const T* in [[buffer(0)]],
                       device Total<Op, T>* totals [[buffer(1)]],
                       constant ScanRecord& s [[buffer(2)]],
                       uint2 position [[thread_position_in_grid]]) {
  if (task_of(position) >= s.tasks) return;
  const ScanBlock block = block_of<1>(s, task_of(position));
  Total<Op, T> total = {};
  join_all(in + block.first, block.count, total);
  totals[block.total] = total;
}

// The total of a chunk from its running sums, which each lost something too.
template <typename T>
inline RunningSum total_of(device const T* x, thread const float* sums) {
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
// Writes the running totals of `count` elements that `total` comes before.
template <typename T, typename Out, typename Total>
inline void walk(device const T* x, device Out* y, uint count, Total total) {
  for (uint i = 0; i < count; i++) {
    total = joined(total, ulong(x[i]));
    y[i] = Out(value(total));
  }
}
template <typename T, typename Out>
inline void walk(device const T* x, device Out* y, uint count, RunningProduct total) {
  for (uint i = 0; i < count; i++) {
    total = joined(total, float(x[i]));
    y[i] = Out(value(total));
  }
}
template <typename T, typename Out>
inline void walk(device const T* x, device Out* y, uint count, RunningSum total) {
  uint i = 0;
  for (; i + CHUNK <= count; i += CHUNK) {
    float sums[CHUNK], sum = 0;
    for (uint j = 0; j < CHUNK; j++) sums[j] = sum += float(x[i + j]);
    for (uint j = 0; j < CHUNK; j++) y[i + j] = Out(value(total, sums[j]));
    total = joined(total, total_of(x + i, sums));
  }
  for (; i < count; i++) {
    total = joined(total, float(x[i]));
    y[i] = Out(value(total));
  }
}

template <typename Op, typename T, typename Out>
kernel void scan_rows(device const T* in [[buffer(0)]], device Out* out [[buffer(1)]],
                      device const Total<Op, T>* before [[buffer(2)]],
                      constant ScanRecord& s [[buffer(3)]],
                      uint2 position [[thread_position_in_grid]]) {
  if (task_of(position) >= s.tasks) return;
  const ScanBlock block = block_of<1>(s, task_of(position));
  Total<Op, T> total = {};
  if (s.blocks > 1) total = before[block.total];
  walk(in + block.first, out + block.first, block.count, total);
}

template <typename Op, typename T, uint N>
kernel void total_columns(device const T* in [[buffer(0)]],
                          device Total<Op, T>* totals [[buffer(1)]],
                          constant ScanRecord& s [[buffer(2)]],
                          uint2 position [[thread_position_in_grid]]) {
  if (task_of(position) >= s.tasks) return;
  const ScanBlock block = block_of<N>(s, task_of(position));
  device const T* x = in + block.first;
  typename Op::template Totals<T>::template Lanes<N> lanes;
  for (uint j = 0; j < block.columns; j++) lanes.set(j, {});
  for (uint i = 0; i < block.count; i++, x += s.inner) {
    for (uint j = 0; j < block.columns; j++) {
      lanes.set(j, joined(lanes.get(j), Value<Op, T>(x[j])));
    }
  }
  for (uint j = 0; j < block.columns; j++) totals[block.total + j] = lanes.get(j);
}

template <typename Op, typename T, typename Out, uint N>
kernel void scan_columns(device const T* in [[buffer(0)]], device Out* out [[buffer(1)]],
                         device const Total<Op, T>* before [[buffer(2)]],
                         constant ScanRecord& s [[buffer(3)]],
                         uint2 position [[thread_position_in_grid]]) {
  if (task_of(position) >= s.tasks) return;
  const ScanBlock block = block_of<N>(s, task_of(position));
  device const T* x = in + block.first;
  device Out* y = out + block.first;
  typename Op::template Totals<T>::template Lanes<N> lanes;
  for (uint j = 0; j < block.columns; j++) {
    lanes.set(j, {});
    if (s.blocks > 1) lanes.set(j, before[block.total + j]);
  }
  for (uint i = 0; i < block.count; i++, x += s.inner, y += s.inner) {
    for (uint j = 0; j < block.columns; j++) {
      lanes.set(j, joined(lanes.get(j), Value<Op, T>(x[j])));
      y[j] = Out(value(lanes.get(j)));
    }
  }
}

// One thread a run: each block's total becomes that of the blocks before it.
template <typename Total>
kernel void scan_totals(device Total* totals [[buffer(0)]], constant ScanRecord& s [[buffer(1)]],
                        uint2 position [[thread_position_in_grid]]) {
  const ulong run = task_of(position);
  if (run >= s.outer * s.inner) return;
  device Total* own = totals + run / s.inner * s.blocks * s.inner + run % s.inner;
  Total before = {};
  for (ulong block = 0; block < s.blocks; block++, own += s.inner) {
    const Total total = *own;
    *own = before;
    before = joined(before, total);
  }
}

// ---- simd: a simdgroup a block of a row; a thread a column ----

// What the lane so many places before or after has. Shuffles know no 64-bit numbers.
inline float earlier(float x, ushort by) { return simd_shuffle_up(x, by); }
inline ulong earlier(ulong x, ushort by) {
  return as_type<ulong>(simd_shuffle_up(as_type<uint2>(x), by));
}
inline RunningProduct earlier(RunningProduct x, ushort by) {
  return {simd_shuffle_up(x.total, by), simd_shuffle_up(x.lost, by)};
}
inline RunningIntegerProduct earlier(RunningIntegerProduct x, ushort by) { return {earlier(x.total, by)}; }
inline ulong later(ulong x, ushort by) {
  return as_type<ulong>(simd_shuffle_down(as_type<uint2>(x), by));
}
inline RunningSum later(RunningSum x, ushort by) {
  return {simd_shuffle_down(x.total, by), simd_shuffle_down(x.lost, by)};
}
inline RunningProduct later(RunningProduct x, ushort by) {
  return {simd_shuffle_down(x.total, by), simd_shuffle_down(x.lost, by)};
}
inline RunningIntegerProduct later(RunningIntegerProduct x, ushort by) { return {later(x.total, by)}; }
inline float last(float x) { return simd_broadcast(x, ushort(SCAN_WIDTH - 1)); }
inline ulong last(ulong x) {
  return as_type<ulong>(simd_broadcast(as_type<uint2>(x), ushort(SCAN_WIDTH - 1)));
}
inline RunningProduct last(RunningProduct x) { return {last(x.total), last(x.lost)}; }
inline RunningIntegerProduct last(RunningIntegerProduct x) { return {last(x.total)}; }

// The total of all lanes, in the first one.
template <typename T> inline T joined_lanes(T total) {
  for (ushort by = SCAN_WIDTH / 2; by > 0; by /= 2) total = joined(total, later(total, by));
  return total;
}

template <typename Op, typename T>
kernel void total_rows_simd(device const T* in [[buffer(0)]],
                            device Total<Op, T>* totals [[buffer(1)]],
                            constant ScanRecord& s [[buffer(2)]],
                            uint2 position [[thread_position_in_grid]],
                            uint lane [[thread_index_in_simdgroup]]) {
  const ulong task = task_of(position) / SCAN_WIDTH;
  if (task >= s.tasks) return;
  const ScanBlock block = block_of<1>(s, task);
  Total<Op, T> total = {};
  for (uint i = 0; i < block.count; i += SCAN_WIDTH) {
    Total<Op, T> part = {};
    if (i + lane < block.count) part = joined(part, Value<Op, T>(in[block.first + i + lane]));
    if (Op::in_order) part = joined_lanes(part);
    total = joined(total, part);
  }
  if (!Op::in_order) total = joined_lanes(total);
  if (lane == 0) totals[block.total] = total;
}

template <typename Op, typename T, typename Out>
kernel void scan_rows_simd(device const T* in [[buffer(0)]], device Out* out [[buffer(1)]],
                           device const Total<Op, T>* before [[buffer(2)]],
                           constant ScanRecord& s [[buffer(3)]],
                           uint2 position [[thread_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]]) {
  using Prefix = typename Op::template Prefix<T>;
  const ulong task = task_of(position) / SCAN_WIDTH;
  if (task >= s.tasks) return;
  const ScanBlock block = block_of<1>(s, task);
  Total<Op, T> total = {};
  if (s.blocks > 1) total = before[block.total];
  for (uint i = 0; i < block.count; i += SCAN_WIDTH) {
    const bool inside = i + lane < block.count;
    Prefix sum = {};
    if (inside) sum = joined(sum, Value<Op, T>(in[block.first + i + lane]));
    for (ushort by = 1; by < SCAN_WIDTH; by *= 2) {
      const Prefix other = earlier(sum, by);
      if (lane >= by) sum = joined(other, sum);
    }
    if (inside) out[block.first + i + lane] = Out(value(total, sum));
    total = joined(total, last(sum));
  }
}
