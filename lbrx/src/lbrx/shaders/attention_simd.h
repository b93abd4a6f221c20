// Attention for GPUs: simdgroups share keys, or hold tiles of the products as matrices.
#pragma once
#include "attention.h"

// ---- flash: 32 queries per threadgroup, 8 per simdgroup; keys and values in blocks ----
//
// The mapping of matrix elements to lanes is not documented, so sums are scaled by multiplication
// with a diagonal matrix. There 0 * NaN would reach other rows: a NaN goes into the row's
// total instead, by which its sums are divided at the end.

constant constexpr uint FLASH_QUERIES = 32;
constant constexpr uint FLASH_SIMDGROUPS = FLASH_QUERIES / 8;
constant constexpr uint FLASH_THREADS = FLASH_SIMDGROUPS * 32;

// float16 is multiplied directly, other dtypes as float: before the M3, bfloat is emulated.
template <typename T, typename KV> struct Factor { using type = float; };
template <> struct Factor<half, half> { using type = half; };
template <> struct Factor<half, uchar> { using type = half; };

// All threads copy rows into threadgroup memory; rows beyond `valid` are zeros.
template <uint D, typename From, typename To>
inline void stage(device const From* rows, long stride, int valid, uint count, uint width,
                  threadgroup To* tile, uint thread_index) {
  for (uint n = thread_index; n < count * D; n += FLASH_THREADS) {
    const uint row = n / D, d = n % D;
    tile[row * width + d] = int(row) < valid ? To(feature(rows + row * stride, d)) : To(0);
  }
}

inline float without_nan(float x) { return isnan(x) ? 0.0f : x; }

// The online softmax of a row by four neighbouring lanes, each with every fourth key.
struct RowState {
  float peak, total;
};

template <uint KEYS, typename C>
inline float update_row(thread RowState& state, Seen seen, int j0, uint part,
                        constant Attention& a, device const float* mask,
                        threadgroup const float* scores, threadgroup C* weights) {
  float score[KEYS / 4];
  float peak = state.peak;
  for (uint n = 0; n < KEYS / 4; n++) {
    const uint j = 4 * n + part;
    const int at = j0 + int(j);
    const bool visible = at >= seen.first && at < seen.last;
    const float added = visible && mask ? mask[at * a.mask_key] : 0.0f;
    score[n] = visible ? scored(a, scores[j], added) : -INFINITY;
    peak = max(peak, score[n]);
  }
  peak = max(peak, simd_shuffle_xor(peak, 1));
  peak = max(peak, simd_shuffle_xor(peak, 2));
  float sum = 0.0f;
  for (uint n = 0; n < KEYS / 4; n++) {
    const float weight = exp(score[n] - pivot(peak));
    weights[4 * n + part] = C(without_nan(weight));
    sum += weight;
  }
  sum += simd_shuffle_xor(sum, 1);
  sum += simd_shuffle_xor(sum, 2);
  const float shrink = exp(state.peak - pivot(peak));
  state.total = fma(state.total, shrink, sum);
  state.peak = peak;
  return without_nan(shrink);
}

