// Products of rows of x with the experts that they are sent to. A result is one use of an expert by a
// token. Results of one expert are computed together, in runs; the matrices of the experts are
// stacked, and those that no result uses are not read.
#pragma once
#include "quant_schemes.h"
#include "records/experts.h"

inline uint expert_of(device const int* indices, constant ExpertsRecord& p, uint result) {
  return uint(clamp(indices[ulong(result) * p.words], 0, int(p.experts) - 1));
}

// Results by their experts. Without an order each result is a run of its own.
struct Sent {
  device const int* indices;
  device const uint* order;  // the results, those of the first expert first
  device const ExpertRun* runs;

  ExpertRun run(constant ExpertsRecord& p, uint at) const thread {
    if (p.ordered) return runs[at];
    return {at, 1, expert_of(indices, p, at)};
  }
  uint result(constant ExpertsRecord& p, uint place) const thread {
    return p.ordered ? order[place] : place;
  }
};

// Where the row of x for a result starts, in elements.
inline ulong x_start(constant ExpertsRecord& p, uint result) { return ulong(result / p.each) * p.k; }

// ---- results in the order of their experts ----

// From the number of results of each expert to where they begin; and the runs.
inline void write_runs(device uint* starts, device ExpertRun* runs, constant ExpertsRecord& p) {
  uint place = 0, run = 0;
  for (uint expert = 0; expert < p.experts; expert++) {
    const uint count = starts[expert];
    starts[expert] = place;
    for (uint first = 0; first < count; first += p.longest)
      runs[run++] = {place + first, min(p.longest, count - first), expert};
    place += count;
  }
  for (; run < p.runs; run++) runs[run] = {0, 0, 0};
}

kernel void expert_order_serial(device const int* indices [[buffer(0)]],
                                device uint* order [[buffer(1)]],
                                device ExpertRun* runs [[buffer(2)]],
                                device uint* starts [[buffer(3)]],
                                constant ExpertsRecord& p [[buffer(4)]],
                                uint at [[thread_position_in_grid]]) {
  if (at > 0) return;
  for (uint expert = 0; expert < p.experts; expert++) starts[expert] = 0;
  for (uint result = 0; result < p.results; result++) starts[expert_of(indices, p, result)]++;
  write_runs(starts, runs, p);
  for (uint result = 0; result < p.results; result++)
    order[starts[expert_of(indices, p, result)]++] = result;
}

// One threadgroup, whose threads look for the results of some experts each.
kernel void expert_order_simd(device const int* indices [[buffer(0)]],
                              device uint* order [[buffer(1)]],
                              device ExpertRun* runs [[buffer(2)]],
                              device uint* starts [[buffer(3)]],
                              constant ExpertsRecord& p [[buffer(4)]],
                              uint index [[thread_position_in_threadgroup]],
                              uint threads [[threads_per_threadgroup]]) {
  for (uint expert = index; expert < p.experts; expert += threads) {
    uint count = 0;
    for (uint result = 0; result < p.results; result++)
      count += expert_of(indices, p, result) == expert;
    starts[expert] = count;
  }
  threadgroup_barrier(mem_flags::mem_device);
  if (index == 0) write_runs(starts, runs, p);
  threadgroup_barrier(mem_flags::mem_device);
  for (uint expert = index; expert < p.experts; expert += threads) {
    uint place = starts[expert];
    for (uint result = 0; result < p.results; result++)
      if (expert_of(indices, p, result) == expert) order[place++] = result;
  }
}

// ---- sixteen values of a row of the stack ----

template <typename C>
struct PackedExperts {
  static void read(Weight weight, ulong row, uint k, uint unit, thread float* values) {
    const uint units = C::elements() / UNIT;
    const Block block = block_at<C>(weight, row * (k / C::elements()) + unit / units);
    const float scale = C::scale(block, unit % units), offset = C::offset(block, unit % units);
#pragma nounroll
    for (uint i = 0; i < UNIT; i++) {
      const float code = C::code(block, unit % units, i);
      values[i] = C::SHIFTED ? fma(scale, code, offset) : scale * code;
    }
  }
};

// SCALES is the type of the values.
struct FloatExperts {
  static void read(Weight weight, ulong row, uint k, uint unit, thread float* values) {
    const uint first = unit * UNIT;
    device const uchar* from = weight.data + (row * k + first) * (SCALES == FLOAT ? 4 : 2);
    if (first + UNIT <= k) {
#pragma nounroll
      for (uint i = 0; i < UNIT; i++) values[i] = element(SCALES, from, i);
    } else {
      for (uint i = 0; i < UNIT; i++) values[i] = first + i < k ? element(SCALES, from, i) : 0.0f;
    }
  }
};

// ---- simdgroups ----

constant constexpr uint LANES = 32;
constant constexpr uint SIMD_COLUMNS = 4;  // of each of two simdgroups
constant constexpr uint SIMDGROUPS = 2;
constant constexpr uint SIMD_RESULTS = 8;  // of a run, at most

// The lanes of a simdgroup read along four rows of an expert, sixteen values at a time.
template <typename R>
kernel void experts_simd(device const uchar* data [[buffer(0)]],
                         device const void* scales [[buffer(1)]],
                         device const void* offsets [[buffer(2)]],
                         device const char* book [[buffer(3)]], device const void* x [[buffer(4)]],
                         device void* out [[buffer(5)]], device const int* indices [[buffer(6)]],
                         device const uint* order [[buffer(7)]],
                         device const ExpertRun* runs [[buffer(8)]],
                         constant ExpertsRecord& p [[buffer(9)]],
                         uint2 group [[threadgroup_position_in_grid]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]]) {
  const Sent sent = {indices, order, runs};
  const ExpertRun run = sent.run(p, group.y);
  const uint column = (group.x * SIMDGROUPS + simdgroup) * SIMD_COLUMNS;
  if (column >= p.n || run.length == 0) return;
  const Weight weight = {data, scales, offsets, book};
  float sums[SIMD_RESULTS][SIMD_COLUMNS] = {};
  for (uint unit = lane; unit * UNIT < p.k; unit += LANES) {
    float values[SIMD_COLUMNS][UNIT];
    for (uint c = 0; c < SIMD_COLUMNS; c++)
      R::read(weight, ulong(run.expert) * p.n + min(column + c, p.n - 1), p.k, unit, values[c]);
    const uint count = min(UNIT, p.k - unit * UNIT);
    for (uint r = 0; r < run.length; r++) {
      const ulong start = x_start(p, sent.result(p, run.first + r)) + unit * UNIT;
      for (uint i = 0; i < count; i++) {
        const float left = element(VALUES, x, start + i);
        for (uint c = 0; c < SIMD_COLUMNS; c++) sums[r][c] = fma(left, values[c][i], sums[r][c]);
      }
    }
  }
  for (uint r = 0; r < run.length; r++) {
    const ulong start = ulong(sent.result(p, run.first + r)) * p.n;
    for (uint c = 0; c < SIMD_COLUMNS; c++) {
      const float sum = simd_sum(sums[r][c]);
      if (lane == 0 && column + c < p.n) put(out, start + column + c, sum);
    }
  }
}
