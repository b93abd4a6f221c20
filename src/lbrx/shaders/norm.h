// Layer and RMS norm, of a sum of two where asked. A row is summed up as its mean and the sum of
// squares around it; RMS norm takes zero for the mean.
#include "rows.h"

constant bool CENTRED [[function_constant(0)]];   // layer norm
constant bool RESIDUAL [[function_constant(1)]];  // which is added first
constant bool WEIGHT [[function_constant(2)]];
constant bool BIAS [[function_constant(3)]];

struct NormRows {
  uint length;
  float eps;
  ulong stride;           // from row to row of the input
  ulong residual_stride;
};

struct Moments {
  float mean;
  float squares;  // the sum of (x - mean)^2
};

// The elements that are normalised, in float: a sum is not rounded first.
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

template <typename Team, typename Row>
inline Moments moments(Team team, uint n, Row row) {
  const float mean = CENTRED ? team.reduce(Sum{}, n, row) / n : 0.0f;
  return {mean, team.reduce(Sum{}, n, Square<Row>{row, mean})};
}

template <typename T>
struct Weights {
  device const T* weight;
  device const T* bias;
};

template <typename Row, typename T>
struct Normalise {
  Row row;
  Weights<T> weights;
  float mean;
  float factor;
  device T* out;
  device T* total;
  void operator()(uint i, uint slot) const {
    const float x = row(i, slot);
    float y = (x - mean) * factor;
    if (WEIGHT) y *= float(weights.weight[i]);
    if (BIAS) y += float(weights.bias[i]);
    out[i] = T(y);
    if (RESIDUAL) total[i] = T(x);
  }
};

#define NORM_ARGUMENTS(T)                                                  \
  device const T* x [[buffer(0)]],                                         \
  device const T* residual [[buffer(1), function_constant(RESIDUAL)]],     \
  device const T* weight [[buffer(2), function_constant(WEIGHT)]],         \
  device const T* bias [[buffer(3), function_constant(BIAS)]],             \
  device T* out [[buffer(4)]],                                             \
  device T* total [[buffer(5), function_constant(RESIDUAL)]],              \
  constant NormRows& rows [[buffer(6)]]

template <typename Team, typename T>
inline void norm_row(Team team, NORM_ROW) {
  
}
