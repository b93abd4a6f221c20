// Softmax and its logarithm. A row is summed up as its maximum and the sum of its powers over it;
// what is summed up in parts, of a long row or of columns, is joined by scaling to the largest
// maximum. The maximum starts at the lowest number, so -inf alone ends as 0 / 0, NaN as in numpy.
#include "rows.h"

constant bool LOGARITHM [[function_constant(0)]];

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

struct Top {
  device const Summary* parts;
  float operator()(uint i, uint) const { return parts[i].top; }
};

struct ScaledSum {
  device const Summary* parts;
  float top;
  float operator()(uint i, uint) const { return parts[i].sum * exp(parts[i].top - top); }
};

template <typename Row>
struct Scaled {
  Row row;
  float factor;
  float operator()(uint i, uint slot) const { return row(i, slot) * factor; }
};

template <typename Row>
struct Less {
  Row row;
  float top;
  float logarithm;
  float operator()(uint i, uint slot) const { return row(i, slot) - top - logarithm; }
};

template <typename Row>
inline Power<Row> power(Row row, float top) { return {row, top}; }
template <typename Row>
inline Scaled<Row> scaled(Row row, float factor) { return {row, factor}; }

template <typename Row>
inline Less<Row> less(Row row, float top, float logarithm) { return {row, top, logarithm}; }

template <typename T>
struct Softmax {
  device const T* x;
  device T* out;

  Stored<T> row(Place place) const { return {x + place.in}; }

  template <typename Team, typename Row>
  Summary summary(Team team, uint n, Row row) const {
    const float top = team.reduce(Maximum{}, n, row);
    return {top, team.reduce(Sum{}, n, Power<Row>{row, top})};
  }

  template <typename Team>
  Summary joined(Team team, device const Summary* parts, constant Rows& rows) const {
    const float top = team.reduce(Maximum{}, rows.parts, Top{parts});
    return {top, team.reduce(Sum{}, rows.parts, ScaledSum{parts, top})};
  }

  template <typename Team, typename Row>
  void finish(Team team, Place place, Row row, Summary all) const {
    if (LOGARITHM) {
      store(team, place, less(row, all.top, log(all.sum)));
    } else {
      store(team, place, scaled(power(row, all.top), 1.0f / all.sum));
    }
  }

  template <typename Team>
  void whole(Team team, Place place) const {
    const uint n = place.count;
    const auto elements = team.kept(n, row(place));
    const float top = team.reduce(Maximum{}, n, elements);
    const auto powers = team.kept(n, power(elements, top), out + place.out);
    const float sum = team.reduce(Sum{}, n, powers);
    if (LOGARITHM) {
      store(team, place, less(elements, top, log(sum)));
    } else {
      store(team, place, scaled(powers, 1.0f / sum));
    }
  }

  template <typename Team, typename Row>
  void store(Team team, Place place, Row row) const {
    team.each(place.count, Store<Row, T>{row, out + place.out});
  }
};

// ---- a row at once ----

template <typename T>
kernel void softmax_serial(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant Rows& rows [[buffer(2)]], uint row [[thread_position_in_grid]]) {
  Softmax<T>{x, out}.whole(Alone{}, Place(rows, row));
}

template <typename T>
kernel void softmax_simdgroup(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant Rows& rows [[buffer(2)]], uint2 at [[thread_position_in_grid]]) {
  Softmax<T>{x, out}.whole(Together{at.x, SIMD_WIDTH, nullptr}, Place(rows, at.y));
}

