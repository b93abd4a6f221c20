// Reductions of an array of any strides, in blocks: each gives a state, and states are merged in
// pairs, so that rounding errors grow with the logarithm of the length and the same call gives the
// same bits. For safe maths: NaN and infinity live.
#pragma once
#include <metal_stdlib>
using namespace metal;

constant constexpr uint GRID_ROW = 1 << 24;  // threads along x
constant constexpr uint ROW_LANES = 64;      // sums of a row that go on side by side
constant constexpr uint COLUMN_LANES = 512;
constant constexpr uint SIMD_LANES = 4;      // of a thread in a simdgroup
constant constexpr uint SIMD_WIDTH = 32;
constant constexpr uint MERGING = 256;       // threads that merge the states of one result
constant constexpr uint TOGETHER = 4;        // elements that a lane takes between a load and a store

struct Axis {
  ulong size;
  long in;      // strides: of the array,
  ulong out;    // of the result,
  ulong index;  // of the numbering that argmax uses
};

// Runs of `length` elements are cut into blocks. The axes lead from run to run, kept ones first.
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
  uint fold;        // elements of a run that are lanes beside each other, as columns are
  float parameter;  // a divisor, or the order of a norm
};

// ---- what is kept of the elements seen, by operation ----

// Halves are computed in float. Integers add up in 64 bits, which wrap; a lane sees few enough small
// ones for 32. A mean of integers is a float.
template <typename V, typename L, typename W, typename S, typename M>
struct TypesOf {
  using Value = V;
  using Lane = L;
  using Wide = W;
  using Sum = S;
  using Mean = M;
};
template <typename T> struct Types : TypesOf<T, ulong, ulong, ulong, float> {};
template <> struct Types<char> : TypesOf<char, int, ulong, ulong, float> {};
template <> struct Types<uchar> : TypesOf<uchar, int, ulong, ulong, float> {};
template <> struct Types<short> : TypesOf<short, int, ulong, ulong, float> {};
template <> struct Types<ushort> : TypesOf<ushort, int, ulong, ulong, float> {};
template <> struct Types<half> : TypesOf<float, float, float, half, half> {};
template <> struct Types<bfloat> : TypesOf<float, float, float, bfloat, bfloat> {};
template <> struct Types<float> : TypesOf<float, float, float, float, float> {};

// What the thread so many lanes further has. Shuffles know no 64-bit numbers.
template <typename V> inline V further(V x, ushort by) { return simd_shuffle_down(x, by); }
template <> inline ulong further(ulong x, ushort by) {
  return as_type<ulong>(simd_shuffle_down(as_type<uint2>(x), by));
}
template <> inline long further(long x, ushort by) { return long(further(ulong(x), by)); }

// The number of a lane's first element, and from one to the next.
struct Numbering {
  ulong first;
  ulong step;
};

// Operations that keep one number, which `join` combines: the elements' and the states' alike.
template <typename F>
struct Folding {
  using In = typename F::In;
  using State = typename F::State;
  using Out = typename F::Out;
  template <uint N>
  struct Lanes {
    typename F::Lane part[N];
    void clear(uint j) { part[j] = F::empty(); }
    void add(uint j, In x, uint, float) { part[j] = F::join(part[j], F::lift(x)); }
    State state(uint j, uint, Numbering) const { return State(part[j]); }
  };
  static State merge(State a, State b, float) { return F::join(a, b); }
  static State from(State s, ushort by) { return further(s, by); }
  static Out finish(State s, float parameter) { return F::finish(s, parameter); }
};

template <typename T>
struct Sum {
  using In = T;
  using Out = typename Types<T>::Sum;
  using Lane = typename Types<T>::Lane;
  using State = typename Types<T>::Wide;
  static Lane empty() { return Lane(0); }
  static Lane lift(T x) { return Lane(x); }
  template <typename U> static U join(U a, U b) { return a + b; }
  static Out finish(State s, float) { return Out(s); }
};

template <typename T>
struct Prod {
  using In = T;
  using Out = typename Types<T>::Sum;
  using Lane = typename Types<T>::Wide;
  using State = Lane;
  static Lane empty() { return Lane(1); }
  static Lane lift(T x) { return Lane(x); }
  static Lane join(Lane a, Lane b) { return a * b; }
  static Out finish(State s, float) { return Out(s); }
};

template <typename T>
struct Mean {
  using In = T;
  using Out = typename Types<T>::Mean;
  using Lane = float;
  using State = float;
  static Lane empty() { return 0; }
  static Lane lift(T x) { return float(x); }
  static Lane join(Lane a, Lane b) { return a + b; }
  static Out finish(State s, float count) { return Out(s / count); }
};

