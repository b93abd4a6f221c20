// Attention where threads have no simdgroup: each does a long run that becomes vector instructions.
#pragma once
#include "attention.h"

// ---- serial: a thread a block of queries, side by side in the vector registers ----
//
// Scores and results are kept transposed, (keys, queries) and (features, queries): then every step
// of the online softmax is the same operation on all queries, and nothing is summed across a
// register. Keys and values are spread as single numbers.

constant constexpr uint SERIAL_DEPTH = 256;  // the most features of any head
constant constexpr uint SERIAL_QUERIES = 64;
constant constexpr uint SERIAL_KEYS = 64;
constant constexpr uint TILE_ROWS = 2;
constant constexpr uint TILE_STEPS = 8;

constant uint LANES [[function_constant(2)]];  // queries in a block

// c[r][l] += sum over k of a(r, k) * b[k][l], for TILE_ROWS rows. The loop over lanes becomes
// vector instructions, if nothing unrolls it before; what it loads of b serves all rows, of c all
// steps.
inline void multiply_tile(thread const float* a, uint a_row, uint a_step, thread const float* b,
                          uint count, thread float* c) {
  for (uint k = 0; k < count; k += TILE_STEPS) {
    float x[TILE_ROWS][TILE_STEPS];
    for (uint r = 0; r < TILE_ROWS; r++) {
      for (uint s = 0; s < TILE_STEPS; s++) x[r][s] = a[r * a_row + (k + s) * a_step];
    }
    thread const float* y = b + k * LANES;
#pragma nounroll
    for (uint l = 0; l < LANES; l++) {
      float sum[TILE_ROWS];
      for (uint r = 0; r < TILE_ROWS; r++) sum[r] = c[r * LANES + l];
      for (uint s = 0; s < TILE_STEPS; s++) {
        for (uint r = 0; r < TILE_ROWS; r++) sum[r] = fma(x[r][s], y[s * LANES + l], sum[r]);
      }
      for (uint r = 0; r < TILE_ROWS; r++) c[r * LANES + l] = sum[r];
    }
  }
}

inline uint padded(uint n) { return (n + TILE_STEPS - 1) / TILE_STEPS * TILE_STEPS; }

// Rows as floats without gaps; what is missing of the last tile is zero.
template <typename KV>
inline void pack(device const KV* rows, long stride, uint count, uint depth, thread float* to) {
  const uint width = padded(depth);
  for (uint j = 0; j < padded(count); j++) {
    thread float* row = to + j * width;
    if (j < count) {
      device const KV* from = rows + j * stride;
      for (uint d = 0; d < depth; d++) row[d] = float(from[d]);
      for (uint d = depth; d < width; d++) row[d] = 0.0f;
    } else {
      for (uint d = 0; d < width; d++) row[d] = 0.0f;
    }
  }
}

// Hide what a query does not see, and add the mask.
inline void hide(constant Attention& a, device const float* mask, long mask_row, uint valid,
                 uint i0, uint queries, uint j0, uint keys, thread float* scores) {
  for (uint l = 0; l < queries; l++) {
    const Seen seen = seen_by(a, valid, i0 + l);
    for (uint j = 0; j < padded(keys); j++) {
      const int at = j0 + j;
      const bool visible = at >= seen.first && at < seen.last;
      const float added = visible ? mask_at(a, mask, mask_row + l * a.mask.row, at) : 0.0f;
      scores[j * LANES + l] = visible ? scores[j * LANES + l] + added : -INFINITY;
    }
  }
}

// Scores become weights; `shrink` is what earlier sums are worth beside them.
inline void exponentiate(uint keys, thread float* scores, thread float* peak, thread float* total,
                         thread float* shrink) {
  float above[SERIAL_QUERIES], sum[SERIAL_QUERIES];
  for (uint l = 0; l < LANES; l++) above[l] = peak[l];
  for (uint j = 0; j < keys; j++) {
    for (uint l = 0; l < LANES; l++) above[l] = max(above[l], scores[j * LANES + l]);
  }
  for (uint l = 0; l < LANES; l++) {
    shrink[l] = exp(peak[l] - pivot(above[l]));
    sum[l] = total[l] * shrink[l];
    peak[l] = above[l];
    above[l] = pivot(above[l]);
  }
  for (uint j = 0; j < keys; j++) {
    for (uint l = 0; l < LANES; l++) {
      const float weight = exp(scores[j * LANES + l] - above[l]);
      scores[j * LANES + l] = weight;
      sum[l] += weight;
    }
  }
  for (uint l = 0; l < LANES; l++) total[l] = sum[l];
}

