// Reductions of an array of any strides, in blocks. Each block gives a state, and states are merged in
// pairs: rounding errors grow with the logarithm of the length, and results are reproducible. For
// safe math: NaN and infinity are kept.
#pragma once
#include "reduction_states.h"

constant constexpr uint GRID_ROW = 1 << 24;  // threads along x
constant constexpr uint ROW_LANES = 64;      // independent sums of a row
constant constexpr uint COLUMN_LANES = 512;
constant constexpr uint SIMD_LANES = 4;      // of a thread in a simdgroup
constant constexpr uint SIMD_WIDTH = 32;
constant constexpr uint MERGING = 256;       // threads that merge the states of one result
constant constexpr uint TOGETHER = 4;        // elements per lane in one iteration

struct Axis {
  ulong size;
  long in;      // strides: of the array,
  ulong out;    // of the result,
  ulong index;  // of the numbering that argmax uses
};

// Runs of `length` elements are split into blocks. The axes enumerate the runs, kept axes first.
struct Reduction {
  long first;     // element of the array
  ulong tasks;
  ulong outputs;  // elements of the result
  ulong length;   // of a run
  long stride;
  ulong index;    // stride of a run in the numbering
  ulong inner;    // columns: 1 for rows
  long inner_stride;
  ulong inner_out;
  ulong block;    // elements of a run
  ulong blocks;   // in a run
  ulong repeats;  // runs for one result
  uint axes;
  uint fold;        // elements of a run that are processed in neighbouring lanes
  float parameter;  // a divisor, or the order of a norm
};

// ---- serial: one thread per block ----

// The start of a run, and its number among the runs of its result.
struct Start {
  long in;
  ulong out;
  ulong index;
  ulong repeat;
};

inline Start start_of(constant Reduction& r, constant Axis* axes, ulong run) {
  Start start = {r.first, 0, 0, run % r.repeats};
  for (uint axis = r.axes; axis-- > 0;) {
    const ulong position = run % axes[axis].size;
    run /= axes[axis].size;
    start.in += long(position) * axes[axis].in;
    start.out += position * axes[axis].out;
    start.index += position * axes[axis].index;
  }
  return start;
}

// Stores a block's state for `reduce_merge`, or the result if it is the only block.
template <typename R>
inline void store(typename R::State state, device typename R::State* states,
                  device typename R::Out* out, constant Reduction& r, ulong part, ulong at) {
  if (r.repeats * r.blocks == 1) {
    out[at] = R::finish(state, r.parameter);
  } else {
    states[part * r.outputs + at] = state;
  }
}

template <typename R>
kernel void reduce_rows(device const typename R::In* in [[buffer(0)]],
                        device typename R::State* states [[buffer(1)]],
                        device typename R::Out* out [[buffer(2)]],
                        constant Reduction& r [[buffer(3)]],
                        constant Axis* axes [[buffer(4)]],
                        uint2 position [[thread_position_in_grid]]) {
  constexpr uint N = ROW_LANES;
  const ulong task = position.x + ulong(position.y) * GRID_ROW;
  if (task >= r.tasks) return;
  const ulong block = task % r.blocks, first = block * r.block;
  const Start start = start_of(r, axes, task / r.blocks);
  const uint count = uint(min(r.length - first, r.block));
  const uint steps = count / N, rest = count % N;
  device const typename R::In* x = in + start.in + first;
  typename R::template Lanes<N> lanes;
  for (uint j = 0; j < N; j++) lanes.clear(j);
  uint i = 0;
  for (; i + TOGETHER <= steps; i += TOGETHER, x += TOGETHER * N) {
    for (uint j = 0; j < N; j++) {
      for (uint k = 0; k < TOGETHER; k++) lanes.add(j, x[k * N + j], i + k, r.parameter);
    }
  }
  for (; i < steps; i++, x += N) {
    for (uint j = 0; j < N; j++) lanes.add(j, x[j], i, r.parameter);
  }
  for (uint j = 0; j < N; j++) {
    if (j < rest) lanes.add(j, x[j], steps, r.parameter);
  }
  typename R::State all[N];
  for (uint j = 0; j < N; j++) {
    const Numbering number = {start.index + (first + j) * r.index, N * r.index};
    all[j] = lanes.state(j, steps + uint(j < rest), number);
  }
  for (uint half_way = N / 2; half_way > 0; half_way /= 2) {
    for (uint j = 0; j < half_way; j++) {
      all[j] = R::merge(all[j], all[j + half_way], r.parameter);
    }
  }
  store<R>(all[0], states, out, r, start.repeat * r.blocks + block, start.out);
}

