// Attention of a few queries on GPUs: simdgroups share keys.
#pragma once
#include "attention.h"
#include "records/attention_simd.h"

// ---- decode: one threadgroup per query and chunk of keys, which its simdgroups share ----

constant constexpr uint DECODE_SIMDGROUPS = 8;
constant constexpr uint LANE_FEATURES = 8;  // at most: 256 features over 32 lanes

template <typename T, typename KV>
kernel void attention_decode(
    device const T* query [[buffer(0)]], device const KV* key [[buffer(1)]],
    device const KV* value [[buffer(2)]], device const float* mask [[buffer(3)]],
    device const int* lengths [[buffer(4)]], device T* out [[buffer(5)]],
    constant AttentionRecord& a [[buffer(6)]], device float* shares [[buffer(7)]],
    device float2* marks [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float all_sums[DECODE_SIMDGROUPS * 32 * LANE_FEATURES];
  threadgroup float2 all_marks[DECODE_SIMDGROUPS];
  const uint i = group.y, b = group.z / a.heads, h = group.z % a.heads, kv_head = h / a.group;
  const Seen seen = seen_by(a, valid_keys(a, lengths, b), i);
  const int first = max(seen.first, int(group.x * SPLIT));
  const int last = min(seen.last, int((group.x + 1) * SPLIT));
  device const T* from = query + row_at(a.query, b, h, i);
  device const float* mask_row = a.has_mask ? mask + row_at(a.mask, b, h, i) : nullptr;
  float q[LANE_FEATURES], sums[LANE_FEATURES];
  for (uint n = 0; n < LANE_FEATURES; n++) {
    const uint d = n * 32 + lane;
    q[n] = d < DEPTH ? float(from[d]) * a.scale : 0.0f;
    sums[n] = 0.0f;
  }
  float peak = -INFINITY, total = 0.0f;
  for (int j = first + int(simdgroup); j < last; j += DECODE_SIMDGROUPS) {
    device const KV* k = key + row_at(a.key, b, kv_head, j);
    device const KV* v = value + row_at(a.value, b, kv_head, j);
    float score = 0.0f;
    for (uint n = 0; n * 32 < DEPTH; n++) {
      const uint d = n * 32 + lane;
      if (DEPTH % 32 == 0 || d < DEPTH) score = fma(q[n], feature(k, d), score);
    }
    score = bent(a, simd_sum(score)) + (mask_row ? mask_row[j * a.mask_key] : 0.0f);
    const float above = max(peak, score);
    const float shrink = exp(peak - pivot(above)), weight = exp(score - pivot(above));
    peak = above;
    total = fma(total, shrink, weight);
    for (uint n = 0; n * 32 < VALUE_DEPTH; n++) {
      const uint d = n * 32 + lane;
      if (VALUE_DEPTH % 32 == 0 || d < VALUE_DEPTH) {
        sums[n] = fma(sums[n], shrink, weight * feature(v, d));
      }
    }
  }
  for (uint n = 0; n * 32 < VALUE_DEPTH; n++) {
    all_sums[simdgroup * 32 * LANE_FEATURES + n * 32 + lane] = sums[n];
  }
  if (lane == 0) all_marks[simdgroup] = float2(peak, total);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  float2 mark = float2(-INFINITY, 0.0f);
  for (uint s = 0; s < DECODE_SIMDGROUPS; s++) mark.x = max(mark.x, all_marks[s].x);
  float weights[DECODE_SIMDGROUPS];
  for (uint s = 0; s < DECODE_SIMDGROUPS; s++) {
    weights[s] = exp(all_marks[s].x - pivot(mark.x));
    mark.y = fma(all_marks[s].y, weights[s], mark.y);
  }
  const ulong place = share_at(a, b, h, i, group.x);
  const float all = with_sink(a, mask, h, mark.x, mark.y);  // if there are no other chunks
  for (uint d = thread_index; d < VALUE_DEPTH; d += DECODE_SIMDGROUPS * 32) {
    float sum = 0.0f;
    for (uint s = 0; s < DECODE_SIMDGROUPS; s++) {
      sum = fma(all_sums[s * 32 * LANE_FEATURES + d], weights[s], sum);
    }
    if (a.chunks == 1) {
      out[place * VALUE_DEPTH + d] = T(divided(sum, all));
    } else {
      shares[place * VALUE_DEPTH + d] = sum;
    }
  }
  if (a.chunks > 1 && thread_index == 0) marks[place] = mark;
}
