// Attention: softmax(query @ key.T * scale + mask) @ value, with one block of scores at a time.
// For safe math: hidden keys have the score -infinity, and NaN must be kept.
#pragma once
#include "records/attention.h"
#include <metal_stdlib>
using namespace metal;

inline long row_at(constant PlacesRecord& rows, uint b, uint h, uint i) {
  return rows.start + b * rows.batch + h * rows.head + i * rows.row;
}

inline uint depth_of(constant AttentionRecord& a) { return DEPTH ? DEPTH : a.depth; }
inline uint value_depth_of(constant AttentionRecord& a) {
  return VALUE_DEPTH ? VALUE_DEPTH : a.value_depth;
}

// The keys that a query sees: from `first` up to, not including, `last`.
struct Seen {
  int first, last;
};

inline uint valid_keys(AttentionRecord a, device const int* lengths, uint b) {
  return a.has_lengths ? uint(clamp(lengths[b], 0, int(a.keys))) : a.keys;
}

inline Seen seen_by(AttentionRecord a, uint valid, uint i) {
  const int own = int(valid) - int(a.queries) + int(i);
  Seen seen;
  seen.last = a.causal ? max(min(own + 1, int(valid)), 0) : int(valid);
  seen.first = a.window ? max(own - int(a.window) + 1, 0) : 0;
  return seen;
}

// Keys and values are floats, or bytes of GGUF's q8_0 blocks: a float16 scale and 32 codes. With the
// scales among the codes a row is contiguous, which makes it easy to write, copy and save; a
// simdgroup reads a block with one lane per code.
constant constexpr uint BLOCK = 32, BLOCK_BYTES = 34;

inline float scale_of(device const uchar* block) {
  return float(*reinterpret_cast<device const half*>(block));
}

template <typename KV>
inline float feature(device const KV* row, uint d) { return float(row[d]); }
inline float feature(device const uchar* row, uint d) {
  device const uchar* block = row + d / BLOCK * BLOCK_BYTES;
  return scale_of(block) * float(char(block[2 + d % BLOCK]));
}

inline float mask_at(constant AttentionRecord& a, device const float* mask, long row, uint j) {
  return a.has_mask ? mask[row + j * a.mask_key] : 0.0f;
}

inline float bent(constant AttentionRecord& a, float score) {
  return CAPPED ? a.cap * tanh(score / a.cap) : score;
}

// The score of a query and a key: their scaled product plus the mask.
inline float scored(constant AttentionRecord& a, float product, float added) {
  return CAPPED ? bent(a, product * a.scale) + added : fma(product, a.scale, added);
}

// What to subtract before exponentiation: 0 if all keys so far are hidden.
inline float pivot(float peak) { return peak == -INFINITY ? 0.0f : peak; }

inline float divided(float sum, float total) { return total == 0.0f ? 0.0f : sum / total; }

// A head's sink, which is stored behind the mask: a score without a value. It only adds to the total,
// which has weights relative to the maximum `peak`; for scores in powers of two also the sink is one.
inline float sink_of(constant AttentionRecord& a, device const float* mask, uint head) {
  return mask[a.sinks + head];
}
inline float with_sink(constant AttentionRecord& a, device const float* mask, uint head, float peak,
                       float total) {
  return a.has_sinks ? total + exp(sink_of(a, mask, head) - pivot(peak)) : total;
}
inline float with_sink_of_two(constant AttentionRecord& a, device const float* mask, uint head,
                              float peak, float total) {
  return a.has_sinks ? total + exp2(sink_of(a, mask, head) * 1.44269504f - pivot(peak)) : total;
}

// ---- plain: one thread per query and group of features of its result; any depth ----

constant constexpr uint PLAIN_VALUES = 64;

template <typename T, typename KV>
kernel void attention_plain(
    device const T* query [[buffer(0)]], device const KV* key [[buffer(1)]],
    device const KV* value [[buffer(2)]], device const float* mask [[buffer(3)]],
    device const int* lengths [[buffer(4)]], device T* out [[buffer(5)]],
    constant AttentionRecord& a [[buffer(6)]], uint3 at [[thread_position_in_grid]]) {
  const uint i = at.x, b = at.y / a.heads, h = at.y % a.heads, d0 = at.z * PLAIN_VALUES;
  const uint depth = depth_of(a), value_depth = value_depth_of(a);
  const uint values = min(PLAIN_VALUES, value_depth - d0);
  device const T* q = query + row_at(a.query, b, h, i);
  const long mask_row = row_at(a.mask, b, h, i);
  const Seen seen = seen_by(a, valid_keys(a, lengths, b), i);
  float sum[PLAIN_VALUES] = {0.0f};
  float peak = -INFINITY, total = 0.0f;
  for (int j = seen.first; j < seen.last; j++) {
    device const KV* k = key + row_at(a.key, b, h / a.group, j);
    float score = 0.0f;
    for (uint d = 0; d < depth; d++) score = fma(float(q[d]), feature(k, d), score);
    score = scored(a, score, mask_at(a, mask, mask_row, j));
    const float above = max(peak, score);
    const float shrink = exp(peak - pivot(above));
    const float weight = exp(score - pivot(above));
    peak = above;
    total = fma(total, shrink, weight);
    device const KV* v = value + row_at(a.value, b, h / a.group, j);
    for (uint d = 0; d < values; d++) sum[d] = fma(sum[d], shrink, weight * feature(v, d0 + d));
  }
  total = with_sink(a, mask, h, peak, total);
  device T* o = out + (long(at.y) * a.queries + i) * value_depth + d0;
  for (uint d = 0; d < values; d++) o[d] = T(divided(sum[d], total));
}

// Where the partial result of a chunk is written, with its maximum score and sum of weights.
inline ulong share_at(constant AttentionRecord& a, uint b, uint h, uint i, uint chunk) {
  return ((ulong(b) * a.heads + h) * a.queries + i) * a.chunks + chunk;
}

// ---- merge: partial results of all chunks, one thread per group of features ----

constant constexpr uint MERGE_VALUES = 16;

template <typename T>
kernel void attention_merge(device const float* shares [[buffer(0)]],
                            device const float2* marks [[buffer(1)]], device T* out [[buffer(2)]],
                            constant AttentionRecord& a [[buffer(3)]],
                            device const float* mask [[buffer(4)]],
                            uint2 at [[thread_position_in_grid]]) {
  const ulong row = at.y;
  const uint value_depth = value_depth_of(a);
  const uint d0 = at.x * MERGE_VALUES, count = min(MERGE_VALUES, value_depth - d0);
  float peak = -INFINITY, total = 0.0f;
  for (uint c = 0; c < a.chunks; c++) peak = max(peak, marks[row * a.chunks + c].x);
  float sum[MERGE_VALUES] = {0.0f};
  for (uint c = 0; c < a.chunks; c++) {
    const float2 mark = marks[row * a.chunks + c];
    const float weight = exp(mark.x - pivot(peak));
    total = fma(mark.y, weight, total);
    device const float* share = shares + (row * a.chunks + c) * value_depth + d0;
    for (uint d = 0; d < count; d++) sum[d] = fma(share[d], weight, sum[d]);
  }
  total = with_sink(a, mask, uint(row / a.queries % a.heads), peak, total);
  device T* o = out + row * value_depth + d0;
  for (uint d = 0; d < count; d++) o[d] = T(divided(sum[d], total));
}