template <typename T>
struct Norm1 {
  using In = T;
  using Out = T;
  using Lane = float;
  using State = float;
  static Lane empty() { return 0; }
  static Lane lift(T x) { return fabs(float(x)); }
  static Lane join(Lane a, Lane b) { return a + b; }
  static Out finish(State s, float) { return Out(s); }
};

template <typename V> inline V lowest() { return numeric_limits<V>::lowest(); }
template <> inline float lowest() { return -INFINITY; }
template <typename V> inline V highest() { return numeric_limits<V>::max(); }
template <> inline float highest() { return INFINITY; }

// Whether x is taken instead of y: not if it loses, but NaN never does; and the first NaN stays.
template <typename V> struct Largest {
  static V empty() { return lowest<V>(); }
  static bool prefers(V x, V y) { return !(x <= y) && y == y; }
};
template <typename V> struct Smallest {
  static V empty() { return highest<V>(); }
  static bool prefers(V x, V y) { return !(x >= y) && y == y; }
};

template <typename T, typename Order>
struct Extreme {
  using In = T;
  using Out = T;
  using Lane = typename Types<T>::Value;
  using State = Lane;
  static Lane empty() { return Order::empty(); }
  static Lane lift(T x) { return Lane(x); }
  static Lane join(Lane a, Lane b) { return Order::prefers(b, a) ? b : a; }
  static Out finish(State s, float) { return Out(s); }
};
template <typename T> using Max = Extreme<T, Largest<typename Types<T>::Value>>;
template <typename T> using Min = Extreme<T, Smallest<typename Types<T>::Value>>;

template <typename T>
struct NormInf {
  using In = T;
  using Out = T;
  using Lane = float;
  using State = float;
  static Lane empty() { return 0; }
  static Lane lift(T x) { return fabs(float(x)); }
  static Lane join(Lane a, Lane b) { return Largest<float>::prefers(b, a) ? b : a; }
  static Out finish(State s, float) { return Out(s); }
};

template <typename T>
struct Any {
  using In = T;
  using Out = bool;
  using Lane = uint;
  using State = uint;
  static Lane empty() { return 0; }
  static Lane lift(T x) { return x != T(0); }
  static Lane join(Lane a, Lane b) { return a | b; }
  static Out finish(State s, float) { return s != 0; }
};

template <typename T>
struct All {
  using In = T;
  using Out = bool;
  using Lane = uint;
  using State = uint;
  static Lane empty() { return 1; }
  static Lane lift(T x) { return x != T(0); }
  static Lane join(Lane a, Lane b) { return a & b; }
  static Out finish(State s, float) { return s != 0; }
};

// Where the first of the largest or smallest elements is, or the first NaN.
template <typename T, typename Order>
struct Place {
  using In = T;
  using Out = long;
  using Value = typename Types<T>::Value;
  struct State {
    ulong index;
    Value value;
  };
  template <uint N>
  struct Lanes {
    Value value[N];
    uint at[N];
    void clear(uint j) {
      value[j] = Order::empty();
      at[j] = 0;  // right too if all elements are what is least preferred
    }
    void add(uint j, In x, uint i, float) {
      const Value v = Value(x);
      const bool better = Order::prefers(v, value[j]);
      value[j] = better ? v : value[j];
      at[j] = better ? i : at[j];
    }
    State state(uint j, uint count, Numbering number) const {
      return {count ? number.first + at[j] * number.step : ~0ul, value[j]};
    }
  };
  static State merge(State a, State b, float) {
    const bool equal = !Order::prefers(a.value, b.value) && b.index < a.index;
    return Order::prefers(b.value, a.value) || equal ? b : a;
  }
  static State from(State s, ushort by) { return {further(s.index, by), further(s.value, by)}; }
  static Out finish(State s, float) { return Out(s.index); }
};
template <typename T> using ArgMax = Place<T, Largest<typename Types<T>::Value>>;
template <typename T> using ArgMin = Place<T, Smallest<typename Types<T>::Value>>;

