// Operations on rows, each processed by a team: one thread, one simdgroup or one threadgroup.
//
//   team.kept(n, row)        the row, in registers if the team has enough
//   team.kept(n, row, out)   the same, or in the memory of the results
//   team.reduce(op, n, row)  the elements reduced by Sum or Maximum; every thread gets the result
//   team.each(n, f)          f(i, slot) for each element
//
// A row is a function object: row(i, slot) is element i, the slot-th that this thread visits. The
// computation on a row is a task, written once for all teams (in softmax.h and norm.h):
//
//   task.whole(team, place)             a whole row
//   task.row(place)                     the elements of a part
//   task.summary(team, n, row)          the summary of a part, two floats
//   task.joined(team, parts, rows)      the summary of a row, merged from those of its parts
//   task.finish(team, place, row, all)  writes a part's results
#pragma once
#include <metal_stdlib>
using namespace metal;

// Rows of one length; rows that are too long for a team are split into parts.
struct Rows {
  uint length;
  uint part;     // elements of all parts but the last
  uint parts;    // of a row
  ulong stride;  // from row to row of the input
};

// The position of a part, in elements. The output is contiguous.
struct Place {
  uint first;  // within the row
  uint count;
  ulong in;
  ulong out;

  Place(constant Rows& rows, uint row, uint part = 0)
      : first(part * rows.part),
        count(min(rows.part, rows.length - first)),
        in(row * rows.stride + first),
        out(row * ulong(rows.length) + first) {}
};

constant constexpr uint SIMD_WIDTH = 32;
constant constexpr uint KEPT = 16;  // elements of a row in a thread's registers

struct Sum {
  float none() const { return 0.0f; }
  float join(float x, float y) const {
#pragma METAL fp math_mode(relaxed)  // in any order, so that sums vectorise
    return x + y;
  }
  float over_simdgroup(float x) const { return simd_sum(x); }
};

// NaN is skipped: the computations that follow propagate it from the elements.
struct Maximum {
  float none() const { return -FLT_MAX; }
  float join(float x, float y) const { return fmax(x, y); }
  float over_simdgroup(float x) const { return simd_max(x); }
};

// Elements in memory.
template <typename T>
struct Stored {
  device const T* at;
  float operator()(uint i, uint) const { return float(at[i]); }
};

template <typename Row, typename T>
struct Store {
  Row row;
  device T* out;
  void operator()(uint i, uint slot) const { out[i] = T(row(i, slot)); }
};

// Elements in a thread's registers.
struct Kept {
  float at[KEPT];
  float operator()(uint, uint slot) const { return at[slot]; }
};

// One thread. Loops along the row vectorise; the last elements use masked vectors.
#define LAST_ELEMENTS _Pragma("clang loop vectorize_predicate(enable) interleave_count(1)")

struct Alone {
  bool leads() const { return true; }
  static uint whole(uint n) { return n / 64 * 64; }  // four of the longest vectors

  template <typename Row>
  Row kept(uint, Row row) const { return row; }

  template <typename Row>
  Stored<float> kept(uint n, Row row, device float* out) const {
    each(n, Store<Row, float>{row, out});
    return {out};
  }

  template <typename Row, typename T>
  Row kept(uint, Row row, device T*) const { return row; }

  template <typename Op, typename Row>
  float reduce(Op op, uint n, Row row) const {
    float result = op.none();
    for (uint i = 0; i < whole(n); i++) result = op.join(result, row(i, 0));
    LAST_ELEMENTS for (uint i = whole(n); i < n; i++) result = op.join(result, row(i, 0));
    return result;
  }

  template <typename F>
  void each(uint n, F f) const {
    for (uint i = 0; i < whole(n); i++) f(i, 0);
    LAST_ELEMENTS for (uint i = whole(n); i < n; i++) f(i, 0);
  }
};

// The threads of a simdgroup or threadgroup. Each visits runs of neighbouring elements, which are
// loaded at once, KEPT elements at most.
struct Together {
  enum : uint { RUN = 4 };
  uint index;
  uint count;
  threadgroup float* shared;  // SIMD_WIDTH of them, unless it is one simdgroup

  bool leads() const { return index == 0; }

  template <typename F>
  void each(uint n, F f) const {
#pragma unroll
    for (uint slot = 0; slot < KEPT; slot += RUN) {
      const uint first = slot * count + index * RUN;
      if (first + RUN <= n) {
        for (uint i = 0; i < RUN; i++) f(first + i, slot + i);
      } else {
        for (uint i = 0; i < RUN; i++) {
          if (first + i < n) f(first + i, slot + i);
        }
      }
    }
  }

  template <typename Row>
  struct Keep {
    Row row;
    thread float* at;
    void operator()(uint i, uint slot) const { at[slot] = row(i, slot); }
  };

  template <typename Row>
  Kept kept(uint n, Row row) const {
    Kept mine = {};
    each(n, Keep<Row>{row, mine.at});
    return mine;
  }

  template <typename Row, typename T>
  Kept kept(uint n, Row row, device T*) const { return kept(n, row); }

  template <typename Op, typename Row>
  struct Join {
    Op op;
    Row row;
    thread float* result;
    void operator()(uint i, uint slot) const { *result = op.join(*result, row(i, slot)); }
  };

  template <typename Op, typename Row>
  float reduce(Op op, uint n, Row row) const {
    float own = op.none();
    each(n, Join<Op, Row>{op, row, &own});
    own = op.over_simdgroup(own);
    return count > SIMD_WIDTH ? over_simdgroups(op, own) : own;
  }

  template <typename Op>
  float over_simdgroups(Op op, float own) const {
    const uint lane = index % SIMD_WIDTH;
    threadgroup_barrier(mem_flags::mem_threadgroup);  // until earlier results have been read
    if (lane == 0) shared[index / SIMD_WIDTH] = own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return op.over_simdgroup(lane < count / SIMD_WIDTH ? shared[lane] : op.none());
  }
};

// ---- rows in parts: `at` is the part and the row ----

template <typename Team, typename Task, typename Summary>
inline void summarise(
    Team team, Task task, constant Rows& rows, uint2 at, device Summary* summaries) {
  const Place place(rows, at.y, at.x);
  const Summary own = task.summary(team, place.count, team.kept(place.count, task.row(place)));
  if (team.leads()) summaries[at.y * ulong(rows.parts) + at.x] = own;
}

// Each part merges the summaries of its row.
template <typename Team, typename Task, typename Summary>
inline void finish(
    Team team, Task task, constant Rows& rows, uint2 at, device const Summary* summaries) {
  const Place place(rows, at.y, at.x);
  const Summary all = task.joined(team, summaries + at.y * ulong(rows.parts), rows);
  task.finish(team, place, task.row(place), all);
}
