// Softmax and its logarithm. The summary of a row is its maximum and the sum of exp(x - maximum);
// summaries of parts are merged by scaling to the larger maximum. The maximum starts at the lowest
// finite number, so a row of -inf gives 0 / 0 = NaN, as in numpy.
#include "records/softmax.h"
#include "rows.h"

struct Summary {
  float top;
  float sum;  // of exp(x - top)
};

// For results of 16 bits the fast one is precise enough.
template <typename T> inline float exponential(float x) { return fast::exp(x); }
template <> inline float exponential<float>(float x) { return exp(x); }

template <typename T, typename Row>
struct Power {
  Row row;
  float top;
  float operator()(uint i, uint slot) const { return exponential<T>(row(i, slot) - top); }
};

struct Top {
  device const Summary* parts;
  float operator()(uint i, uint) const { return parts[i].top; }
};

struct ScaledSum {
  device const Summary* parts;
  float top;
  float operator()(uint i, uint) const { return parts[i].sum * exp(parts[i].top - top); }
};

template <typename Row>
struct Scaled {
  Row row;
  float factor;
  float operator()(uint i, uint slot) const { return row(i, slot) * factor; }
};

template <typename Row>
struct Less {
  Row row;
  float top;
  float logarithm;
  float operator()(uint i, uint slot) const { return row(i, slot) - top - logarithm; }
};

template <typename T, typename Row>
inline Power<T, Row> power(Row row, float top) { return {row, top}; }

template <typename Row>
inline Scaled<Row> scaled(Row row, float factor) { return {row, factor}; }

template <typename Row>
inline Less<Row> less(Row row, float top, float logarithm) { return {row, top, logarithm}; }

template <typename T, typename V = T>
struct Softmax {
  enum : uint { SIZE = Run<T, V>::SIZE };
  device const V* x;
  device V* out;

  Stored<T, V> row(Place place) const { return {x + place.in}; }

  template <typename Team, typename Row>
  Summary summary(Team team, uint n, Row row) const {
    const float top = team.reduce(Maximum{}, n, row);
    return {top, team.reduce(Sum{}, n, power<T>(row, top))};
  }

  template <typename Team>
  Summary joined(Team team, device const Summary* parts, constant RowsRecord& rows) const {
    const float top = team.reduce(Maximum{}, rows.parts, Top{parts});
    return {top, team.reduce(Sum{}, rows.parts, ScaledSum{parts, top})};
  }

  template <typename Team, typename Row>
  void finish(Team team, Place place, Row row, Summary all) const {
    if (LOGARITHM) {
      store(team, place, less(row, all.top, log(all.sum)));
    } else {
      store(team, place, scaled(power<T>(row, all.top), 1.0f / all.sum));
    }
  }

  template <typename Team>
  void whole(Team team, constant RowsRecord& rows, uint at) const {
    const Place place(rows, at, 0, SIZE);
    const uint n = place.count;
    team.move_to(place);
    const auto elements = team.loaded(n, row(place));
    const float top = team.reduce(Maximum{}, n, elements);
    const auto powers = team.kept(n, power<T>(elements, top), out + place.out);
    const float sum = team.reduce(Sum{}, n, powers);
    if (LOGARITHM) {
      store(team, place, less(elements, top, log(sum)));
    } else {
      store(team, place, scaled(powers, 1.0f / sum));
    }
  }

  template <typename Team, typename Row>
  void store(Team team, Place place, Row row) const {
    team.each(place.count, Store<Row, T, V>{row, out + place.out});
  }
};

// ---- whole rows ----

template <typename T>
kernel void softmax_serial(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant RowsRecord& rows [[buffer(2)]], uint row [[thread_position_in_grid]]) {
  Softmax<T>{x, out}.whole(Alone{}, rows, row);
}

template <typename T, typename V, bool RAGGED>
kernel void softmax_simdgroup(
    device const V* x [[buffer(0)]], device V* out [[buffer(1)]],
    constant RowsRecord& rows [[buffer(2)]], uint2 at [[thread_position_in_grid]]) {
  Softmax<T, V>{x, out}.whole(TeamOf<T, V, RAGGED>{at.x, SIMD_WIDTH, nullptr}, rows, at.y);
}

