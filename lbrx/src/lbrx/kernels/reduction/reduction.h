// Reductions of an array of any strides, in blocks. Each block gives a state, and states are merged in
// pairs: rounding errors grow with the logarithm of the length, and results are reproducible. For
// safe math: NaN and infinity are kept.
#pragma once
#include "records/reduction.h"
#include "reduction_states.h"
#include "vector_elements.h"

constant constexpr uint GRID_ROW = 1 << 24;  // threads along x
constant constexpr uint ROW_LANES = 64;      // independent sums of a row
constant constexpr uint COLUMN_LANES = 512;
constant constexpr uint SIMD_WIDTH = 32;
constant constexpr uint MERGING = 256;       // threads that merge states
constant constexpr uint TOGETHER = 4;        // elements per lane in one iteration
constant constexpr uint COLUMN_ROWS = 8;     // simdgroups that share the rows of a block of columns

// ---- serial: one thread per block ----

// The start of a run, and its number among the runs of its result.
struct Start {
  long in;
  ulong out;
  ulong index;
  ulong repeat;
};

// 64-bit divisions take a GPU longer than short rows do: most problems need none.
inline ulong quotient(ulong x, ulong y) { return y == 1 ? x : x / y; }
inline ulong remainder(ulong x, ulong y) { return y == 1 ? 0 : x % y; }

inline Start start_of(constant ReductionRecord& r, constant AxisRecord* axes, ulong run) {
  Start start = {r.first, 0, 0, remainder(run, r.repeats)};
  for (uint axis = r.axes; axis-- > 0;) {
    const ulong position = axis == 0 ? run : run % axes[axis].size;
    if (axis > 0) run /= axes[axis].size;
    start.in += long(position) * axes[axis].stride;
    start.out += position * axes[axis].out;
    start.index += position * axes[axis].numbering;
  }
  return start;
}

