// Reductions of an array of any strides, in blocks: each gives a state, and states are merged in
// pairs, so that rounding errors grow with the logarithm of the length and the same call gives the
// same bits. For safe maths: NaN and infinity live.
#pragma once
#include <metal_stdlib>
using namespace metal;

constant constexpr uint MAX_AXES = 8;
constant constexpr uint GRID_ROW = 1 << 24;  // threads along x
constant constexpr uint ROW_LANES = 64;      // sums of a row that go on side by side
constant constexpr uint COLUMN_LANES = 512;

struct Axis {
  ulong size;
  long in;      // strides: of the array,
  ulong out;    // of the result,
  ulong index;  // of the numbering that argmax uses
};

// Every run of `length` elements is cut into blocks. Axes that are kept stand before those that are
// reduced; the array's strides in them lead to the start of a run.
struct Reduction {
  ulong tasks;
  ulong outputs;  // elements of the result
  ulong length;
  ulong index;    // stride of a run in the numbering
  long stride;    // of a run: 1 for rows
  ulong inner;    // columns side by side: 1 for rows
  ulong inner_out;
  ulong block;    // elements of a run in a block
  ulong blocks;   // in a run
  ulong repeats;  // runs for one result
  Axis axes[MAX_AXES];
  uint axis_count;
  uint fold;        // elements of a run that are side by side, as columns are
  float parameter;  // a divisor, or the order of a norm
};

// ---- what is kept of the elements seen, by operation ----

template <typename T> struct Types { using Value = T; using Wide = ulong; using Lane = ulong; };
// A lane sees few enough elements for 32 bits; sums of them have 64, which wrap.
template <> struct Types<char> { using Value = char; using Wide = ulong; using Lane = int; };
template <> struct Types<uchar> { using Value = uchar; using Wide = ulong; using Lane = int; };
template <> struct Types<short> { using Value = short; using Wide = ulong; using Lane = int; };
template <> struct Types<ushort> { using Value = ushort; using Wide = ulong; using Lane = int; };
template <> struct Types<bool> { using Value = uchar; using Wide = ulong; using Lane = int; };
template <> struct Types<float> { using Value = float; using Wide = float; using Lane = float; };
template <> struct Types<half> { using Value = float; using Wide = float; using Lane = float; };
template <> struct Types<bfloat> { using Value = float; using Wide = float; using Lane = float; };

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
    void add(uint j, In x, uint) { part[j] = F::join(part[j], F::lift(x)); }
    State state(uint j, uint, Numbering) const { return State(part[j]); }
  };
  static State merge(State a, State b) { return F::join(a, b); }
  static Out finish(State s, float parameter) { return F::finish(s, parameter); }
};

template <typename T, typename O>
struct Sum {
  using In = T;
  using Out = O;
  using Lane = typename Types<T>::Lane;
  using State = typename Types<T>::Wide;
  static Lane empty() { return Lane(0); }
  static Lane lift(T x) { return Lane(x); }
  template <typename U> static U join(U a, U b) { return a + b; }
  static Out finish(State s, float) { return Out(s); }
};

template <typename T, typename O>
struct Prod {
  using In = T;
  using Out = O;
  using Lane = typename Types<T>::Wide;
  using State = Lane;
  static Lane empty() { return Lane(1); }
  static Lane lift(T x) { return Lane(x); }
  static Lane join(Lane a, Lane b) { return a * b; }
  static Out finish(State s, float) { return Out(s); }
};

template <typename T, typename O>
struct Mean {
  using In = T;
  using Out = O;
  using Lane = float;
  using State = float;
  static Lane empty() { return 0; }
  static Lane lift(T x) { return float(x); }
  static Lane join(Lane a, Lane b) { return a + b; }
  static Out finish(State s, float count) { return Out(s / count); }
};

template <typename T, typename O>
struct Norm1 {
  using In = T;
  using Out = O;
  using Lane = float;
  using State = float;
  static Lane empty() { return 0; }
  static Lane lift(T x) { return fabs(float(x)); }
  static Lane join(Lane a, Lane b) { return a + b; }
  static Out finish(State s, float) { return Out(s); }
};

// Whether x is chosen over y. The second is never NaN's to lose: the first NaN stays.
template <typename V> inline bool larger(V x, V y) { return x > y; }
template <> inline bool larger(float x, float y) { return x > y || (isnan(x) && !isnan(y)); }
template <typename V> inline bool smaller(V x, V y) { return x < y; }
template <> inline bool smaller(float x, float y) { return x < y || (isnan(x) && !isnan(y)); }
template <typename V> inline V lowest() { return numeric_limits<V>::lowest(); }
template <> inline float lowest() { return -INFINITY; }
template <typename V> inline V highest() { return numeric_limits<V>::max(); }
template <> inline float highest() { return INFINITY; }

template <typename V> struct Largest {
  static V empty() { return lowest<V>(); }
  static bool prefers(V x, V y) { return larger(x, y); }
};
template <typename V> struct Smallest {
  static V empty() { return highest<V>(); }
  static bool prefers(V x, V y) { return smaller(x, y); }
};

