// What generated kernels over rows need beside the teams: reductions in which NaN wins.
#pragma once
#include "elementwise.h"
#include "rows.h"

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
