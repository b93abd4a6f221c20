// Layer norm and RMS norm, optionally of a sum of two arrays. The summary of a row is its mean and the
// sum of squares around it; RMS norm uses 0 as the mean.
#include "rows.h"

constant bool CENTRED [[function_constant(0)]];   // layer norm
constant bool RESIDUAL [[function_constant(1)]];  // an array that is added first
constant bool WEIGHT [[function_constant(2)]];
constant bool BIAS [[function_constant(3)]];

struct Moments {
  float mean;
  float squares;  // the sum of (x - mean)^2
};

// The normalised row in float: the sum of two arrays is not rounded first.
template <typename T>
struct Added {
  device const T* x;
  device const T* residual;
  float operator()(uint i, uint) const {
    return RESIDUAL ? float(x[i]) + float(residual[i]) : float(x[i]);
  }
};

template <typename Row>
struct Square {
  Row row;
  float mean;
  float operator()(uint i, uint slot) const {
    const float x = row(i, slot) - mean;
    return x * x;
  }
};

// Moments of a part: its length times its mean, and its squares around the mean of the whole row.
struct PartSum {
  device const Moments* parts;
  constant Rows* rows;
  float operator()(uint i, uint) const { return parts[i].mean * Place(*rows, 0, i).count; }
};

struct PartSquares {
  device const Moments* parts;
  constant Rows* rows;
  float mean;
  float operator()(uint i, uint) const {
    const float off = parts[i].mean - mean;
    return parts[i].squares + off * off * Place(*rows, 0, i).count;
  }
};

template <typename Row, typename T>
struct Normalise {
  Row row;
  float mean;
  float factor;
  device const T* weight;
  device const T* bias;
  device T* out;
  device T* total;

  void operator()(uint i, uint slot) const {
    const float x = row(i, slot);
    float y = (x - mean) * factor;
    if (WEIGHT) y *= float(weight[i]);
    if (BIAS) y += float(bias[i]);
    out[i] = T(y);
    if (RESIDUAL) total[i] = T(x);
  }
};

// A missing operand is replaced by another one, which is not read.
template <typename T>
struct Norm {
  device const T* x;
  device const T* residual;
  device const T* weight;
  device const T* bias;
  device T* out;
  device T* total;
  float eps;
  uint length;

  Added<T> row(Place place) const { return {x + place.in, residual + place.in}; }

  template <typename Team, typename Row>
  Moments summary(Team team, uint n, Row row) const {
    const float mean = CENTRED ? team.reduce(Sum{}, n, row) / n : 0.0f;
    return {mean, team.reduce(Sum{}, n, Square<Row>{row, mean})};
  }

  template <typename Team>
  Moments joined(Team team, device const Moments* parts, constant Rows& rows) const {
    const float mean =
        CENTRED ? team.reduce(Sum{}, rows.parts, PartSum{parts, &rows}) / length : 0.0f;
    return {mean, team.reduce(Sum{}, rows.parts, PartSquares{parts, &rows, mean})};
  }

  template <typename Team>
  void whole(Team team, Place place) const {
    const auto elements = team.kept(place.count, row(place));
    finish(team, place, elements, summary(team, place.count, elements));
  }

  template <typename Team, typename Row>
  void finish(Team team, Place place, Row row, Moments all) const {
    const float factor = 1.0f / sqrt(all.squares / length + eps);
    team.each(place.count, Normalise<Row, T>{row, all.mean, factor, weight + place.first,
                                             bias + place.first, out + place.out,
                                             total + place.out});
  }
};

#define OPERANDS(T)                                                        \
  device const T* x [[buffer(0)]],                                         \
  device const T* residual [[buffer(1), function_constant(RESIDUAL)]],     \
  device const T* weight [[buffer(2), function_constant(WEIGHT)]],         \
  device const T* bias [[buffer(3), function_constant(BIAS)]],             \
  device T* out [[buffer(4)]],                                             \
  device T* total [[buffer(5), function_constant(RESIDUAL)]],              \
  constant float& eps [[buffer(6)]], constant Rows& rows [[buffer(7)]]

#define NORM(T)                                                                      \
  Norm<T>{x, RESIDUAL ? residual : x, WEIGHT ? weight : x, BIAS ? bias : x, out,     \
          RESIDUAL ? total : out, eps, rows.length}

// ---- whole rows ----

template <typename T>
kernel void norm_serial(OPERANDS(T), uint row [[thread_position_in_grid]]) {
  NORM(T).whole(Alone{}, Place(rows, row));
}

template <typename T>
kernel void norm_simdgroup(OPERANDS(T), uint2 at [[thread_position_in_grid]]) {
  NORM(T).whole(Together{at.x, SIMD_WIDTH, nullptr}, Place(rows, at.y));
}

template <typename T>
kernel void norm_threadgroup(
    OPERANDS(T), uint2 at [[thread_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  NORM(T).whole(Together{at.x, threads.x, shared}, Place(rows, at.y));
}

// ---- rows in parts ----

template <typename T>
kernel void norm_serial_summary(
    OPERANDS(T), device Moments* parts [[buffer(8)]],
    uint2 at [[thread_position_in_grid]]) {
  summarise(Alone{}, NORM(T), rows, at, parts);
}

template <typename T>
kernel void norm_threadgroup_summary(
    OPERANDS(T), device Moments* parts [[buffer(8)]],
    uint2 at [[threadgroup_position_in_grid]], uint2 own [[thread_position_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  summarise(Together{own.x, threads.x, shared}, NORM(T), rows, at, parts);
}

template <typename T>
kernel void norm_serial_finish(
    OPERANDS(T), device const Moments* parts [[buffer(8)]],
    uint2 at [[thread_position_in_grid]]) {
  finish(Alone{}, NORM(T), rows, at, parts);
}

template <typename T>
kernel void norm_threadgroup_finish(
    OPERANDS(T), device const Moments* parts [[buffer(8)]],
    uint2 at [[threadgroup_position_in_grid]], uint2 own [[thread_position_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  finish(Together{own.x, threads.x, shared}, NORM(T), rows, at, parts);
}
