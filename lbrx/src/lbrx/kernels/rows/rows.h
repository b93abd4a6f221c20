// Operations on rows, each processed by a team: one thread, one simdgroup or one threadgroup.
//
//   team.loaded(n, row)      the row, in registers if the team has enough
//   team.kept(n, row, out)   computed elements, in registers or in the memory of the results
//   team.reduce(op, n, row)  the elements reduced by Sum or Maximum; every thread gets the result
//   team.each(n, f)          f(run, slot) for each run of elements, f.single(i, slot) for others
//
// Memory is read and written in runs: one element, or 16 bytes of neighbouring ones (`Run` of
// vector_elements.h). A row is
// a function object: row(i, slot) is element i, the slot-th that this thread visits. In memory it is
// made of runs: row.fetch(run) reads one, and row.unpack(fetched, to) converts its elements.
//
// The computation on a row is a task, written once for all teams (in softmax.h and norm.h):
//
//   task.whole(team, rows, row)         a whole row
//   task.row(place)                     the elements of a part
//   task.summary(team, n, row)          the summary of a part, two floats
//   task.joined(team, parts, rows)      the summary of a row, merged from those of its parts
//   task.finish(team, place, row, all)  writes a part's results
#pragma once
#include "records/rows.h"
#include "vector_elements.h"

// The position of a part of a row, whose memory is runs of `size` elements. The output is contiguous,
// and its rows begin at the same places within runs as those of the input.
struct Place {
  uint first;  // element of the row
  uint count;  // elements
  uint phase;  // elements of the first run before the part
  ulong in;    // run
  ulong out;   // run

  Place(constant RowsRecord& rows, uint row, uint part = 0, uint size = 1) {
    const ulong start = row * rows.stride + part * rows.part;
    first = part * rows.part;
    count = min(rows.part, rows.length - first);
    phase = start % size;
    in = start / size;
    out = (row * ulong(rows.length) + first) / size;
  }
};

constant constexpr uint SIMD_WIDTH = 32;
constant constexpr uint KEPT = 32;  // elements of a row in a thread's registers, and one at its edge

template <typename T, typename V>
inline void to_floats(V run, thread float* to) {
  for (uint i = 0; i < Run<T, V>::SIZE; i++) to[i] = float(Run<T, V>::element(run, i));
}

// A run of floats that are rounded to T, two at a time if they share a word.
template <typename T, typename V, uint BYTES = sizeof(T)>
struct Rounded {
  static V of(thread const float* from) {
    V run;
    for (uint i = 0; i < sizeof(V) / 4; i++)
      set_word(run, i, as_type<uint>(vec<T, 2>(float2(from[2 * i], from[2 * i + 1]))));
    return run;
  }
};
template <typename V>
struct Rounded<float, V, 4> {
  static V of(thread const float* from) { return Run<float, V>::of(from); }
};
template <typename T>
struct Rounded<T, T, 2> {
  static T of(thread const float* from) { return T(*from); }
};

template <typename T, typename V>
inline V from_floats(thread const float* from) { return Rounded<T, V>::of(from); }

// Operations: `lift` converts an element to a state, `add` combines states, `lower` converts back.
struct Sum {
  float none() const { return 0.0f; }
  float join(float x, float y) const {
#pragma METAL fp math_mode(relaxed)  // in any order, so that sums vectorise
    return x + y;
  }
  float over_simdgroup(float x) const { return simd_sum(x); }
  float lift(float x) const { return x; }
  float lower(float state) const { return state; }
  float add(float x, float y) const { return join(x, y); }
};

// NaN is skipped: the computations that follow propagate it from the elements.
struct Maximum {
  float none() const { return -FLT_MAX; }
  float join(float x, float y) const { return fmax(x, y); }
  float over_simdgroup(float x) const { return simd_max(x); }
  float lift(float x) const { return x; }
  float lower(float state) const { return state; }
  float add(float x, float y) const { return fmax(x, y); }
};

// Elements in memory.
template <typename T, typename V = T>
struct Stored {
  using Fetched = V;
  device const V* at;
  float operator()(uint i, uint) const { return float(at[i]); }
  V fetch(uint run) const { return at[run]; }
  void unpack(V run, thread float* to) const { to_floats<T>(run, to); }
  float single(uint i) const { return float(((device const T*)at)[i]); }
};

template <typename Row, typename T, typename V = T>
struct Store {
  enum : uint { SIZE = Run<T, V>::SIZE };
  Row row;
  device V* out;
  void operator()(uint run, uint slot) const {
    float values[SIZE];
    for (uint i = 0; i < SIZE; i++) values[i] = row(run * SIZE + i, slot + i);
    out[run] = from_floats<T, V>(values);
  }
  void single(uint i, uint slot) const { ((device T*)out)[i] = T(row(0, slot)); }
};

// Elements in a thread's registers.
struct Kept {
  float at[KEPT + 1];
  float operator()(uint, uint slot) const { return at[slot]; }
};

// One thread. Loops along the row vectorise; the last elements use masked vectors.
#define LAST_ELEMENTS _Pragma("clang loop vectorize_predicate(enable) interleave_count(1)")

struct Alone {
  enum : uint { phase = 0 };
  bool leads() const { return true; }
  void move_to(Place) {}
  static uint whole(uint n) { return n / 64 * 64; }  // four of the longest vectors

  Alone looping() const { return *this; }

