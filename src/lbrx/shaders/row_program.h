// What generated kernels over rows need beside the teams: reductions in which NaN wins.
#pragma once
#include "elementwise.h"
#include "rows.h"

// One thread, which joins elements LANES apart: that is what a processor does with vectors.
struct OneThread {
  enum : uint { LANES = 32 };

  template <typename Op, typename Row>
  float reduce(Op op, uint n, Row row) const {
    float part[LANES];
    for (uint lane = 0; lane < LANES; lane++) part[lane] = op.none();
    const uint whole = n - n % LANES;
    for (uint i = 0; i < whole; i += LANES) {
      for (uint lane = 0; lane < LANES; lane++) part[lane] = op.join(part[lane], row(i + lane, 0));
    }
    for (uint i = whole; i < n; i++) part[i - whole] = op.join(part[i - whole], row(i, 0));
    for (uint left = LANES / 2; left > 0; left /= 2) {
      for (uint lane = 0; lane < left; lane++) part[lane] = op.join(part[lane], part[lane + left]);
    }
    return part[0];
  }

  template <typename F>
  void each(uint n, F f) const {
    for (uint i = 0; i < n; i++) f(i, 0);
  }
};

struct RowSum : Sum {};

struct RowProduct {
  float none() const { return 1.0f; }
  float join(float x, float y) const { return x * y; }
  float over_simdgroup(float x) const { return simd_product(x); }
};

// simd_max and simd_min may pass over NaN.
struct RowMaximum {
  float none() const { return -INFINITY; }
  float join(float x, float y) const { return op::maximum(x, y); }
  float over_simdgroup(float x) const { return simd_any(isnan(x)) ? NAN : simd_max(x); }
};

struct RowMinimum {
  float none() const { return INFINITY; }
  float join(float x, float y) const { return op::minimum(x, y); }
  float over_simdgroup(float x) const { return simd_any(isnan(x)) ? NAN : simd_min(x); }
};
