// Attention of a few queries on CPUs.
#pragma once
#include "attention_serial.h"

// ---- decode_serial: one thread per chunk of keys, for all queries of the heads that share them ----
//
// Keys and values are read once, in memory order. Chunks have a fixed length, so results do not
// depend on the number of threads; attention_merge merges the chunks.

constant constexpr uint DECODE_CHUNK = 256;  // keys
constant constexpr uint DECODE_ROWS = 8;     // queries at a time
constant constexpr uint PASS_ROWS = 4;       // of these at a time, limited by registers
constant constexpr uint PASS_LINES = 4;      // of a result's features, likewise
constant constexpr uint MAX_LINES = SERIAL_DEPTH / LINE;

// Rows whose length is a multiple of a line are used in place; others are copied and zero-padded.
constant bool WHOLE_LINES = DEPTH != 0 && DEPTH % LINE == 0 && VALUE_DEPTH % LINE == 0;

// The query of a row: rows are ordered by head, then by query.
struct Row {
  uint head, query;
};

inline Row row_of(constant AttentionRecord& a, uint kv_head, uint row) {
  return {kv_head * a.group + row / a.queries, row % a.queries};
}

// The sum of each of sixteen lines.
inline Lanes sum_lines(thread Lanes (&lines)[LINE]) {
#pragma unroll
  for (uint count = LINE / 2; count > 0; count /= 2) {
#pragma unroll
    for (uint i = 0; i < count; i++) {
      const Lanes a = lines[2 * i], b = lines[2 * i + 1];
      lines[i] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26,
                                         28, 30) +
                 __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27,
                                         29, 31);
    }
  }
  return lines[0];
}

// Prefetch sixteen rows: hardware prefetchers do not look that far ahead.
template <typename P>
inline void fetch_ahead(P row, long stride, uint lines) {
  device const char* from = reinterpret_cast<device const char*>(row + LINE * stride);
  for (uint i = 0; i < lines * LINE * sizeof(*row); i += 64) __builtin_prefetch(from + i);
}

// Scores of sixteen keys with ROWS queries, some lines at a time; keys beyond `last` repeat the last one.
template <uint ROWS, uint WIDTH, typename K>
inline void score_rows(K keys, long stride, uint last, thread const Lanes* q, uint lines,
                       thread Lanes* scores) {
  Lanes sum[ROWS][LINE];
  for (uint n = 0; n < lines; n += WIDTH) {
    Lanes own[ROWS][WIDTH];
#pragma unroll
    for (uint r = 0; r < ROWS; r++)
      for (uint i = 0; i < WIDTH; i++) own[r][i] = q[r * lines + n + i];
#pragma nounroll
    for (uint j = 0; j < LINE; j++) {
      const K k = keys + min(j, last) * stride;
      fetch_ahead(k, stride, WIDTH);
      Lanes products[ROWS];
#pragma unroll
      for (uint r = 0; r < ROWS; r++) products[r] = n ? sum[r][j] : 0.0f;
#pragma unroll
      for (uint i = 0; i < WIDTH; i++) {
        const Lanes x = line_at(k, n + i);
#pragma unroll
        for (uint r = 0; r < ROWS; r++) products[r] = fused<LINE>(x, own[r][i], products[r]);
      }
#pragma unroll
      for (uint r = 0; r < ROWS; r++) sum[r][j] = products[r];
    }
  }
#pragma unroll
  for (uint r = 0; r < ROWS; r++) scores[r * DECODE_CHUNK / LINE] = sum_lines(sum[r]);
}

// Adds `count` weighted values to the sums of ROWS queries, some lines at a time.
template <uint ROWS, uint WIDTH, typename V>
inline void add_values(V values, long stride, uint count, thread const Lanes* weights, uint lines,
                       thread Lanes* sums) {
  for (uint n = 0; n < lines; n += WIDTH) {
    Lanes sum[ROWS][WIDTH];
#pragma unroll
    for (uint r = 0; r < ROWS; r++)
      for (uint i = 0; i < WIDTH; i++) sum[r][i] = sums[r * lines + n + i];
#pragma nounroll
    for (uint j = 0; j < count; j++) {
      const V v = values + j * stride;
      fetch_ahead(v, stride, WIDTH);
      thread const float* weight = (thread const float*)weights + j;
#pragma unroll
      for (uint i = 0; i < WIDTH; i++) {
        const Lanes x = line_at(v, n + i);
#pragma unroll
        for (uint r = 0; r < ROWS; r++)
          sum[r][i] = fused<LINE>(x, weight[r * DECODE_CHUNK], sum[r][i]);
      }
    }
#pragma unroll
    for (uint r = 0; r < ROWS; r++)
      for (uint i = 0; i < WIDTH; i++) sums[r * lines + n + i] = sum[r][i];
  }
}