// Stores a block's state for `reduce_merge`, or the result if it is the only block.
template <typename R>
inline void store(typename R::State state, device typename R::State* states,
                  device typename R::Out* out, constant ReductionRecord& r, ulong part, ulong at) {
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
                        constant ReductionRecord& r [[buffer(3)]],
                        constant AxisRecord* axes [[buffer(4)]],
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
    const Numbering number = {start.index + (first + j) * r.numbering, N * r.numbering};
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
                           constant ReductionRecord& r [[buffer(3)]],
                           constant AxisRecord* axes [[buffer(4)]],
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
      const Numbering number = {start.index + (first + k) * r.numbering, r.fold * r.numbering};
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
                         constant ReductionRecord& r [[buffer(2)]],
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

// ---- simd: one simdgroup per block of a row, one threadgroup per block of columns ----

// Merges the states of a simdgroup into its first thread.
template <typename R>
inline typename R::State merged_simd(typename R::State all, float parameter) {
  for (ushort by = SIMD_WIDTH / 2; by > 0; by /= 2) {
    all = R::merge(all, R::from(all, by), parameter);
  }
  return all;
}

// The array is read in runs of type V: one element, or a uint4 of several. A thread has runs that are
// `step` apart, and loads some before it uses the first.
template <typename R, typename V>
struct Runs {
  using In = typename R::In;
  enum : uint {
    SIZE = sizeof(V) / sizeof(In),
    LANES = SIZE < 4 ? 4 : SIZE,  // independent sums
    GROUPS = LANES / SIZE,        // runs before a lane is used again
    LOADS = sizeof(V) < 16 ? 16 : 8,
  };
  RunLanes<R, V, LANES> lanes;
  float parameter;

  explicit Runs(float parameter_) : parameter(parameter_) {
    for (uint j = 0; j < LANES; j++) lanes.clear(j);
  }

  void add(device const V* x, ulong step, uint count) {
    uint n = 0;
    for (; n + LOADS <= count; n += LOADS, x += LOADS * step) {
      V runs[LOADS];
#pragma unroll
      for (uint k = 0; k < LOADS; k++) runs[k] = x[k * step];
#pragma unroll
      for (uint k = 0; k < LOADS; k++) add(runs[k], n, k);
    }
#pragma unroll
    for (uint k = 0; k < LOADS; k++) {
      if (n + k < count) add(x[k * step], n, k);
    }
  }

  // Run n + k, where n is a multiple of LOADS: the lanes are known to the compiler.
  void add(V run, uint n, uint k) {
    lanes.add_run(k % GROUPS * SIZE, run, (n + k) / GROUPS, parameter);
  }
};

// Rows begin and end anywhere: the elements before the first and after the last run are single.
template <typename R, typename V>
kernel void reduce_rows_simd(device const V* in [[buffer(0)]],
                             device typename R::State* states [[buffer(1)]],
                             device typename R::Out* out [[buffer(2)]],
                             constant ReductionRecord& r [[buffer(3)]],
                             constant AxisRecord* axes [[buffer(4)]],
                             uint2 position [[thread_position_in_grid]],
                             uint lane [[thread_index_in_simdgroup]]) {
  using Own = Runs<R, V>;
  constexpr uint N = Own::SIZE, step = Own::LANES * SIMD_WIDTH, HALF = SIMD_WIDTH / 2;
  const ulong task = (position.x + ulong(position.y) * GRID_ROW) / SIMD_WIDTH;
  if (task >= r.tasks) return;
  const ulong block = remainder(task, r.blocks), first = block * r.block;
  const Start start = start_of(r, axes, quotient(task, r.blocks));
  const ulong begin = start.in + first;
  const uint count = uint(min(r.length - first, r.block));
  const uint head = min(uint(-begin % N), count), runs = (count - head) / N;
  const uint tail = (count - head) % N;
  Own own(r.parameter);
  own.add(in + (begin + head) / N + lane, SIMD_WIDTH, (runs + SIMD_WIDTH - 1 - lane) / SIMD_WIDTH);
  const uint edge = lane < HALF ? lane : count - tail + lane - HALF;
  const bool has_edge = lane < HALF ? lane < head : lane - HALF < tail;
  typename R::template Lanes<1> single;
  single.clear(0);
  if (has_edge) single.add(0, ((device const typename R::In*)in)[begin + edge], 0, r.parameter);
  typename R::State all =
      single.state(0, has_edge, {start.index + (first + edge) * r.numbering, 0});
#pragma unroll
  for (uint j = 0; j < Own::LANES; j++) {
    const uint at = (j / N * SIMD_WIDTH + lane) * N + j % N;
    const Numbering number = {start.index + (first + head + at) * r.numbering, step * r.numbering};
    const uint elements = at < runs * N ? (runs * N - at - 1) / step + 1 : 0;
    all = R::merge(all, own.lanes.state(j, elements, number), r.parameter);
  }
  all = merged_simd<R>(all, r.parameter);
  if (lane == 0) store<R>(all, states, out, r, start.repeat * r.blocks + block, start.out);
}

// One threadgroup per block of columns, whose strides count runs: lanes are neighbouring runs, and
// simdgroups take turns at rows.
template <typename R, typename V>
kernel void reduce_columns_simd(device const V* in [[buffer(0)]],
                                device typename R::State* states [[buffer(1)]],
                                device typename R::Out* out [[buffer(2)]],
                                constant ReductionRecord& r [[buffer(3)]],
                                constant AxisRecord* axes [[buffer(4)]],
                                uint2 position [[thread_position_in_grid]],
                                uint lane [[thread_index_in_simdgroup]],
                                uint row [[simdgroup_index_in_threadgroup]]) {
  using Own = Runs<R, V>;
  constexpr uint N = Own::SIZE;
  threadgroup typename R::State shared[COLUMN_ROWS][SIMD_WIDTH];
  const ulong thread_index = position.x + ulong(position.y) * GRID_ROW;
  const ulong task = thread_index / (COLUMN_ROWS * SIMD_WIDTH);
  if (task >= r.tasks) return;  // the whole threadgroup
  const ulong tiles = (r.inner + N * SIMD_WIDTH - 1) / (N * SIMD_WIDTH);
  const ulong column = (remainder(task, tiles) * SIMD_WIDTH + lane) * N;
  const ulong band = quotient(task, tiles), block = remainder(band, r.blocks);
  const ulong first = block * r.block + row;
  const Start start = start_of(r, axes, quotient(band, r.blocks));
  const bool inside = column < r.inner;
  const uint rows = uint(min(r.length - block * r.block, r.block));
  const uint count = inside && row < rows ? (rows - row - 1) / COLUMN_ROWS + 1 : 0;
  Own own(r.parameter);
  own.add(in + start.in + long(first) * r.stride + column / N, COLUMN_ROWS * r.stride, count);
#pragma unroll
  for (uint j = 0; j < N; j++) {
    typename R::State all;
#pragma unroll
    for (uint k = 0; k < Own::GROUPS; k++) {
      const uint elements = count > k ? (count - k - 1) / Own::GROUPS + 1 : 0;
      const Numbering number = {start.index + (first + k * COLUMN_ROWS) * r.numbering,
                                Own::GROUPS * COLUMN_ROWS * r.numbering};
      const auto each = own.lanes.state(k * N + j, elements, number);
      all = k == 0 ? each : R::merge(all, each, r.parameter);
    }
    shared[row][lane] = all;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (row == j % COLUMN_ROWS && inside) {
      all = shared[0][lane];
      for (uint k = 1; k < COLUMN_ROWS; k++) all = R::merge(all, shared[k][lane], r.parameter);
      const ulong at = start.out + (column + j) * r.inner_out;
      store<R>(all, states, out, r, start.repeat * r.blocks + block, at);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// As reduce_columns_simd, where rows begin anywhere within runs of several elements. The rows of a
// simdgroup begin alike, as COLUMN_ROWS of any stride are whole runs: its lanes have the runs that
// cover the columns of a tile, and those in other tiles are dropped.
template <typename R>
kernel void reduce_columns_ragged(device const uint4* in [[buffer(0)]],
                                  device typename R::State* states [[buffer(1)]],
                                  device typename R::Out* out [[buffer(2)]],
                                  constant ReductionRecord& r [[buffer(3)]],
                                  constant AxisRecord* axes [[buffer(4)]],
                                  uint2 position [[thread_position_in_grid]],
                                  uint lane [[thread_index_in_simdgroup]],
                                  uint row [[simdgroup_index_in_threadgroup]]) {
  using Own = Runs<R, uint4>;
  using In = typename R::In;
  constexpr uint N = Own::SIZE, WIDTH = (SIMD_WIDTH - 1) * N;
  threadgroup typename R::State shared[COLUMN_ROWS][WIDTH];
  const ulong thread_index = position.x + ulong(position.y) * GRID_ROW;
  const ulong task = thread_index / (COLUMN_ROWS * SIMD_WIDTH);
  if (task >= r.tasks) return;  // the whole threadgroup
  const ulong tiles = (r.inner + WIDTH - 1) / WIDTH;
  const ulong column = remainder(task, tiles) * WIDTH;
  const ulong band = quotient(task, tiles), block = remainder(band, r.blocks);
  const ulong first = block * r.block + row;
  const Start start = start_of(r, axes, quotient(band, r.blocks));
  const ulong begin = start.in + first * r.stride + column;
  const uint phase = begin % N;
  const uint left = uint(min(r.inner - column, ulong(WIDTH + N)));  // columns up to the row's end
  const uint rows = uint(min(r.length - block * r.block, r.block));
  const bool inside = lane * N < phase + left;
  const uint count = inside && row < rows ? (rows - row - 1) / COLUMN_ROWS + 1 : 0;
  // Nothing may follow the last row: its last run is read by elements.
  const bool at_end = count > 0 && first + (count - 1) * COLUMN_ROWS == r.length - 1 &&
                      (lane + 1) * N > phase + left;
  Own own(r.parameter);
  own.add(in + begin / N + lane, COLUMN_ROWS * r.stride / N, count - uint(at_end));
  if (at_end) {
    const ulong from = (begin / N + lane) * N + (count - 1) * COLUMN_ROWS * r.stride;
    In elements[N];
#pragma unroll
    for (uint j = 0; j < N; j++)
      elements[j] = lane * N + j < phase + left ? ((device const In*)in)[from + j] : In(0);
    own.add(Run<In, uint4>::of(elements), count - 1, 0);
  }
  const Numbering number = {start.index + first * r.numbering, COLUMN_ROWS * r.numbering};
#pragma unroll
  for (uint j = 0; j < N; j++) {
    const uint at = lane * N + j - phase;
    if (at < WIDTH) shared[row][at] = own.lanes.state(j, count, number);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint at = row * SIMD_WIDTH + lane; at < min(left, WIDTH); at += COLUMN_ROWS * SIMD_WIDTH) {
    typename R::State all = shared[0][at];
    for (uint k = 1; k < COLUMN_ROWS; k++) all = R::merge(all, shared[k][at], r.parameter);
    const ulong place = start.out + (column + at) * r.inner_out;
    store<R>(all, states, out, r, start.repeat * r.blocks + block, place);
  }
}

// One threadgroup per 32 results, whose states are neighbours, or per result if there are fewer.
template <typename R>
kernel void reduce_merge_simd(device const typename R::State* states [[buffer(0)]],
                              device typename R::Out* out [[buffer(1)]],
                              constant ReductionRecord& r [[buffer(2)]],
                              uint2 position [[thread_position_in_grid]],
                              uint own [[thread_index_in_threadgroup]]) {
  using State = typename R::State;
  threadgroup State shared[MERGING];
  const uint width = r.outputs < SIMD_WIDTH ? 1 : SIMD_WIDTH, step = MERGING / width;
  const ulong group = (position.x + ulong(position.y) * GRID_ROW) / MERGING;
  const ulong at = group * width + own % width, parts = r.repeats * r.blocks;
  if (group * width >= r.outputs) return;  // the whole threadgroup
  typename R::template Lanes<1> nothing;
  nothing.clear(0);
  State all = nothing.state(0, 0, {0, 0});
  if (at < r.outputs) {
    ulong i = own / width;
    for (; i + (TOGETHER - 1) * step < parts; i += TOGETHER * step) {
      State some[TOGETHER];
#pragma unroll
      for (uint k = 0; k < TOGETHER; k++) some[k] = states[(i + k * step) * r.outputs + at];
#pragma unroll
      for (uint k = 0; k < TOGETHER; k++) all = R::merge(all, some[k], r.parameter);
    }
    for (; i < parts; i += step) all = R::merge(all, states[i * r.outputs + at], r.parameter);
  }
  shared[own] = all;
  for (uint half_way = MERGING / 2; half_way >= width; half_way /= 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (own < half_way) {
      shared[own] = R::merge(shared[own], shared[own + half_way], r.parameter);
    }
  }
  if (own < width && at < r.outputs) out[at] = R::finish(shared[own], r.parameter);
}