// Lanes are columns; with few columns, several elements of a run are neighbouring lanes. Columns are
// adjacent or, if strided, anywhere, which also covers short rows.
template <typename R, uint N, bool strided>
kernel void reduce_columns(device const typename R::In* in [[buffer(0)]],
                           device typename R::State* states [[buffer(1)]],
                           device typename R::Out* out [[buffer(2)]],
                           constant Reduction& r [[buffer(3)]],
                           constant Axis* axes [[buffer(4)]],
                           uint2 position [[thread_position_in_grid]]) {
  const ulong task = position.x + ulong(position.y) * GRID_ROW;
  if (task >= r.tasks) return;
  const ulong tiles = (r.inner + N - 1) / N;
  const ulong column = task % tiles * N;
  const ulong block = task / tiles % r.blocks, first = block * r.block;
  const Start start = start_of(r, axes, task / tiles / r.blocks);
  const uint columns = uint(min(r.inner - column, ulong(N)));
  const uint count = uint(min(r.length - first, r.block));
  const uint steps = count / r.fold, rest = count % r.fold, width = columns * r.fold;
  const long beside = strided ? r.inner_stride : 1, step = r.stride * r.fold;
  device const typename R::In* x = in + start.in + long(first) * r.stride + long(column) * beside;
  typename R::template Lanes<N> lanes;
  for (uint j = 0; j < width; j++) lanes.clear(j);
  uint i = 0;
  for (; i + TOGETHER <= steps; i += TOGETHER, x += TOGETHER * step) {
    for (uint j = 0; j < width; j++) {
      for (uint k = 0; k < TOGETHER; k++) {
        lanes.add(j, x[k * step + j * beside], i + k, r.parameter);
      }
    }
  }
  for (; i < steps; i++, x += step) {
    for (uint j = 0; j < width; j++) lanes.add(j, x[j * beside], i, r.parameter);
  }
  for (uint j = 0; j < columns * rest; j++) lanes.add(j, x[j * beside], steps, r.parameter);
  for (uint c = 0; c < columns; c++) {
    typename R::State all;
    for (uint k = 0; k < r.fold; k++) {
      const Numbering number = {start.index + (first + k) * r.index, r.fold * r.index};
      const auto own = lanes.state(k * columns + c, steps + uint(k < rest), number);
      all = k == 0 ? own : R::merge(all, own, r.parameter);
    }
    const ulong at = start.out + (column + c) * r.inner_out;
    store<R>(all, states, out, r, start.repeat * r.blocks + block, at);
  }
}

// One thread per result: merges the states of blocks in pairs, pairs of pairs and so on.
template <typename R>
kernel void reduce_merge(device const typename R::State* states [[buffer(0)]],
                         device typename R::Out* out [[buffer(1)]],
                         constant Reduction& r [[buffer(2)]],
                         uint2 position [[thread_position_in_grid]]) {
  const ulong at = position.x + ulong(position.y) * GRID_ROW;
  if (at >= r.outputs) return;
  typename R::State waiting[64];  // of 2^n blocks each, n falling
  uint count = 0;
  for (ulong i = 0; i < r.repeats * r.blocks; i++) {
    typename R::State all = states[i * r.outputs + at];
    for (ulong odd = i; odd & 1; odd >>= 1) all = R::merge(waiting[--count], all, r.parameter);
    waiting[count++] = all;
  }
  typename R::State all = waiting[--count];
  while (count > 0) all = R::merge(waiting[--count], all, r.parameter);
  out[at] = R::finish(all, r.parameter);
}