// The same for any number of queries.
template <uint ROWS, typename K>
inline void score_all(K keys, long stride, uint last, thread const Lanes* q, uint lines,
                      uint rows, thread Lanes* scores) {
  for (; rows >= ROWS; rows -= ROWS) {
    if (lines % PASS_LINES == 0) {
      score_rows<ROWS, PASS_LINES>(keys, stride, last, q, lines, scores);
    } else {
      score_rows<ROWS, 1>(keys, stride, last, q, lines, scores);
    }
    q += ROWS * lines;
    scores += ROWS * DECODE_CHUNK / LINE;
  }
  if (ROWS > 1 && rows) {
    score_all<ROWS == 1 ? 1 : ROWS - 1>(keys, stride, last, q, lines, rows, scores);
  }
}

template <uint ROWS, typename V>
inline void add_all(V values, long stride, uint count, thread const Lanes* weights, uint lines,
                    uint rows, thread Lanes* sums) {
  for (; rows >= ROWS; rows -= ROWS) {
    if (lines % PASS_LINES == 0) {
      add_values<ROWS, PASS_LINES>(values, stride, count, weights, lines, sums);
    } else {
      add_values<ROWS, 1>(values, stride, count, weights, lines, sums);
    }
    weights += ROWS * DECODE_CHUNK / LINE;
    sums += ROWS * lines;
  }
  if (ROWS > 1 && rows) {
    add_all<ROWS == 1 ? 1 : ROWS - 1>(values, stride, count, weights, lines, rows, sums);
  }
}

template <typename KV>
inline void score_keys(device const KV* key, long stride, uint keys, uint depth,
                       thread const Lanes* q, uint rows, thread Lanes* scores) {
  alignas(64) float copies[LINE * SERIAL_DEPTH];
  const uint width = lined(depth), lines = width / LINE;
  for (uint j = 0; j < keys; j += LINE) {
    const uint count = min(LINE, keys - j);
    device const KV* from = key + j * stride;
    if (WHOLE_LINES) {
      score_all<PASS_ROWS>(from, stride, count - 1, q, lines, rows, scores + j / LINE);
    } else {
      pack(from, stride, count, depth, copies);
      thread const float* copied = copies;
      score_all<PASS_ROWS>(copied, width, count - 1, q, lines, rows, scores + j / LINE);
    }
  }
}

template <typename KV>
inline void sum_values(device const KV* value, long stride, uint keys, uint depth,
                       thread const Lanes* weights, uint rows, thread Lanes* sums) {
  alignas(64) float copies[LINE * SERIAL_DEPTH];
  const uint width = lined(depth), lines = width / LINE;
  for (uint j = 0; j < keys; j += LINE) {
    const uint count = min(LINE, keys - j);
    device const KV* from = value + j * stride;
    if (WHOLE_LINES) {
      add_all<PASS_ROWS>(from, stride, count, weights + j / LINE, lines, rows, sums);
    } else {
      pack(from, stride, count, depth, copies);
      thread const float* copied = copies;
      add_all<PASS_ROWS>(copied, width, count, weights + j / LINE, lines, rows, sums);
    }
  }
}

