// Reductions for generated row kernels, which propagate NaN.
#pragma once
#include "elementwise.h"
#include "float_order.h"
#include "rows.h"

using RowSum = Sum;

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

// Compared as integers, in which NaN is beyond all numbers.
struct RowMaximum {
  float none() const { return -INFINITY; }
  float join(float x, float y) const { return lower(max(lift(x), lift(y))); }
  float over_simdgroup(float x) const { return lower(simd_max(lift(x))); }
  int lift(float x) const { return float_order(x, INT_MAX); }
  float lower(int state) const { return float_from_order<float>(state, INT_MAX); }
  int add(int x, int y) const { return max(x, y); }
};

struct RowMinimum {
  float none() const { return INFINITY; }
  float join(float x, float y) const { return lower(min(lift(x), lift(y))); }
  float over_simdgroup(float x) const { return lower(simd_min(lift(x))); }
  int lift(float x) const { return float_order(x, INT_MIN); }
  float lower(int state) const { return float_from_order<float>(state, INT_MIN); }
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

// ---- elements of a row that a team reads in runs ----

// Read from memory at each use.
template <typename T, typename V>
struct Read {
  device const V* at;
  T operator()(uint i, uint) const {
    return Run<T, V>::element(at[i / Run<T, V>::SIZE], i % Run<T, V>::SIZE);
  }
};

// Read once, into registers.
template <typename T, typename V, uint RUNS>
struct Held {
  V at[RUNS];
  T operator()(uint, uint slot) const {
    return Run<T, V>::element(at[slot / Run<T, V>::SIZE], slot % Run<T, V>::SIZE);
  }
};

template <typename T, typename V, typename Team>
inline Held<T, V, Team::RUNS> hold(Team team, uint n, device const V* at) {
  Held<T, V, Team::RUNS> held;
#pragma unroll
  for (uint i = 0; i < Team::RUNS; i++) held.at[i] = at[team.run_or_last(i, n)];
  return held;
}