template <typename T, typename KV>
kernel void attention_serial(
    device const T* query [[buffer(0)]], device const KV* key [[buffer(1)]],
    device const KV* value [[buffer(2)]], device const float* mask [[buffer(3)]],
    device const int* lengths [[buffer(4)]], device T* out [[buffer(5)]],
    constant Attention& a [[buffer(6)]], uint2 at [[thread_position_in_grid]]) {
  const uint i0 = at.x * LANES, b = at.y / a.heads, h = at.y % a.heads;
  const uint queries = min(LANES, a.queries - i0);
  const uint depth = depth_of(a), value_depth = value_depth_of(a);
  const uint width = padded(value_depth);
  float q[SERIAL_DEPTH * SERIAL_QUERIES], sums[SERIAL_DEPTH * SERIAL_QUERIES];
  float rows[SERIAL_KEYS * SERIAL_DEPTH], scores[SERIAL_KEYS * SERIAL_QUERIES];
  float peak[SERIAL_QUERIES], total[SERIAL_QUERIES], shrink[SERIAL_QUERIES];
  for (uint l = 0; l < LANES; l++) {
    device const T* from = query + row_at(a.query, b, h, i0 + min(l, queries - 1));
    for (uint d = 0; d < depth; d++) q[d * LANES + l] = float(from[d]) * a.scale;
    for (uint d = depth; d < padded(depth); d++) q[d * LANES + l] = 0.0f;
    peak[l] = -INFINITY;
    total[l] = 0.0f;
  }
  for (uint n = 0; n < width * LANES; n++) sums[n] = 0.0f;

  const uint valid = valid_keys(a, lengths, b);
  const Seen low = seen_by(a, valid, i0), high = seen_by(a, valid, i0 + queries - 1);
  // Blocks begin at the same keys for every query: results do not depend on its neighbours.
  for (int j0 = low.first / SERIAL_KEYS * SERIAL_KEYS; j0 < high.last; j0 += SERIAL_KEYS) {
    const uint keys = min(int(SERIAL_KEYS), high.last - j0);
    pack(key + row_at(a.key, b, h / a.group, j0), a.key.row, keys, depth, rows);
    for (uint n = 0; n < padded(keys) * LANES; n++) scores[n] = 0.0f;
    for (uint j = 0; j < keys; j += TILE_ROWS) {
      multiply_tile(rows + j * padded(depth), padded(depth), 1, q, padded(depth),
                    scores + j * LANES);
    }
    if (CAPPED) {
      for (uint n = 0; n < keys * LANES; n++) scores[n] = bent(a, scores[n]);
    }
    const bool all_seen = j0 >= high.first && j0 + int(SERIAL_KEYS) <= low.last;
    if (a.has_mask || !all_seen) {
      hide(a, mask, row_at(a.mask, b, h, i0), valid, i0, queries, j0, keys, scores);
    }
    exponentiate(padded(keys), scores, peak, total, shrink);
    pack(value + row_at(a.value, b, h / a.group, j0), a.value.row, keys, value_depth, rows);
    for (uint d = 0; d < width; d++) {
#pragma nounroll
      for (uint l = 0; l < LANES; l++) sums[d * LANES + l] *= shrink[l];
    }
    for (uint d = 0; d < width; d += TILE_ROWS) {
      multiply_tile(rows + d, 1, width, scores, padded(keys), sums + d * LANES);
    }
  }
  device T* o = out + (long(at.y) * a.queries + i0) * value_depth;
  for (uint l = 0; l < queries; l++) {
    for (uint d = 0; d < value_depth; d++) {
      o[l * value_depth + d] = T(divided(sums[d * LANES + l], total[l]));
    }
  }
}

// ---- decode_serial: a thread a chunk of keys for all queries of the heads that share them ----
//
// Keys and values are read once, as they lie in the cache, and one after the other: several rows at
// a time would halve the speed at which a processor fetches them. Chunks have a fixed length, so
// results do not depend on how many threads there are; attention_merge puts them together.

constant constexpr uint DECODE_CHUNK = 256;  // keys
constant constexpr uint DECODE_ROWS = 8;     // queries at a time
constant constexpr uint DECODE_KEYS = 8;     // keys whose scores are summed together
constant constexpr uint LINE = 16;           // floats of the widest vector register
constant constexpr uint MAX_LINES = 2 * DECODE_KEYS;

// Keys of whole lines are used where they are; others are copied, with zeros at their end.
constant bool WHOLE_LINES = DEPTH != 0 && DEPTH % LINE == 0;

inline uint lined(uint n) { return (n + LINE - 1) / LINE * LINE; }

// A row as floats, zeros up to a whole number of lines.
template <typename KV>
inline void load_row(device const KV* from, uint depth, thread float* to) {
  for (uint d = 0; d < depth; d++) to[d] = float(from[d]);
  for (uint d = depth; d < lined(depth); d++) to[d] = 0.0f;
}

// Which of a group's queries stands in a row: all of the first head, then of the next.
struct Row {
  uint head, query;
};