// ---- simd: one simdgroup per block of a row, or one thread per column ----

// Merges the states of a simdgroup into its first thread.
template <typename R>
inline typename R::State merged_simd(typename R::State all, float parameter) {
  for (ushort by = SIMD_WIDTH / 2; by > 0; by /= 2) {
    all = R::merge(all, R::from(all, by), parameter);
  }
  return all;
}

template <typename R>
kernel void reduce_rows_simd(device const typename R::In* in [[buffer(0)]],
                             device typename R::State* states [[buffer(1)]],
                             device typename R::Out* out [[buffer(2)]],
                             constant Reduction& r [[buffer(3)]],
                             constant Axis* axes [[buffer(4)]],
                             uint2 position [[thread_position_in_grid]],
                             uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint N = SIMD_LANES, step = N * SIMD_WIDTH;
  const ulong task = (position.x + ulong(position.y) * GRID_ROW) / SIMD_WIDTH;
  if (task >= r.tasks) return;
  const ulong block = task % r.blocks, first = block * r.block;
  const Start start = start_of(r, axes, task / r.blocks);
  const uint count = uint(min(r.length - first, r.block));
  const uint steps = count / step, rest = count % step;
  device const typename R::In* x = in + start.in + first + lane;
  typename R::template Lanes<N> lanes;
  for (uint j = 0; j < N; j++) lanes.clear(j);
  for (uint i = 0; i < steps; i++, x += step) {
    for (uint j = 0; j < N; j++) lanes.add(j, x[j * SIMD_WIDTH], i, r.parameter);
  }
  typename R::State all;
  for (uint j = 0; j < N; j++) {
    const uint at = j * SIMD_WIDTH + lane;
    if (at < rest) lanes.add(j, x[j * SIMD_WIDTH], steps, r.parameter);
    const Numbering number = {start.index + (first + at) * r.index, step * r.index};
    const typename R::State own = lanes.state(j, steps + uint(at < rest), number);
    all = j == 0 ? own : R::merge(all, own, r.parameter);
  }
  all = merged_simd<R>(all, r.parameter);
  if (lane == 0) store<R>(all, states, out, r, start.repeat * r.blocks + block, start.out);
}

// One threadgroup per result.
template <typename R>
kernel void reduce_merge_simd(device const typename R::State* states [[buffer(0)]],
                              device typename R::Out* out [[buffer(1)]],
                              constant Reduction& r [[buffer(2)]],
                              uint2 position [[thread_position_in_grid]],
                              uint thread_index [[thread_index_in_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]],
                              uint group [[simdgroup_index_in_threadgroup]]) {
  threadgroup typename R::State shared[MERGING / SIMD_WIDTH];
  const ulong at = (position.x + ulong(position.y) * GRID_ROW) / MERGING;
  if (at >= r.outputs) return;  // the whole threadgroup
  typename R::template Lanes<1> nothing;
  nothing.clear(0);
  const typename R::State none = nothing.state(0, 0, {0, 0});
  typename R::State all = none;
  for (ulong i = thread_index; i < r.repeats * r.blocks; i += MERGING) {
    all = R::merge(all, states[i * r.outputs + at], r.parameter);
  }
  all = merged_simd<R>(all, r.parameter);
  if (lane == 0) shared[group] = all;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (group > 0) return;
  all = lane < MERGING / SIMD_WIDTH ? shared[lane] : none;
  all = merged_simd<R>(all, r.parameter);
  if (lane == 0) out[at] = R::finish(all, r.parameter);
}
