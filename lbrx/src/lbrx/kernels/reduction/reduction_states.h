// The state of each reduction. `Lanes` accumulate elements independently; a `State` is the result of
// a lane, and states are merged.
#pragma once
#include "float_order.h"
#include "vector_elements.h"

// Halves are computed in float. Integers are added in 64 bits, which wrap; within a lane 32 bits
// suffice for small types. A mean of integers is a float.
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

// The value of the thread `by` lanes further. Shuffles do not support 64-bit integers.
template <typename V> inline V further(V x, ushort by) { return simd_shuffle_down(x, by); }
template <> inline ulong further(ulong x, ushort by) {
  return as_type<ulong>(simd_shuffle_down(as_type<uint2>(x), by));
}
template <> inline long further(long x, ushort by) { return long(further(ulong(x), by)); }

// The index of a lane's first element, and the step to its next one.
struct Numbering {
  ulong first;
  ulong step;
};

// Reductions whose state is one number; `join` combines elements as well as states.
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

template <typename T, typename L, typename S, typename O>
struct Number {
  using In = T;
  using Lane = L;
  using State = S;
  using Out = O;
  static O finish(S s, float) { return O(s); }
};

template <typename T, typename L = typename Types<T>::Lane>
struct Sum : Number<T, L, typename Types<T>::Wide, typename Types<T>::Sum> {
  static L empty() { return L(0); }
  static L lift(T x) { return L(x); }
  template <typename U> static U join(U a, U b) { return a + b; }
};

template <typename T, typename W = typename Types<T>::Wide>
struct Prod : Number<T, W, W, typename Types<T>::Sum> {
  static W empty() { return W(1); }
  static W lift(T x) { return W(x); }
  static W join(W a, W b) { return a * b; }
};

template <typename T, typename O = typename Types<T>::Mean>
struct Mean : Number<T, float, float, O> {
  static float empty() { return 0; }
  static float lift(T x) { return float(x); }
  static float join(float a, float b) { return a + b; }
  static O finish(float s, float count) { return O(s / count); }
};

template <typename T>
struct Norm1 : Number<T, float, float, T> {
  static float empty() { return 0; }
  static float lift(T x) { return fabs(float(x)); }
  static float join(float a, float b) { return a + b; }
};

template <typename T>
struct Any : Number<T, uint, uint, bool> {
  static uint empty() { return 0; }
  static uint lift(T x) { return x != T(0); }
  static uint join(uint a, uint b) { return a | b; }
};

template <typename T>
struct All : Number<T, uint, uint, bool> {
  static uint empty() { return 1; }
  static uint lift(T x) { return x != T(0); }
  static uint join(uint a, uint b) { return a & b; }
};

template <typename V> inline V lowest() { return numeric_limits<V>::lowest(); }
template <> inline float lowest() { return -INFINITY; }
template <typename V> inline V highest() { return numeric_limits<V>::max(); }
template <> inline float highest() { return INFINITY; }

// Whether x replaces y: if it is better, or NaN when y is not, so that the first NaN is kept.
template <typename V> struct Largest {
  static constant constexpr bool UPWARDS = true;
  static V empty() { return lowest<V>(); }
  static bool prefers(V x, V y) { return !(x <= y) && y == y; }
};
template <typename V> struct Smallest {
  static constant constexpr bool UPWARDS = false;
  static V empty() { return highest<V>(); }
  static bool prefers(V x, V y) { return !(x >= y) && y == y; }
};