inline Row row_of(constant Attention& a, uint kv_head, uint row) {
  return {kv_head * a.group + row / a.queries, row % a.queries};
}

// Products of a key with ROWS queries, not yet summed: lines[row][l] is the sum over those features
// n for which n % LINE is l.
template <uint ROWS, typename K>
inline void multiply_lines(K k, thread const float* q, uint width, thread float* lines) {
#pragma nounroll
  for (uint l = 0; l < LINE; l++) {
    float sum[ROWS] = {0.0f};
    for (uint n = l; n < width + l; n += LINE) {
      const float x = float(k[n]);
      for (uint r = 0; r < ROWS; r++) sum[r] = fma(x, q[r * width + n], sum[r]);
    }
    for (uint r = 0; r < ROWS; r++) lines[r * LINE + l] = sum[r];
  }
}

// The first and the second half of each of `count` rows, added.
template <uint WIDTH>
inline void add_halves(thread const float* rows, uint count, thread float* sums) {
  for (uint i = 0; i < count; i++) {
#pragma nounroll
    for (uint l = 0; l < WIDTH / 2; l++) {
      sums[i * WIDTH / 2 + l] = rows[i * WIDTH + l] + rows[i * WIDTH + WIDTH / 2 + l];
    }
  }
}

// Sums of lines.
inline void sum_lines(thread const float* lines, uint count, thread float* sums) {
  float halves[MAX_LINES * LINE / 2], quarters[MAX_LINES * LINE / 4], pairs[MAX_LINES * 2];
  add_halves<LINE>(lines, count, halves);
  add_halves<LINE / 2>(halves, count, quarters);
  add_halves<LINE / 4>(quarters, count, pairs);
#pragma nounroll
  for (uint i = 0; i < count; i++) sums[i] = pairs[2 * i] + pairs[2 * i + 1];
}

// Scores of DECODE_KEYS keys; beyond `last` the last one again.
template <uint ROWS, typename K>
inline void score_rows(K k, long stride, uint last, thread const float* q, uint width,
                       thread float* scores) {
  float lines[DECODE_KEYS * ROWS * LINE], sums[DECODE_KEYS * ROWS];
  for (uint j = 0; j < DECODE_KEYS; j++) {
    multiply_lines<ROWS>(k + min(j, last) * stride, q, width, lines + j * ROWS * LINE);
  }
  sum_lines(lines, DECODE_KEYS * ROWS, sums);
  for (uint r = 0; r < ROWS; r++) {
    for (uint j = 0; j < DECODE_KEYS; j++) scores[r * DECODE_CHUNK + j] = sums[j * ROWS + r];
  }
}

template <typename K>
inline void score_all_rows(K k, long stride, uint last, thread const float* q, uint width,
                           uint rows, thread float* scores) {
  for (uint r = 0; r + 2 <= rows; r += 2) {
    score_rows<2>(k, stride, last, q + r * width, width, scores + r * DECODE_CHUNK);
  }
  if (rows % 2) {
    const uint r = rows - 1;
    score_rows<1>(k, stride, last, q + r * width, width, scores + r * DECODE_CHUNK);
  }
}

template <typename KV>
inline void score_keys(device const KV* key, long stride, uint keys, uint depth,
                       thread const float* q, uint rows, thread float* scores) {
  float k[DECODE_KEYS * SERIAL_DEPTH];
  const uint width = lined(depth);
  for (uint j0 = 0; j0 < keys; j0 += DECODE_KEYS) {
    const uint count = min(DECODE_KEYS, keys - j0);
    device const KV* from = key + j0 * stride;
    if (WHOLE_LINES) {
      score_all_rows(from, stride, count - 1, q, width, rows, scores + j0);
    } else {
      for (uint j = 0; j < count; j++) load_row(from + j * stride, depth, k + j * width);
      score_all_rows(&k[0], width, count - 1, q, width, rows, scores + j0);
    }
  }
}

// Scores of one query become weights, zero up to a whole line; gives their peak and their total.
inline float2 weigh(thread float* scores, uint keys) {
  float line[LINE];
  const uint width = lined(keys);
  for (uint j = keys; j < width; j++) scores[j] = -INFINITY;
  for (uint l = 0; l < LINE; l++) line[l] = -INFINITY;
  for (uint j = 0; j < width; j += LINE) {
#pragma nounroll
    for (uint l = 0; l < LINE; l++) line[l] = max(line[l], scores[j + l]);
  }
  float peak = -INFINITY;
  for (uint l = 0; l < LINE; l++) peak = max(peak, line[l]);
  const float base = pivot(peak);
  for (uint j = 0; j < width; j++) scores[j] = exp(scores[j] - base);
  for (uint l = 0; l < LINE; l++) line[l] = 0.0f;
  for (uint j = 0; j < width; j += LINE) {
#pragma nounroll
    for (uint l = 0; l < LINE; l++) line[l] += scores[j + l];
  }
  float total;
  sum_lines(line, 1, &total);
  return float2(peak, total);
}

