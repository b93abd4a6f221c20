// What generated kernels over rows need beside the teams: reductions in which NaN wins.
#pragma once
#include "elementwise.h"
#include "rows.h"

// A reduction also has a form for one thread, whose loop a processor runs on vectors: elements are
// lifted, added up in any order and lowered again.

struct RowSum : Sum {
  float lift(float x) const { return x; }
  float lower(float state) const { return state; }
  float add(float x, float y) const { return join(x, y); }
};

struct RowProduct {
  float none() const { return 1.0f; }
  float join(float x, float y) const {
#pragma METAL fp math_mode(relaxed)
    return x * y;
  }
  float over_simdgroup(float x) const { return simd_product(x); }
  float lift(float x) const { return x; }
  float lower(float state) const { return state; }
  float add(float x, float y) const { return join(x, y); }
};

// Integers in the order of floats, both ways.
inline int ordered(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

// simd_max and simd_min may pass over NaN. One thread compares integers, with NaN at the far end.
struct RowMaximum {
  float none() const { return -INFINITY; }
  float join(float x, float y) const { return op::maximum(x, y); }
  float over_simdgroup(float x) const { return simd_any(isnan(x)) ? NAN : simd_max(x); }
  int lift(float x) const { return isnan(x) ? INT_MAX : ordered(as_type<int>(x)); }
  float lower(int state) const { return as_type<float>(ordered(state)); }
  int add(int x, int y) const { return max(x, y); }
};

struct RowMinimum {
  float none() const { return INFINITY; }
  float join(float x, float y) const { return op::minimum(x, y); }
  float over_simdgroup(float x) const { return simd_any(isnan(x)) ? NAN : simd_min(x); }
  int lift(float x) const { return isnan(x) ? INT_MIN : ordered(as_type<int>(x)); }
  float lower(int state) const { return as_type<float>(ordered(state)); }
  int add(int x, int y) const { return min(x, y); }
};

struct OneThread : Alone {
  template <typename Op, typename Row>
  float reduce(Op op, uint n, Row row) const {
    auto state = op.lift(op.none());
    for (uint i = 0; i < whole(n); i++) state = op.add(state, op.lift(row(i, 0)));
    LAST_ELEMENTS for (uint i = whole(n); i < n; i++) state = op.add(state, op.lift(row(i, 0)));
    return op.lower(state);
  }
};