  template <typename Row>
  Row loaded(uint, Row row) const { return row; }

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

// A result for all threads of a team from those of each. `shared` has SIMD_WIDTH floats, unless the
// team is one simdgroup.
template <typename Op>
inline float over_team(Op op, float own, uint index, uint count, threadgroup float* shared) {
  own = op.over_simdgroup(own);
  if (count == SIMD_WIDTH) return own;
  const uint lane = index % SIMD_WIDTH;
  threadgroup_barrier(mem_flags::mem_threadgroup);  // until earlier results have been read
  if (lane == 0) shared[index / SIMD_WIDTH] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return op.over_simdgroup(lane < count / SIMD_WIDTH ? shared[lane] : op.none());
}

// The threads of a team for any number of elements in memory.
struct Looping {
  uint index;
  uint count;
  threadgroup float* shared;

  template <typename Op, typename Row>
  float reduce(Op op, uint n, Row row) const {
    float own = op.none();
    for (uint i = index; i < n; i += count) own = op.join(own, row(i, 0));
    return over_team(op, own, index, count, shared);
  }
};

// The threads of a simdgroup or threadgroup, with runs of SIZE elements: neighbouring threads have
// neighbouring runs. Each keeps KEPT elements at most, and loads them all before it uses one. A
// RAGGED row begins and ends within runs: the elements there are single ones of the first threads.
template <uint SIZE, bool RAGGED = false>
struct Together {
  enum : uint { RUNS = KEPT / SIZE, EDGE = SIMD_WIDTH / 2 };  // threads for the elements at an edge
  uint index;
  uint count;
  threadgroup float* shared;
  uint phase;

  Together(uint index_, uint count_, threadgroup float* shared_)
      : index(index_), count(count_), shared(shared_), phase(0) {}

  bool leads() const { return index == 0; }
  Looping looping() const { return {index, count, shared}; }
  void move_to(Place place) { phase = RAGGED ? place.phase : 0; }

  // Runs are counted from that in which the row begins. Those of a row with a phase end so early
  // that the weights of a norm, which have none, are in whole runs, too.
  uint first() const { return RAGGED && phase > 0 ? 1 : 0; }
  uint runs(uint n) const { return n / SIZE - first(); }
  uint run(uint i) const { return first() + i * count + index; }
  bool has_run(uint i, uint n) const { return i * count + index < runs(n); }

  // The i-th run of this thread. Threads without one load the last run of the row, so that no load
  // waits for a branch.
  uint run_or_last(uint i, uint n) const {
    return first() + min(i * count + index, runs(n) - 1);
  }

  // The single element of this thread, counted from the beginning of run 0.
  uint edge(uint n) const {
    return index < EDGE ? phase + index : (first() + runs(n)) * SIZE + index - EDGE;
  }
  bool has_edge(uint n) const {
    return RAGGED && edge(n) < (index < EDGE ? first() * SIZE : phase + n) && index < 2 * EDGE;
  }

  template <typename F>
  void each(uint n, F f) const {
#pragma unroll
    for (uint i = 0; i < RUNS; i++) {
      if (has_run(i, n)) f(run(i), i * SIZE);
    }
    visit_edge(f, n, bool_constant<RAGGED>{});
  }

  template <typename F>
  void visit_edge(F, uint, false_type) const {}

  template <typename F>
  void visit_edge(F f, uint n, true_type) const {
    if (has_edge(n)) f.single(edge(n), KEPT);
  }

  template <typename Row>
  Kept loaded(uint n, Row row) const {
    typename Row::Fetched fetched[RUNS];
#pragma unroll
    for (uint i = 0; i < RUNS; i++) fetched[i] = row.fetch(run_or_last(i, n));
    Kept mine;
    mine.at[KEPT] = has_edge(n) ? row.single(edge(n)) : 0.0f;
#pragma unroll
    for (uint i = 0; i < RUNS; i++) row.unpack(fetched[i], mine.at + i * SIZE);
    return mine;
  }

  template <typename Row, typename T>
  Kept kept(uint, Row row, device T*) const {
    Kept mine;
#pragma unroll
    for (uint i = 0; i < KEPT + (RAGGED ? 1 : 0); i++) mine.at[i] = row(0, i);
    return mine;
  }

  template <typename Op, typename Row>
  float reduce(Op op, uint n, Row row) const {
    auto own = op.lift(has_edge(n) ? row(edge(n), KEPT) : op.none());
#pragma unroll
    for (uint i = 0; i < RUNS; i++) {
      if (!has_run(i, n)) continue;
      auto part = op.lift(row(run(i) * SIZE, i * SIZE));
      for (uint j = 1; j < SIZE; j++)
        part = op.add(part, op.lift(row(run(i) * SIZE + j, i * SIZE + j)));
      own = op.add(own, part);
    }
    return over_team(op, op.lower(own), index, count, shared);
  }
};

// The team of a task on elements of type T in memory of type V.
template <typename T, typename V, bool RAGGED>
using TeamOf = Together<Run<T, V>::SIZE, RAGGED>;

// ---- rows in parts: `at` is the part and the row ----

template <typename Team, typename Task, typename Summary>
inline void summarise(
    Team team, Task task, constant RowsRecord& rows, uint2 at, device Summary* summaries) {
  const Place place(rows, at.y, at.x, Task::SIZE);
  team.move_to(place);
  const Summary own = task.summary(team, place.count, team.loaded(place.count, task.row(place)));
  if (team.leads()) summaries[at.y * ulong(rows.parts) + at.x] = own;
}

// Each part merges the summaries of its row.
template <typename Team, typename Task, typename Summary>
inline void finish(
    Team team, Task task, constant RowsRecord& rows, uint2 at, device const Summary* summaries) {
  const Place place(rows, at.y, at.x, Task::SIZE);
  team.move_to(place);
  const auto elements = team.loaded(place.count, task.row(place));
  const Summary all = task.joined(team.looping(), summaries + at.y * ulong(rows.parts), rows);
  task.finish(team, place, elements, all);
}