template <typename T, typename KV, uint D>
kernel void attention_flash(
    device const T* query [[buffer(0)]], device const KV* key [[buffer(1)]],
    device const KV* value [[buffer(2)]], device const float* mask [[buffer(3)]],
    device const int* lengths [[buffer(4)]], device T* out [[buffer(5)]],
    constant Attention& a [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  using C = typename Factor<T, KV>::type;
  constexpr uint KEYS = D >= 128 ? 16 : 32;
  constexpr uint WIDTH = D + 16 / sizeof(C);  // rows start in different banks
  threadgroup C tile[KEYS * WIDTH];
  threadgroup float all_scores[FLASH_QUERIES * KEYS];
  threadgroup C all_weights[FLASH_QUERIES * KEYS];
  threadgroup float diagonals[FLASH_SIMDGROUPS * 64];
  threadgroup float* scores = all_scores + simdgroup * 8 * KEYS;
  threadgroup C* weights = all_weights + simdgroup * 8 * KEYS;
  threadgroup float* diagonal = diagonals + simdgroup * 64;

  const uint b = group.y / a.heads, h = group.y % a.heads, kv_head = h / a.group;
  const uint i0 = group.x * FLASH_QUERIES, queries = min(FLASH_QUERIES, a.queries - i0);
  const uint row = lane / 4, part = lane % 4, i = min(i0 + simdgroup * 8 + row, a.queries - 1);
  const uint valid = valid_keys(a, lengths, b);
  const Seen seen = seen_by(a, valid, i);
  device const float* mask_row = a.has_mask ? mask + row_at(a.mask, b, h, i) : nullptr;

  simdgroup_matrix<C, 8, 8> q[D / 8];
  for (uint i1 = 0; i1 < FLASH_QUERIES; i1 += KEYS) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<D>(query + row_at(a.query, b, h, i0 + i1), a.query.row, int(queries) - int(i1), KEYS,
             WIDTH, tile, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup * 8 / KEYS * KEYS == i1) {
      for (uint d = 0; d < D / 8; d++) {
        simdgroup_load(q[d], tile + simdgroup * 8 % KEYS * WIDTH + d * 8, WIDTH);
      }
    }
  }
  simdgroup_float8x8 sums[D / 8];
  for (uint d = 0; d < D / 8; d++) sums[d] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  diagonal[2 * lane] = 0.0f;
  diagonal[2 * lane + 1] = 0.0f;
  RowState state = {-INFINITY, 0.0f};

  const int last = seen_by(a, valid, i0 + queries - 1).last;
  for (int j0 = seen_by(a, valid, i0).first / KEYS * KEYS; j0 < last; j0 += KEYS) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<D>(key + row_at(a.key, b, kv_head, j0), a.key.row, last - j0, KEYS, WIDTH, tile,
             thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint j = 0; j < KEYS; j += 8) {
      simdgroup_float8x8 products = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      for (uint d = 0; d < D / 8; d++) {
        simdgroup_matrix<C, 8, 8> k;
        simdgroup_load(k, tile + j * WIDTH + d * 8, WIDTH, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(products, q[d], k, products);
      }
      simdgroup_store(products, scores + j, KEYS);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage<D>(value + row_at(a.value, b, kv_head, j0), a.value.row, last - j0, KEYS, WIDTH, tile,
             thread_index);
    const float shrink = update_row<KEYS>(state, seen, j0, part, a, mask_row,
                                          scores + row * KEYS, weights + row * KEYS);
    if (part == 0) diagonal[row * 9] = shrink;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd_any(shrink != 1.0f)) {
      simdgroup_float8x8 factors;
      simdgroup_load(factors, diagonal, 8);
      for (uint d = 0; d < D / 8; d++) simdgroup_multiply(sums[d], factors, sums[d]);
    }
    for (uint j = 0; j < KEYS; j += 8) {
      simdgroup_matrix<C, 8, 8> w;
      simdgroup_load(w, weights + j, KEYS);
      for (uint d = 0; d < D / 8; d++) {
        simdgroup_matrix<C, 8, 8> v;
        simdgroup_load(v, tile + j * WIDTH + d * 8, WIDTH);
        simdgroup_multiply_accumulate(sums[d], w, v, sums[d]);
      }
    }
  }
  // Eight features at a time through the place of the scores, where lanes know their row.
  device T* o = out + (long(group.y) * a.queries + i) * D;
  for (uint d = 0; d < D / 8; d++) {
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_store(sums[d], scores, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup * 8 + row < queries) {
      for (uint n = 2 * part; n < 2 * part + 2; n++) {
        o[d * 8 + n] = T(divided(scores[row * 8 + n], state.total));
      }
    }
  }
}

// ---- decode: one threadgroup per query and chunk of keys, which its simdgroups share ----

constant constexpr uint DECODE_SIMDGROUPS = 8;
constant constexpr uint LANE_FEATURES = 8;  // at most: 256 features over 32 lanes

constant uint SPLIT [[function_constant(2)]];  // keys in a chunk

template <typename T, typename KV>
kernel void attention_decode(
    device const T* query [[buffer(0)]], device const KV* key [[buffer(1)]],
    device const KV* value [[buffer(2)]], device const float* mask [[buffer(3)]],
    device const int* lengths [[buffer(4)]], device T* out [[buffer(5)]],
    constant Attention& a [[buffer(6)]], device float* shares [[buffer(7)]],
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
  for (uint d = thread_index; d < VALUE_DEPTH; d += DECODE_SIMDGROUPS * 32) {
    float sum = 0.0f;
    for (uint s = 0; s < DECODE_SIMDGROUPS; s++) {
      sum = fma(all_sums[s * 32 * LANE_FEATURES + d], weights[s], sum);
    }
    if (a.chunks == 1) {
      out[place * VALUE_DEPTH + d] = T(divided(sum, mark.y));
    } else {
      shares[place * VALUE_DEPTH + d] = sum;
    }
  }
  if (a.chunks > 1 && thread_index == 0) marks[place] = mark;
}