template <typename T, typename V, typename Order>
struct Extreme : Number<T, V, V, T> {
  static V empty() { return Order::empty(); }
  static V lift(T x) { return V(x); }
  static V join(V a, V b) { return Order::prefers(b, a) ? b : a; }
};
// Floats are compared as integers, so that 0, -0 and NaN give the same bits in any order.
template <typename T, typename Bits = typename FloatOrder<T>::Bits>
struct FloatMax : Number<T, Bits, Bits, T> {
  static Bits empty() { return float_order(T(-INFINITY), FloatOrder<T>::ABOVE); }
  static Bits lift(T x) { return float_order(x, FloatOrder<T>::ABOVE); }
  static Bits join(Bits a, Bits b) { return max(a, b); }
  static T finish(Bits s, float) { return float_from_order<T>(s, FloatOrder<T>::ABOVE); }
};
template <typename T, typename Bits = typename FloatOrder<T>::Bits>
struct FloatMin : Number<T, Bits, Bits, T> {
  static Bits empty() { return float_order(T(INFINITY), FloatOrder<T>::BELOW); }
  static Bits lift(T x) { return float_order(x, FloatOrder<T>::BELOW); }
  static Bits join(Bits a, Bits b) { return min(a, b); }
  static T finish(Bits s, float) { return float_from_order<T>(s, FloatOrder<T>::BELOW); }
};
template <typename T> struct Extreme<T, float, Largest<float>> : FloatMax<T> {};
template <typename T> struct Extreme<T, float, Smallest<float>> : FloatMin<T> {};
template <typename T, typename V = typename Types<T>::Value> using Max = Extreme<T, V, Largest<V>>;
template <typename T, typename V = typename Types<T>::Value> using Min = Extreme<T, V, Smallest<V>>;

template <typename T>
struct NormInf : Number<T, float, float, T> {
  static float empty() { return 0; }
  static float lift(T x) { return fabs(float(x)); }
  static float join(float a, float b) { return Largest<float>::prefers(b, a) ? b : a; }
};

// The index of the first largest or smallest element, or of the first NaN.
template <typename T, typename Order>
struct IndexOfExtreme {
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
      at[j] = 0;  // also right if all elements equal `empty`
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
template <typename T> using ArgMax = IndexOfExtreme<T, Largest<typename Types<T>::Value>>;
template <typename T> using ArgMin = IndexOfExtreme<T, Smallest<typename Types<T>::Value>>;

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

// Three sums of squares (J. L. Blue), of large, ordinary and tiny numbers, so that none overflows or
// underflows.
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

// Powers of the ratios to the largest element, which do not overflow.
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

// ---- runs of neighbouring elements ----

// N lanes that take runs of type V, from lane `first` on.
template <typename R, typename V, uint N>
struct RunLanes : R::template Lanes<N> {
  void add_run(uint first, V run, uint i, float parameter) {
    using In = typename R::In;
    for (uint j = 0; j < Run<In, V>::SIZE; j++)
      this->add(first + j, Run<In, V>::element(run, j), i, parameter);
  }
};

// The largest or smallest of 16-bit floats, ordered two at a time. NaN is not looked for: one of
// either sign is beyond an infinity, which is seen in the end, as both extremes are kept. They are
// the upper halves of words, whose lower halves do not matter.
template <typename T, typename Order, uint N>
struct PairLanes {
  static constant constexpr int INFINITE = FloatOrder<T>::INFINITE;
  int high[N], low[N];

  void clear(uint j) {
    high[j] = (-INFINITE - 1) * 65536;
    low[j] = INFINITE * 65536;
  }

  void add_run(uint first, uint4 run, uint, float) {
#pragma unroll
    for (uint w = 0; w < 4; w++) {
      const uint signs = run[w] >> 15 & 0x00010001u;
      const uint ordered = run[w] ^ ((signs << 15) - signs);
      add_ordered(first + 2 * w, int(ordered << 16));
      add_ordered(first + 2 * w + 1, int(ordered));
    }
  }

  void add_ordered(uint j, int x) {
    high[j] = max(high[j], x);
    low[j] = min(low[j], x);
  }

  short state(uint j, uint, Numbering) const {
    const int most = high[j] >> 16, least = low[j] >> 16;
    const bool nan = most > INFINITE || least < -INFINITE - 1;
    if (Order::UPWARDS) return nan ? FloatOrder<T>::ABOVE : short(most);
    return nan ? FloatOrder<T>::BELOW : short(least);
  }
};
template <typename Order, uint N>
struct RunLanes<Folding<Extreme<half, float, Order>>, uint4, N> : PairLanes<half, Order, N> {};
template <typename Order, uint N>
struct RunLanes<Folding<Extreme<bfloat, float, Order>>, uint4, N> : PairLanes<bfloat, Order, N> {};