// Adds a value to the sums of ROWS queries, each with its weight.
template <uint ROWS, typename KV>
inline void add_value(device const KV* v, uint depth, uint width, thread const float* weights,
                      thread float* sums) {
  float weight[ROWS];
  for (uint r = 0; r < ROWS; r++) weight[r] = weights[r * DECODE_CHUNK];
#pragma nounroll
  for (uint d = 0; d < depth; d++) {
    const float x = float(v[d]);
    for (uint r = 0; r < ROWS; r++) sums[r * width + d] = fma(weight[r], x, sums[r * width + d]);
  }
}

template <typename KV>
inline void sum_values(device const KV* value, long stride, uint keys, uint depth,
                       thread const float* weights, uint rows, thread float* sums) {
  const uint width = lined(depth);
  for (uint j = 0; j < keys; j++) {
    device const KV* v = value + j * stride;
    for (uint r = 0; r + 2 <= rows; r += 2) {
      add_value<2>(v, depth, width, weights + r * DECODE_CHUNK + j, sums + r * width);
    }
    if (rows % 2) {
      const uint r = rows - 1;
      add_value<1>(v, depth, width, weights + r * DECODE_CHUNK + j, sums + r * width);
    }
  }
}

// A chunk's share of a result, or the result where there is no other chunk.
template <typename T>
inline void store_share(constant Attention& a, float2 mark, thread const float* sums, ulong place,
                        device T* out, device float* shares, device float2* marks) {
  const uint depth = value_depth_of(a);
  if (a.chunks == 1) {
    for (uint d = 0; d < depth; d++) out[place * depth + d] = T(divided(sums[d], mark.y));
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
    constant Attention& a [[buffer(6)]], device float* shares [[buffer(7)]],
    device float2* marks [[buffer(8)]], uint2 at [[thread_position_in_grid]]) {
  const uint kv_heads = a.heads / a.group, b = at.y / kv_heads, kv_head = at.y % kv_heads;
  const uint all_rows = a.group * a.queries, valid = valid_keys(a, lengths, b);
  const uint depth = depth_of(a), value_depth = value_depth_of(a), width = lined(value_depth);
  const uint start = at.x * DECODE_CHUNK;
  const uint end = max(start, min(start + DECODE_CHUNK, valid));
  float q[DECODE_ROWS * SERIAL_DEPTH], sums[DECODE_ROWS * SERIAL_DEPTH];
  float scores[DECODE_ROWS * DECODE_CHUNK];
  float2 mark[DECODE_ROWS];
  for (uint r0 = 0; r0 < all_rows; r0 += DECODE_ROWS) {
    const uint rows = min(DECODE_ROWS, all_rows - r0);
    // The chunk's keys that any of these queries sees.
    uint first = end, last = start;
    for (uint r = 0; r < rows; r++) {
      const Seen seen = seen_by(a, valid, row_of(a, kv_head, r0 + r).query);
      first = min(first, max(start, uint(seen.first)));
      last = max(last, min(end, uint(seen.last)));
    }
    const uint keys = max(first, last) - first;
    for (uint r = 0; r < rows; r++) {
      const Row row = row_of(a, kv_head, r0 + r);
      load_row(query + row_at(a.query, b, row.head, row.query), depth, q + r * lined(depth));
      for (uint d = 0; d < width; d++) sums[r * width + d] = 0.0f;
    }
    score_keys(key + row_at(a.key, b, kv_head, first), a.key.row, keys, depth, q, rows,
               scores);
    for (uint r = 0; r < rows; r++) {
      const Row row = row_of(a, kv_head, r0 + r);
      const Seen seen = seen_by(a, valid, row.query);
      const long mask_row = row_at(a.mask, b, row.head, row.query);
      thread float* score = scores + r * DECODE_CHUNK;
      for (uint j = 0; j < keys; j++) {
        const int key_at = first + j;
        const bool visible = key_at >= seen.first && key_at < seen.last;
        const float added = visible ? mask_at(a, mask, mask_row, key_at) : 0.0f;
        score[j] = visible ? scored(a, score[j], added) : -INFINITY;
      }
      mark[r] = weigh(score, keys);
    }
    sum_values(value + row_at(a.value, b, kv_head, first), a.value.row, keys, value_depth,
               scores, rows, sums);
    for (uint r = 0; r < rows; r++) {
      const Row row = row_of(a, kv_head, r0 + r);
      const ulong place = share_at(a, b, row.head, row.query, at.x);
      store_share(a, mark[r], sums + r * width, place, out, shares, marks);
    }
  }
}