template <typename T, typename V, bool RAGGED>
[[max_total_threads_per_threadgroup(512)]]
kernel void softmax_threadgroup(
    device const V* x [[buffer(0)]], device V* out [[buffer(1)]],
    constant RowsRecord& rows [[buffer(2)]], uint2 at [[thread_position_in_grid]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  Softmax<T, V>{x, out}.whole(TeamOf<T, V, RAGGED>{at.x, threads.x, shared}, rows, at.y);
}

// ---- rows in parts ----

template <typename T>
kernel void softmax_serial_summary(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant RowsRecord& rows [[buffer(2)]], device Summary* parts [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]) {
  summarise(Alone{}, Softmax<T>{x, out}, rows, at, parts);
}

template <typename T, typename V, bool RAGGED>
[[max_total_threads_per_threadgroup(512)]]
kernel void softmax_threadgroup_summary(
    device const V* x [[buffer(0)]], device V* out [[buffer(1)]],
    constant RowsRecord& rows [[buffer(2)]], device Summary* parts [[buffer(3)]],
    uint2 at [[threadgroup_position_in_grid]], uint2 own [[thread_position_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  summarise(TeamOf<T, V, RAGGED>{own.x, threads.x, shared}, Softmax<T, V>{x, out}, rows, at, parts);
}

template <typename T>
kernel void softmax_serial_finish(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant RowsRecord& rows [[buffer(2)]], device const Summary* parts [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]) {
  finish(Alone{}, Softmax<T>{x, out}, rows, at, parts);
}

template <typename T, typename V, bool RAGGED>
[[max_total_threads_per_threadgroup(512)]]
kernel void softmax_threadgroup_finish(
    device const V* x [[buffer(0)]], device V* out [[buffer(1)]],
    constant RowsRecord& rows [[buffer(2)]], device const Summary* parts [[buffer(3)]],
    uint2 at [[threadgroup_position_in_grid]], uint2 own [[thread_position_in_threadgroup]],
    uint2 threads [[threads_per_threadgroup]]) {
  threadgroup float shared[SIMD_WIDTH];
  finish(TeamOf<T, V, RAGGED>{own.x, threads.x, shared}, Softmax<T, V>{x, out}, rows, at, parts);
}

// ---- columns: the axis is not the last ----

// The elements of a thread: `lines` of `lanes` neighbouring elements, and one line of `rest`. With few
// columns, n lanes share a column, each with every n-th element, so that vectors are full.
template <uint WIDTH>
struct Tile {
  uint columns;
  uint lanes;
  uint lines;
  uint rest;
  uint first;   // column
  ulong start;
  ulong pitch;  // from line to line

  Tile(constant ColumnsRecord& all, uint3 at) {
    const uint n = min(all.part, all.length - at.y * all.part);
    const bool few = all.inner <= WIDTH / 2;
    first = at.x * WIDTH;
    columns = min(WIDTH, all.inner - first);
    lanes = few ? WIDTH / columns * columns : columns;
    lines = few ? n * columns / lanes : n;
    rest = few ? n * columns % lanes : 0;
    start = (at.z * ulong(all.length) + at.y * all.part) * all.inner + first;
    pitch = few ? lanes : all.inner;
  }

  uint used() const { return lines > 0 ? lanes : rest; }
};

// A summary for each lane.
template <uint WIDTH>
struct Lanes {
  enum : uint { BLOCK = 16 };  // lines, so that the second read is from the cache
  float top[WIDTH];
  float sum[WIDTH];

  explicit Lanes(uint width) {
    for (uint j = 0; j < width; j++) top[j] = -FLT_MAX, sum[j] = 0.0f;
  }

  template <typename T>
  Lanes(device const T* x, Tile<WIDTH> tile) : Lanes(tile.used()) {
    for (uint line = 0; line < tile.lines; line += BLOCK) {
      add(x + line * tile.pitch, min(uint(BLOCK), tile.lines - line), tile.lanes, tile.pitch);
    }
    if (tile.rest > 0) add(x + tile.lines * tile.pitch, 1, tile.rest, 0);
    fold(tile);
  }

  template <typename T>
  void add(device const T* x, uint lines, uint width, ulong pitch) {
    float higher[WIDTH];
    for (uint j = 0; j < width; j++) higher[j] = top[j];
    for (uint i = 0; i < lines; i++) {
      for (uint j = 0; j < width; j++) higher[j] = max(higher[j], float(x[i * pitch + j]));
    }
    raise(higher, width);
    for (uint i = 0; i < lines; i++) {
      for (uint j = 0; j < width; j++) sum[j] += exp(float(x[i * pitch + j]) - top[j]);
    }
  }

  // Rescale the sums to a higher maximum.
  void raise(thread const float* higher, uint width) {
    for (uint j = 0; j < width; j++) {
      sum[j] *= exp(top[j] - higher[j]);
      top[j] = higher[j];
    }
  }

  // Merge the lanes of each column and distribute the result to them.
  void fold(Tile<WIDTH> tile) {
    const uint columns = tile.columns, used = tile.used();
    if (used == columns) return;
    float higher[WIDTH];
    for (uint j = 0; j < columns; j++) higher[j] = top[j];
    for (uint j = columns; j < used; j++) higher[j % columns] = max(higher[j % columns], top[j]);
    spread(higher, columns, used);
    raise(higher, used);
    for (uint j = columns; j < used; j++) sum[j % columns] += sum[j];
    spread(sum, columns, used);
  }

  void spread(thread float* values, uint columns, uint used) {
    for (uint j = columns; j < used; j++) values[j] = values[j - columns];
  }

  // The summaries of the tile's columns in a part.
  void join(device const float* tops, device const float* sums, uint columns) {
    float higher[WIDTH];
    for (uint j = 0; j < columns; j++) higher[j] = max(top[j], tops[j]);
    raise(higher, columns);
    for (uint j = 0; j < columns; j++) sum[j] += sums[j] * exp(tops[j] - top[j]);
  }

  template <typename T>
  void finish(device const T* x, device T* out, Tile<WIDTH> tile) {
    for (uint j = 0; j < tile.used(); j++) sum[j] = LOGARITHM ? log(sum[j]) : 1.0f / sum[j];
    for (uint line = 0; line < tile.lines; line++) {
      store(x + line * tile.pitch, out + line * tile.pitch, tile.lanes);
    }
    store(x + tile.lines * tile.pitch, out + tile.lines * tile.pitch, tile.rest);
  }

  template <typename T>
  void store(device const T* x, device T* out, uint width) const {
    for (uint j = 0; j < width; j++) {
      const float centred = float(x[j]) - top[j];
      out[j] = T(LOGARITHM ? centred - sum[j] : exp(centred) * sum[j]);
    }
  }
};

template <typename T, uint WIDTH>
kernel void softmax_columns(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant ColumnsRecord& columns [[buffer(2)]], uint3 at [[thread_position_in_grid]]) {
  const Tile<WIDTH> tile(columns, at);
  Lanes<WIDTH> lanes(x + tile.start, tile);
  lanes.finish(x + tile.start, out + tile.start, tile);
}

// A part stores the maxima of its columns, then their sums.
template <typename T, uint WIDTH>
kernel void softmax_columns_summary(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant ColumnsRecord& columns [[buffer(2)]],
    device float* parts [[buffer(3)]], uint3 at [[thread_position_in_grid]]) {
  const Tile<WIDTH> tile(columns, at);
  const Lanes<WIDTH> lanes(x + tile.start, tile);
  const ulong part = at.z * ulong(columns.parts) + at.y;
  device float* tops = parts + part * 2 * columns.inner + tile.first;
  for (uint j = 0; j < tile.columns; j++) tops[j] = lanes.top[j];
  for (uint j = 0; j < tile.columns; j++) tops[columns.inner + j] = lanes.sum[j];
}

template <typename T, uint WIDTH>
kernel void softmax_columns_finish(
    device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
    constant ColumnsRecord& columns [[buffer(2)]], device const float* parts [[buffer(3)]],
    uint3 at [[thread_position_in_grid]]) {
  const Tile<WIDTH> tile(columns, at);
  Lanes<WIDTH> lanes(tile.columns);
  device const float* tops = parts + at.z * ulong(columns.parts) * 2 * columns.inner + tile.first;
  for (uint part = 0; part < columns.parts; part++, tops += 2 * columns.inner) {
    lanes.join(tops, tops + columns.inner, tile.columns);
  }
  lanes.spread(lanes.top, tile.columns, tile.used());
  lanes.spread(lanes.sum, tile.columns, tile.used());
  lanes.finish(x + tile.start, out + tile.start, tile);
}