template <typename T, typename O, typename Order>
struct Extreme {
  using In = T;
  using Out = O;
  using Lane = typename Types<T>::Value;
  using State = Lane;
  static Lane empty() { return Order::empty(); }
  static Lane lift(T x) { return Lane(x); }
  static Lane join(Lane a, Lane b) { return Order::prefers(b, a) ? b : a; }
  static Out finish(State s, float) { return Out(s); }
};
template <typename T, typename O> using Max = Extreme<T, O, Largest<typename Types<T>::Value>>;
template <typename T, typename O> using Min = Extreme<T, O, Smallest<typename Types<T>::Value>>;

template <typename T, typename O>
struct NormInf {
  using In = T;
  using Out = O;
  using Lane = float;
  using State = float;
  static Lane empty() { return 0; }
  static Lane lift(T x) { return fabs(float(x)); }
  static Lane join(Lane a, Lane b) { return larger(b, a) ? b : a; }
  static Out finish(State s, float) { return Out(s); }
};

template <typename T, typename O>
struct Any {
  using In = T;
  using Out = O;
  using Lane = uint;
  using State = uint;
  static Lane empty() { return 0; }
  static Lane lift(T x) { return x != T(0); }
  static Lane join(Lane a, Lane b) { return a | b; }
  static Out finish(State s, float) { return s != 0; }
};

template <typename T, typename O>
struct All {
  using In = T;
  using Out = O;
  using Lane = uint;
  using State = uint;
  static Lane empty() { return 1; }
  static Lane lift(T x) { return x != T(0); }
  static Lane join(Lane a, Lane b) { return a & b; }
  static Out finish(State s, float) { return s != 0; }
};

// The first of the largest or smallest elements.
template <typename T, typename O, typename Order>
struct Place {
  using In = T;
  using Out = O;
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
    void add(uint j, In x, uint i) {
      const Value v = Value(x);
      const bool better = Order::prefers(v, value[j]);
      value[j] = better ? v : value[j];
      at[j] = better ? i : at[j];
    }
    State state(uint j, uint count, Numbering number) const {
      return {count ? number.first + at[j] * number.step : ~0ul, value[j]};
    }
  };
  static State merge(State a, State b) {
    const bool equal = !Order::prefers(a.value, b.value) && b.index < a.index;
    return Order::prefers(b.value, a.value) || equal ? b : a;
  }
  static Out finish(State s, float) { return Out(s.index); }
};
template <typename T, typename O> using ArgMax = Place<T, O, Largest<typename Types<T>::Value>>;
template <typename T, typename O> using ArgMin = Place<T, O, Smallest<typename Types<T>::Value>>;

// Squared distances from the mean, updated (Welford) and combined (Chan) without cancellation.
template <typename T, typename O>
struct Var {
  using In = T;
  using Out = O;
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
    void add(uint j, In x, uint i) {
      const float before = float(x) - mean[j];
      mean[j] = fma(before, 1.0f / float(i + 1), mean[j]);
      squares[j] = fma(before, float(x) - mean[j], squares[j]);
    }
    State state(uint j, uint count, Numbering) const {
      return {float(count), mean[j], squares[j]};
    }
  };
  static State merge(State a, State b) {
    const float count = a.count + b.count;
    const float share = b.count == 0 ? 0 : b.count / count;
    const float apart = b.mean - a.mean;
    const float squares = fma(apart * apart, a.count * share, a.squares + b.squares);
    return {count, fma(apart, share, a.mean), squares};
  }
  static Out finish(State s, float divisor) { return Out(s.squares / divisor); }
};

// Three sums of squares (J. L. Blue): of large, ordinary and tiny numbers, so that none overflows
// or vanishes.
template <typename T, typename O>
struct Norm2 {
  using In = T;
  using Out = O;
  struct State {
    float large, ordinary, tiny;
  };
  template <uint N>
  struct Lanes {
    float large[N], ordinary[N], tiny[N];
    void clear(uint j) { large[j] = ordinary[j] = tiny[j] = 0; }
    void add(uint j, In x, uint) {
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
  static State merge(State a, State b) {
    return {a.large + b.large, a.ordinary + b.ordinary, a.tiny + b.tiny};
  }
  static Out finish(State s, float) {
    if (s.large > 0) return Out(sqrt(fma(s.ordinary * 0x1p-80f, 0x1p-80f, s.large)) * 0x1p80f);
    if (s.ordinary == 0) return Out(sqrt(s.tiny) * 0x1p-90f);
    return Out(sqrt(fma(s.tiny * 0x1p-90f, 0x1p-90f, s.ordinary)));
  }
};

// Powers of what the elements are of the largest.
template <typename T, typename O>
struct NormP {
  using In = T;
  using Out = O;
  struct State {
    float largest, sum, order;
  };
  static State joined(State a, State b) {
    const bool second = larger(b.largest, a.largest);
    const State high = second ? b : a, low = second ? a : b;
    const float ratio = low.largest == high.largest ? 1.0f : low.largest / high.largest;
    return {high.largest, fma(low.sum, pow(ratio, high.order), high.sum), high.order};
  }
  static State merge(State a, State b) { return joined(a, b); }
  static Out finish(State s, float) { return Out(s.largest * pow(s.sum, 1.0f / s.order)); }
};