// Turns the scores of a query with keys from `first` on into weights, 0 for hidden keys; returns
// their maximum and their sum.
inline float2 weigh(constant AttentionRecord& a, device const float* mask, long mask_row, Seen seen,
                    uint first, uint keys, thread Lanes* scores) {
  Lanes peaks = -INFINITY, totals = 0.0f;
  thread float* each = (thread float*)scores;
  if (CAPPED || a.has_mask) {
    for (uint j = 0; j < keys; j++) {
      each[j] = scored(a, each[j], mask_at(a, mask, mask_row, first + j));
    }
  }
  const int last = min(seen.last, int(first + keys));
  const Ints<LINE> order = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (uint n = 0; n < lined(keys) / LINE; n++) {
    const Ints<LINE> at = order + int(first + n * LINE);
    const Lanes score = CAPPED || a.has_mask ? scores[n] : scores[n] * a.scale;
    scores[n] = (at >= seen.first & at < last) ? score : -INFINITY;
    peaks = larger(scores[n], peaks);
  }
  const float peak = __builtin_reduce_max(peaks), base = pivot(peak);
  for (uint n = 0; n < lined(keys) / LINE; n++) {
    scores[n] = power_of_two((scores[n] - base) * LOG2_E);
    totals += scores[n];
  }
  float total = 0.0f;
  for (uint l = 0; l < LINE; l++) total += totals[l];
  return float2(peak, total);
}

// The partial result of a chunk, or the result if it is the only chunk.
template <typename T>
inline void store_share(constant AttentionRecord& a, device const float* mask, uint head, float2 mark,
                        thread const float* sums, ulong place, device T* out, device float* shares, device float2* marks) {
  const uint depth = value_depth_of(a);
  if (a.chunks == 1) {
    const float total = with_sink(a, mask, head, mark.x, mark.y);
    for (uint d = 0; d < depth; d++) out[place * depth + d] = T(divided(sums[d], total));
  } else {
    marks[place] = mark;
    for (uint d = 0; d < depth; d++) shares[place * depth + d] = sums[d];
  }
}

template <typename T, typename KV>
kernel void attention_decode_serial(
    device const T* query [[buffer(0)]], device const KV* key [[buffer(1)]],
    device const KV* value [[buffer(2)]], device const float* mask [[buffer(3)]],
    device const int* lengths [[buffer(4)]], device T* out [[buffer(5)]],
    constant AttentionRecord& a [[buffer(6)]], device float* shares [[buffer(7)]],
    device float2* marks [[buffer(8)]], uint2 at [[thread_position_in_grid]]) {
  const uint kv_heads = a.heads / a.group, b = at.y / kv_heads, kv_head = at.y % kv_heads;
  const uint all_rows = a.group * a.queries, valid = valid_keys(a, lengths, b);
  const uint depth = depth_of(a), value_depth = value_depth_of(a);
  const uint lines = lined(depth) / LINE, value_lines = lined(value_depth) / LINE;
  const uint start = at.x * DECODE_CHUNK;
  const uint end = max(start, min(start + DECODE_CHUNK, valid));
  Lanes q[DECODE_ROWS * MAX_LINES], sums[DECODE_ROWS * MAX_LINES];
  Lanes scores[DECODE_ROWS * DECODE_CHUNK / LINE];
  float2 mark[DECODE_ROWS];
  for (uint r0 = 0; r0 < all_rows; r0 += DECODE_ROWS) {
    const uint rows = min(DECODE_ROWS, all_rows - r0);
    // The chunk's keys that any of these queries sees.
    uint first = end, last = start;
    for (uint r = 0; r < rows; r++) {
      const Row row = row_of(a, kv_head, r0 + r);
      const Seen seen = seen_by(a, valid, row.query);
      first = min(first, max(start, uint(seen.first)));
      last = max(last, min(end, uint(seen.last)));
      device const T* from = query + row_at(a.query, b, row.head, row.query);
      load_row(from, depth, (thread float*)(q + r * lines));
    }
    const uint keys = max(first, last) - first;
    for (uint n = 0; n < rows * value_lines; n++) sums[n] = 0.0f;
    score_keys(key + row_at(a.key, b, kv_head, first), a.key.row, keys, depth, q, rows, scores);
    for (uint r = 0; r < rows; r++) {
      const Row row = row_of(a, kv_head, r0 + r);
      mark[r] = weigh(a, mask, row_at(a.mask, b, row.head, row.query),
                      seen_by(a, valid, row.query), first, keys, scores + r * DECODE_CHUNK / LINE);
    }
    sum_values(value + row_at(a.value, b, kv_head, first), a.value.row, keys, value_depth, scores,
               rows, sums);
    for (uint r = 0; r < rows; r++) {
      const Row row = row_of(a, kv_head, r0 + r);
      const ulong place = share_at(a, b, row.head, row.query, at.x);
      store_share(a, mask, row.head, mark[r], (thread const float*)(sums + r * value_lines), place, out, shares,
                  marks);
    }
  }
}
