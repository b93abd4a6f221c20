// Operations on rows, each processed by a team: one thread, one simdgroup or one threadgroup.
//
//   team.loaded(n, row, x)   the row, in registers if the team has enough; x fills up those of a team
//   team.fill(row, n, x)     fills up the registers with another number
//   team.kept(n, row, out)   computed elements, in registers or in the memory of the results
//   team.fold(op, n, row)    all elements in registers, or n in memory, reduced by Sum or Maximum;
//                            every thread gets the result
//   team.reduce(op, n, row)  n elements that are computed when they are needed
//   team.each(n, f)          f(run, slot) for each run of elements
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
//   Task::OTHER                         what a team's registers are filled up with
//   task.summary(team, n, row)          the summary of a part, two floats
//   task.joined(team, parts, rows)      the summary of a row, merged from those of its parts
//   task.finish(team, place, row, all)  writes a part's results
#pragma once
#include "vector_elements.h"

// Rows of one length; rows that are too long for a team are split into parts.
struct Rows {
  uint length;
  uint part;     // elements of all parts but the last
  uint parts;    // of a row
  ulong stride;  // from row to row of the input, in elements
  ulong size;    // from the first element of the input to its last
};

// The position of a part of a row, whose memory is runs of `size` elements. The output is contiguous,
// and its rows begin at the same places within runs as those of the input.
struct Place {
  uint first;  // element of the row
  uint count;  // elements
  uint phase;  // elements of the first run before the part
  uint limit;  // elements from the first run to the end of the input, if they are few
  ulong in;    // run
  ulong out;   // run

  Place(constant Rows& rows, uint row, uint part = 0, uint size = 1) {
    const ulong start = row * rows.stride + part * rows.part;
    first = part * rows.part;
    count = min(rows.part, rows.length - first);
    phase = start % size;
    in = start / size;
    out = (row * ulong(rows.length) + first) / size;
    limit = uint(min(rows.size - in * size, ulong(UINT_MAX)));
  }
};

constant constexpr uint SIMD_WIDTH = 32;
constant constexpr uint KEPT = 32;  // elements of a row in a thread's registers

template <typename T, typename V>
inline void to_floats(V run, thread float* to) {
  for (uint i = 0; i < Run<T, V>::SIZE; i++) to[i] = float(Run<T, V>::element(run, i));
}

template <typename T, typename V>
inline V from_floats(thread const float* from) {
  T elements[Run<T, V>::SIZE];
  for (uint i = 0; i < Run<T, V>::SIZE; i++) elements[i] = T(from[i]);
  return Run<T, V>::of(elements);
}

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
  bool has_operands(uint) const { return true; }
  void operator()(uint run, uint slot) const {
    float values[SIZE];
    for (uint i = 0; i < SIZE; i++) values[i] = row(run * SIZE + i, slot + i);
    out[run] = from_floats<T, V>(values);
  }
  void part(uint run, uint slot, int begin, int end) const {
#pragma unroll
    for (int i = 0; i < int(SIZE); i++) {
      if (i >= begin && i < end) ((device T*)out)[run * SIZE + i] = T(row(0, slot + i));
    }
  }
};

// Elements in a thread's registers.
struct Kept {
  float at[KEPT];
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
  Row loaded(uint, Row row, float) const { return row; }

  template <typename Row>
  void fill(thread Row&, uint, float) const {}

  template <typename Op, typename Row>
  float fold(Op op, uint n, Row row) const { return reduce(op, n, row); }

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
// neighbouring runs. Each keeps KEPT elements at most, and loads them all before it uses one. The
// first and the last run of a RAGGED row are in part of other rows.
template <uint SIZE, bool RAGGED = false>
struct Together {
  enum : uint { RUNS = KEPT / SIZE };
  uint index;
  uint count;
  threadgroup float* shared;
  uint phase;
  uint limit;

  Together(uint index_, uint count_, threadgroup float* shared_)
      : index(index_), count(count_), shared(shared_), phase(0), limit(0) {}

  bool leads() const { return index == 0; }
  Looping looping() const { return {index, count, shared}; }

  void move_to(Place place) {
    phase = RAGGED ? place.phase : 0;
    limit = place.limit;
  }

  // The elements of a run that belong to the row, from `begin` to `end`: whole runs also have some
  // before and after these.
  int begin(uint run) const { return int(phase) - int(run * SIZE); }
  int end(uint run, uint n) const { return int(phase + n) - int(run * SIZE); }
  uint runs(uint n) const { return RAGGED ? (phase + n + SIZE - 1) / SIZE : n / SIZE; }

  bool is_whole(uint run, uint n) const {
    return (!RAGGED || begin(run) <= 0) && end(run, n) >= int(SIZE);
  }