template <typename T>
kernel void softmax_threadgroup(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant Rows& rows [[buffer(2)]], uint2 at [[thread_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  Softmax<T>{x, out}.whole(Together{at.x, threads.x, shared}, Place(rows, at.y));
}

// ---- a row in parts ----

template <typename T>
kernel void softmax_serial_summary(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant Rows& rows [[buffer(2)]], device Summary* parts [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]) {
  parts[at.y * ulong(rows.parts) + at.x] =
      part_summary(Alone{}, Softmax<T>{x, out}, Place(rows, at.y, at.x));
}

template <typename T>
kernel void softmax_serial_finish(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant Rows& rows [[buffer(2)]], device const Summary* parts [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]) {
  finish_part(Alone{}, Softmax<T>{x, out}, Place(rows, at.y, at.x), rows,
              parts + at.y * ulong(rows.parts));
}

template <typename T>
kernel void softmax_threadgroup_summary(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant Rows& rows [[buffer(2)]], device Summary* parts [[buffer(3)]],
    uint2 at [[threadgroup_position_in_grid]], uint2 own [[thread_position_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  const Summary found = part_summary(
      Together{own.x, threads.x, shared}, Softmax<T>{x, out}, Place(rows, at.y, at.x));
  if (own.x == 0) parts[at.y * ulong(rows.parts) + at.x] = found;
}

template <typename T>
kernel void softmax_threadgroup_finish(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant Rows& rows [[buffer(2)]], device const Summary* parts [[buffer(3)]],
    uint2 at [[threadgroup_position_in_grid]], uint2 own [[thread_position_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  finish_part(Together{own.x, threads.x, shared}, Softmax<T>{x, out}, Place(rows, at.y, at.x),
              rows, parts + at.y * ulong(rows.parts));
}

// ---- columns: the axis is not the last, a thread takes some that lie side by side ----

struct Columns {
  uint length;  // of the axis
  uint inner;   // columns side by side
  uint part;    // of the axis
  uint parts;
};

constant constexpr uint BLOCK_ROWS = 16;  // read twice, from the cache the second time

template <uint WIDTH>
struct ColumnSums {
  float top[WIDTH];
  float sum[WIDTH];

  ColumnSums() {
    for (uint j = 0; j < WIDTH; j++) top[j] = -FLT_MAX, sum[j] = 0.0f;
  }

  // More elements of each column; `n` rows of `width`, `inner` apart.
  template <typename T>
  void add(device const T* x, uint n, uint width, uint inner) {
    for (uint start = 0; start < n; start += BLOCK_ROWS) {
      const uint end = min(n, start + BLOCK_ROWS);
      add_block(x + start * ulong(inner), end - start, width, inner);
    }
  }

  template <typename T>
  void add_block(device const T* x, uint n, uint width, uint inner) {
    float higher[WIDTH];
    for (uint j = 0; j < width; j++) higher[j] = top[j];
    for (uint i = 0; i < n; i++) {
      for (uint j = 0; j < width; j++) higher[j] = max(higher[j], float(x[i * ulong(inner) + j]));
    }
    for (uint j = 0; j < width; j++) {
      sum[j] *= exp(top[j] - higher[j]);
      top[j] = higher[j];
    }
    for (uint i = 0; i < n; i++) {
      for (uint j = 0; j < width; j++) sum[j] += exp(float(x[i * ulong(inner) + j]) - top[j]);
    }
  }

  void join(device const float* tops, device const float* sums, uint width) {
    for (uint j = 0; j < width; j++) {
      const float higher = max(top[j], tops[j]);
      sum[j] = sum[j] * exp(top[j] - higher) + sums[j] * exp(tops[j] - higher);
      top[j] = higher;
    }
  }

  template <typename T>
  void finish(device const T* x, device T* out, uint n, uint width, uint inner) {
    for (uint j = 0; j < width; j++) sum[j] = LOGARITHM ? log(sum[j]) : 1.0f / sum[j];
    for (uint i = 0; i < n; i++) {
      for (uint j = 0; j < width; j++) {
        const ulong k = i * ulong(inner) + j;
        const float centred = float(x[k]) - top[j];
        out[k] = T(LOGARITHM ? centred - sum[j] : exp(centred) * sum[j]);
      }
    }
  }
};

template <typename T, uint WIDTH>
kernel void softmax_columns(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant Columns& columns [[buffer(2)]], uint2 at [[thread_position_in_grid]]) {
  const uint n = columns.length, inner = columns.inner, first = at.x * WIDTH;
  const uint width = min(WIDTH, inner - first);
  const ulong start = at.y * ulong(n) * inner + first;
  ColumnSums<WIDTH> sums;
  sums.add(x + start, n, width, inner);
  sums.finish(x + start, out + start, n, width, inner);
}
