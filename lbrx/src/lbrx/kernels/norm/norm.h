// Layer norm and RMS norm, optionally of a sum of two arrays. The summary of a row is its mean and the
// sum of squares around it; RMS norm uses 0 as the mean.
#include "early.h"
#include "records/norm.h"
#include "rows.h"

struct Moments {
  float mean;
  float squares;  // the sum of (x - mean)^2
};

// The normalised row in float: the sum of two arrays is not rounded first.
template <typename T, typename V>
struct Added {
  struct Fetched {
    V x;
    V residual;
  };
  device const V* x;
  device const V* residual;

  float operator()(uint i, uint) const {
    return RESIDUAL ? float(x[i]) + float(residual[i]) : float(x[i]);
  }

  Fetched fetch(uint run) const { return {x[run], RESIDUAL ? residual[run] : x[run]}; }

  void unpack(Fetched run, thread float* to) const {
    to_floats<T>(run.x, to);
    if (!RESIDUAL) return;
    float more[Run<T, V>::SIZE];
    to_floats<T>(run.residual, more);
    for (uint i = 0; i < Run<T, V>::SIZE; i++) to[i] += more[i];
  }

  float single(uint i) const {
    const float more = RESIDUAL ? float(((device const T*)residual)[i]) : 0.0f;
    return float(((device const T*)x)[i]) + more;
  }
};

template <typename Row>
struct Square {
  Row row;
  float mean;
  float operator()(uint i, uint slot) const {
#pragma METAL fp math_mode(relaxed)  // fused with the sum
    const float x = row(i, slot) - mean;
    return x * x;
  }
};

// Moments of a part: its length times its mean, and its squares around the mean of the whole row.
struct PartSum {
  device const Moments* parts;
  constant RowsRecord* rows;
  float operator()(uint i, uint) const { return parts[i].mean * Place(*rows, 0, i).count; }
};

struct PartSquares {
  device const Moments* parts;
  constant RowsRecord* rows;
  float mean;
  float operator()(uint i, uint) const {
    const float off = parts[i].mean - mean;
    return parts[i].squares + off * off * Place(*rows, 0, i).count;
  }
};

// Runs of weight and bias begin with the row; those of a RAGGED row's elements do not.
template <typename Row, typename T, typename V>
struct Normalise {
  enum : uint { SIZE = Run<T, V>::SIZE };
  Row row;
  float mean;
  float factor;
  uint first;   // element of the row
  uint phase;
  uint length;
  device const V* weight;
  device const V* bias;
  device V* out;
  device V* total;

  // Weights or biases of a run: of one vector, or between two.
  V operand(device const V* from, uint run) const {
    const uint at = first / SIZE + run;
    return phase == 0 ? from[at] : between(from[at - 1], from[at]);
  }

  uint4 between(uint4 low, uint4 high) const {
    return bytes_of(low, high, (SIZE - phase) * sizeof(T));
  }
  T between(T, T high) const { return high; }  // single elements have no phase

  void operator()(uint run, uint slot) const {
    float x[SIZE], y[SIZE], factors[SIZE], terms[SIZE];
    to_floats<T>(WEIGHT ? operand(weight, run) : V(0), factors);
    to_floats<T>(BIAS ? operand(bias, run) : V(0), terms);
    for (uint i = 0; i < SIZE; i++) {
      x[i] = row(run * SIZE + i, slot + i);
      y[i] = normalised(x[i], factors[i], terms[i]);
    }
    out[run] = from_floats<T, V>(y);
    if (RESIDUAL) total[run] = from_floats<T, V>(x);
  }

  void single(uint i, uint slot) const {
    const uint at = first + i - phase;
    const float x = row(i, slot);
    const float weight_of = WEIGHT ? float(((device const T*)weight)[at]) : 1.0f;
    const float bias_of = BIAS ? float(((device const T*)bias)[at]) : 0.0f;
    ((device T*)out)[i] = T(normalised(x, weight_of, bias_of));
    if (RESIDUAL) ((device T*)total)[i] = T(x);
  }

  float normalised(float x, float weight_of, float bias_of) const {
    const float y = (x - mean) * factor;
    if (BIAS) return WEIGHT ? fma(y, weight_of, bias_of) : y + bias_of;
    return WEIGHT ? y * weight_of : y;
  }
};

// A missing operand is replaced by another one, which is not read.
template <typename T, typename V>
struct Norm {
  enum : uint { SIZE = Run<T, V>::SIZE };
  device const V* x;
  device const V* residual;
  device const V* weight;
  device const V* bias;
  device V* out;
  device V* total;
  float eps;
  uint length;

