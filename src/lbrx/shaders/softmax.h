// Softmax and its logarithm. A row is summed up as its maximum and the sum of its powers over it;
// what is summed up in parts, of a long row or of columns, is joined by scaling to the largest
// maximum. The maximum starts at the lowest number, so -inf alone ends as 0 / 0, NaN as in numpy.
#include "rows.h"

constant bool LOGARITHM [[function_constant(0)]];

struct SoftmaxRows {
  uint length;
  uint part;     // elements, of a row in parts
  uint parts;
  ulong stride;  // from row to row of the input
};

struct Summary {
  float top;
  float sum;  // of exp(x - top)
};

template <typename Row>
struct Power {
  Row row;
  float top;
  float operator()(uint i, uint slot) const { return exp(row(i, slot) - top); }
};

template <typename Row>
struct Softmax {
  Row row;
  float top;
  float factor;  // or what is subtracted

  Softmax(Row row, Summary all)
      : row(row), top(all.top), factor(LOGARITHM ? log(all.sum) : 1.0f / all.sum) {}

  float operator()(uint i, uint slot) const {
    const float x = row(i, slot) - top;
    return LOGARITHM ? x - factor : exp(x) * factor;
  }
};

template <typename Row, typename T>
struct Store {
  Row row;
  device T* out;
  void operator()(uint i, uint slot) const { out[i] = T(row(i, slot)); }
};

template <typename Team, typename Row>
inline Summary summary(Team team, uint n, Row row) {
  const float top = team.reduce(Maximum{}, n, row);
  return {top, team.reduce(Sum{}, n, Power<Row>{row, top})};
}

template <typename Team, typename Row, typename T>
inline void finish(Team team, uint n, Row row, Summary all, device T* out) {
  team.each(n, Store<Softmax<Row>, T>{Softmax<Row>(row, all), out});
}

template <typename Team, typename T>
inline void softmax_row(Team team, uint n, device const T* x, device T* out) {
  const auto row = team.kept(n, Stored<T>{x});
  finish(team, n, row, summary(team, n, row), out);
}

// ---- a row at once ----

template <typename T>
kernel void softmax_serial(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant SoftmaxRows& rows [[buffer(2)]], uint row [[thread_position_in_grid]]) {
  softmax_row(Alone{}, rows.length, x + row * rows.stride, out + row * ulong(rows.length));
}

// Simdgroups of a threadgroup take rows of their own.
template <typename T>
kernel void softmax_simdgroup(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant SoftmaxRows& rows [[buffer(2)]], uint2 at [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  const Together team{lane, SIMD_WIDTH, nullptr};
  softmax_row(team, rows.length, x + at.y * rows.stride, out + at.y * ulong(rows.length));
}

template <typename T>
kernel void softmax_threadgroup(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant SoftmaxRows& rows [[buffer(2)]], uint2 at [[thread_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  const Together team{at.x, threads.x, shared};
  softmax_row(team, rows.length, x + at.y * rows.stride, out + at.y * ulong(rows.length));
}

// ---- a row in parts: first the parts are summed up, then each is finished ----

inline uint part_length(constant SoftmaxRows& rows, uint part) {
  return min(rows.part, rows.length - part * rows.part);
}

inline Summary joined(device const Summary* parts, uint count) {
  float top = parts[0].top;
  for (uint i = 1; i < count; i++) top = max(top, parts[i].top);
  float sum = 0.0f;
  for (uint i = 0; i < count; i++) sum += parts[i].sum * exp(parts[i].top - top);
  return {top, sum};
}