// Squared distances from the mean, updated (Welford) and combined (Chan) without cancellation.
template <typename T>
struct Var {
  using In = T;
  using Out = T;
  struct State {
    float count;
    float mean;
    float squares;
  };
  template <uint N>
  struct Lanes {
    float mean[N];
    float squares[N];
    void clear(uint j) { mean[j] = squares[j] = 0; }
    void add(uint j, In x, uint i, float) {
      const float before = float(x) - mean[j];
      mean[j] = fma(before, 1.0f / float(i + 1), mean[j]);
      squares[j] = fma(before, float(x) - mean[j], squares[j]);
    }
    State state(uint j, uint count, Numbering) const {
      return {float(count), mean[j], squares[j]};
    }
  };
  static State merge(State a, State b, float) {
    const float count = a.count + b.count;
    const float share = b.count == 0 ? 0 : b.count / count;
    const float apart = b.mean - a.mean;
    const float squares = fma(apart * apart, a.count * share, a.squares + b.squares);
    return {count, fma(apart, share, a.mean), squares};
  }
  static State from(State s, ushort by) {
    return {further(s.count, by), further(s.mean, by), further(s.squares, by)};
  }
  static Out finish(State s, float divisor) { return Out(s.squares / divisor); }
};

// Three sums of squares (J. L. Blue): of large, ordinary and tiny numbers, so that none overflows
// or vanishes.
template <typename T>
struct Norm2 {
  using In = T;
  using Out = T;
  struct State {
    float large, ordinary, tiny;
  };
  template <uint N>
  struct Lanes {
    float large[N], ordinary[N], tiny[N];
    void clear(uint j) { large[j] = ordinary[j] = tiny[j] = 0; }
    void add(uint j, In x, uint, float) {
      const float v = float(x);
      const bool is_large = fabs(v) > 0x1p50f, is_tiny = fabs(v) < 0x1p-50f;
      const float down = is_large ? v * 0x1p-80f : 0.0f;
      const float up = is_tiny ? v * 0x1p90f : 0.0f;
      const float same = is_large || is_tiny ? 0.0f : v;
      large[j] = fma(down, down, large[j]);
      tiny[j] = fma(up, up, tiny[j]);
      ordinary[j] = fma(same, same, ordinary[j]);
    }
    State state(uint j, uint, Numbering) const { return {large[j], ordinary[j], tiny[j]}; }
  };
  static State merge(State a, State b, float) {
    return {a.large + b.large, a.ordinary + b.ordinary, a.tiny + b.tiny};
  }
  static State from(State s, ushort by) {
    return {further(s.large, by), further(s.ordinary, by), further(s.tiny, by)};
  }
  static Out finish(State s, float) {
    if (s.large > 0) return Out(sqrt(fma(s.ordinary * 0x1p-80f, 0x1p-80f, s.large)) * 0x1p80f);
    if (s.ordinary == 0) return Out(sqrt(s.tiny) * 0x1p-90f);
    return Out(sqrt(fma(s.tiny * 0x1p-90f, 0x1p-90f, s.ordinary)));
  }
};

// Powers of the elements' ratios to the largest of them, which do not overflow either.
template <typename T>
struct NormP {
  using In = T;
  using Out = T;
  struct State {
    float largest, sum;
  };
  template <uint N>
  struct Lanes {
    float largest[N], sum[N];
    void clear(uint j) { largest[j] = sum[j] = 0; }
    void add(uint j, In x, uint, float order) {
      const State s = merge({largest[j], sum[j]}, {fabs(float(x)), 1}, order);
      largest[j] = s.largest;
      sum[j] = s.sum;
    }
    State state(uint j, uint, Numbering) const { return {largest[j], sum[j]}; }
  };
  static State merge(State a, State b, float order) {
    const bool second = Largest<float>::prefers(b.largest, a.largest);
    const State high = second ? b : a, low = second ? a : b;
    const float ratio = low.largest == high.largest ? 1.0f : low.largest / high.largest;
    return {high.largest, fma(low.sum, pow(ratio, order), high.sum)};
  }
  static State from(State s, ushort by) { return {further(s.largest, by), further(s.sum, by)}; }
  static Out finish(State s, float order) { return Out(s.largest * pow(s.sum, 1.0f / order)); }
};

// ---- serial: one thread a block ----

// Where a run starts, and which of its result's runs it is.
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

// A block's state to where `reduce_merge` finds it, or the result if it is the only one.
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

// Lanes are columns, or those of several elements of a run where the columns are few. Columns lie
// side by side or, if strided, anywhere: so short rows are columns too.
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

// One thread a result: its blocks' states in pairs, pairs of pairs and so on.
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

// ---- simd: a simdgroup a block of a row, a thread a column ----

// The states of a simdgroup's threads as one, in its first thread.
template <typename R>
inline typename R::State merged_simd(typename R::State all, float parameter) {
  for (ushort by = SIMD_WIDTH / 2; by > 0; by /= 2) all = R::merge(all, R::from(all, by), parameter);
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

// A threadgroup a result.
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