  // The i-th run of this thread. Threads without one load the last run of the row, so that no load
  // waits for a branch.
  uint run_or_last(uint i, uint n) const {
    return min(i * count + index, (RAGGED ? min(runs(n), limit / SIZE) : runs(n)) - 1);
  }

  template <typename F>
  void each(uint n, F f) const {
#pragma unroll
    for (uint i = 0; i < RUNS; i++) {
      const uint run = i * count + index;
      if (run < runs(n)) visit(f, run, i * SIZE, n, bool_constant<RAGGED>{});
    }
  }

  template <typename F>
  void visit(F f, uint run, uint slot, uint, false_type) const { f(run, slot); }

  template <typename F>
  void visit(F f, uint run, uint slot, uint n, true_type) const {
    if (is_whole(run, n) && f.has_operands(run)) {
      f(run, slot);
    } else {
      f.part(run, slot, begin(run), end(run, n));
    }
  }

  template <typename Row>
  Kept loaded(uint n, Row row, float other) const {
    typename Row::Fetched fetched[RUNS];
#pragma unroll
    for (uint i = 0; i < RUNS; i++) fetched[i] = row.fetch(run_or_last(i, n));
    Kept mine;
#pragma unroll
    for (uint i = 0; i < RUNS; i++) {
      row.unpack(fetched[i], mine.at + i * SIZE);
      const uint run = i * count + index;
      if (RAGGED && run < runs(n) && (run + 1) * SIZE > limit) {
#pragma unroll
        for (uint j = 0; j < SIZE; j++) {
          if (int(j) < end(run, n)) mine.at[i * SIZE + j] = row.single(run * SIZE + j);
        }
      }
    }
    fill(mine, n, other);
    return mine;
  }

  // What no element of the row is in.
  void fill(thread Kept& mine, uint n, float other) const {
#pragma unroll
    for (uint i = 0; i < RUNS; i++) {
      const uint run = i * count + index;
      if (is_whole(run, n)) continue;
#pragma unroll
      for (uint j = 0; j < SIZE; j++) {
        const bool inside = int(j) < end(run, n) && (!RAGGED || int(j) >= begin(run));
        mine.at[i * SIZE + j] = inside ? mine.at[i * SIZE + j] : other;
      }
    }
  }

  // Without a branch, and so without a test for each run.
  template <typename Op, typename Row>
  float fold(Op op, uint, Row row) const {
    float own = op.none();
#pragma unroll
    for (uint i = 0; i < RUNS; i++) {
      float part = row(0, i * SIZE);
#pragma unroll
      for (uint j = 1; j < SIZE; j++) part = op.join(part, row(0, i * SIZE + j));
      own = op.join(own, part);
    }
    return over_team(op, own, index, count, shared);
  }

  template <typename Row, typename T>
  Kept kept(uint, Row row, device T*) const {
    Kept mine;
#pragma unroll
    for (uint i = 0; i < KEPT; i++) mine.at[i] = row(0, i);
    return mine;
  }

  template <typename Op, typename Row>
  float reduce(Op op, uint n, Row row) const {
    float own = op.none();
#pragma unroll
    for (uint i = 0; i < RUNS; i++) {
      const uint run = i * count + index;
      if (run >= runs(n)) continue;
      float part = row(run * SIZE, i * SIZE);
      for (uint j = 1; j < SIZE; j++) part = op.join(part, row(run * SIZE + j, i * SIZE + j));
      own = op.join(own, part);
    }
    return over_team(op, own, index, count, shared);
  }
};

// The team of a task on elements of type T in memory of type V.
template <typename T, typename V, bool RAGGED>
using TeamOf = Together<Run<T, V>::SIZE, RAGGED>;

// ---- rows in parts: `at` is the part and the row ----

template <typename Team, typename Task, typename Summary>
inline void summarise(
    Team team, Task task, constant Rows& rows, uint2 at, device Summary* summaries) {
  const Place place(rows, at.y, at.x, Task::SIZE);
  team.move_to(place);
  auto elements = team.loaded(place.count, task.row(place), Task::OTHER);
  const Summary own = task.summary(team, place.count, elements);
  if (team.leads()) summaries[at.y * ulong(rows.parts) + at.x] = own;
}

// Each part merges the summaries of its row.
template <typename Team, typename Task, typename Summary>
inline void finish(
    Team team, Task task, constant Rows& rows, uint2 at, device const Summary* summaries) {
  const Place place(rows, at.y, at.x, Task::SIZE);
  team.move_to(place);
  const auto elements = team.loaded(place.count, task.row(place), Task::OTHER);
  const Summary all = task.joined(team.looping(), summaries + at.y * ulong(rows.parts), rows);
  task.finish(team, place, elements, all);
}