  Added<T, V> row(Place place) const { return {x + place.in, residual + place.in}; }

  template <typename Team, typename Row>
  Moments summary(Team team, uint n, Row row) const {
    const float mean = CENTRED ? team.reduce(Sum{}, n, row) / n : 0.0f;
    return {mean, team.reduce(Sum{}, n, Square<Row>{row, mean})};
  }

  template <typename Team>
  Moments joined(Team team, device const Moments* parts, constant RowsRecord& rows) const {
    const float mean =
        CENTRED ? team.reduce(Sum{}, rows.parts, PartSum{parts, &rows}) / length : 0.0f;
    return {mean, team.reduce(Sum{}, rows.parts, PartSquares{parts, &rows, mean})};
  }

  template <typename Team>
  void whole(Team team, constant RowsRecord& rows, uint at) const {
    const Place place(rows, at, 0, SIZE);
    team.move_to(place);
    const auto elements = team.loaded(place.count, row(place));
    finish(team, place, elements, summary(team, place.count, elements));
  }

  template <typename Team, typename Row>
  void finish(Team team, Place place, Row row, Moments all) const {
    const float factor = 1.0f / sqrt(all.squares / length + eps);
    const Normalise<Row, T, V> normalise = {
        row, all.mean, factor, place.first, team.phase, length, weight, bias, out + place.out,
        total + place.out};
    team.each(place.count, normalise);
  }
};

#define OPERANDS(V)                                                        \
  device const V* x [[buffer(0)]],                                         \
  device const V* residual [[buffer(1), function_constant(RESIDUAL)]],     \
  device const V* weight [[buffer(2), function_constant(WEIGHT)]],         \
  device const V* bias [[buffer(3), function_constant(BIAS)]],             \
  device V* out [[buffer(4)]],                                             \
  device V* total [[buffer(5), function_constant(RESIDUAL)]],              \
  constant float& eps [[buffer(6)]], constant RowsRecord& rows [[buffer(7)]]

#define NORM(T, V)                                                                      \
  Norm<T, V>{x, RESIDUAL ? residual : x, WEIGHT ? weight : x, BIAS ? bias : x, out,     \
             RESIDUAL ? total : out, eps, rows.length}

// ---- whole rows ----

template <typename T, typename V>
kernel void norm_serial(OPERANDS(V), uint row [[thread_position_in_grid]]) {
  NORM(T, V).whole(Alone{}, rows, row);
}

template <typename T, typename V, bool RAGGED>
kernel void norm_simdgroup(OPERANDS(V), uint2 at [[thread_position_in_grid]]) {
  NORM(T, V).whole(TeamOf<T, V, RAGGED>{at.x, SIMD_WIDTH, nullptr}, rows, at.y);
}

template <typename T, typename V, bool RAGGED>
[[max_total_threads_per_threadgroup(512)]]
kernel void norm_threadgroup(
    OPERANDS(V), uint2 at [[thread_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  if (WEIGHT && at.x == 0 && at.y == 0) prefetch(weight, rows.length * sizeof(T));
  await_previous();
  NORM(T, V).whole(TeamOf<T, V, RAGGED>{at.x, threads.x, shared}, rows, at.y);
}

// ---- rows in parts ----

template <typename T, typename V>
kernel void norm_serial_summary(
    OPERANDS(V), device Moments* parts [[buffer(8)]],
    uint2 at [[thread_position_in_grid]]) {
  summarise(Alone{}, NORM(T, V), rows, at, parts);
}

template <typename T, typename V, bool RAGGED>
[[max_total_threads_per_threadgroup(512)]]
kernel void norm_threadgroup_summary(
    OPERANDS(V), device Moments* parts [[buffer(8)]],
    uint2 at [[threadgroup_position_in_grid]], uint2 own [[thread_position_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  summarise(TeamOf<T, V, RAGGED>{own.x, threads.x, shared}, NORM(T, V), rows, at, parts);
}

template <typename T, typename V>
kernel void norm_serial_finish(
    OPERANDS(V), device const Moments* parts [[buffer(8)]],
    uint2 at [[thread_position_in_grid]]) {
  finish(Alone{}, NORM(T, V), rows, at, parts);
}

template <typename T, typename V, bool RAGGED>
[[max_total_threads_per_threadgroup(512)]]
kernel void norm_threadgroup_finish(
    OPERANDS(V), device const Moments* parts [[buffer(8)]],
    uint2 at [[threadgroup_position_in_grid]], uint2 own [[thread_position_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  finish(TeamOf<T, V, RAGGED>{own.x, threads.x, shared}, NORM(T, V), rows, at, parts);
}
