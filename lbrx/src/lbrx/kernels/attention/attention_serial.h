// Attention on CPUs: each thread executes long loops of vector instructions.
#pragma once
#include "attention.h"
#include "records/attention_serial.h"
#include "wide.h"

inline Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }  // b where a is NaN

// 2^x for x <= 0; results that would be denormal are 0.
inline Lanes power_of_two(Lanes x) {
  const float shift = 0x1.8p23f + 127;  // rounds to an integer in the low bits of the mantissa
  const Lanes whole = x + shift, rest = x - (whole - shift);
  Lanes sum = 0x1.417a34p-13f;
  sum = fused<LINE>(sum, rest, 0x1.5f0f74p-10f);
  sum = fused<LINE>(sum, rest, 0x1.3b2ddap-7f);
  sum = fused<LINE>(sum, rest, 0x1.c6af72p-5f);
  sum = fused<LINE>(sum, rest, 0x1.ebfbdcp-3f);
  sum = fused<LINE>(sum, rest, 0x1.62e430p-1f);
  sum = fused<LINE>(sum, rest, 1.0f);
  const Lanes scale = __builtin_bit_cast(Lanes, bits<LINE>(whole) << 23);
  return x < -126.0f ? 0.0f : sum * scale;
}

inline uint lined(uint n) { return (n + LINE - 1) / LINE * LINE; }

// The values of a block of quantized numbers.
inline Lanes line_at(device const uchar* row, uint line) {
  device const uchar* block = row + line / 2 * BLOCK_BYTES;
  device const Line<char>* codes = reinterpret_cast<device const Line<char>*>(block + 2);
  return __builtin_convertvector(codes[line % 2], Lanes) * scale_of(block);
}
inline Lanes line_at(thread const float* row, uint line) {
  return reinterpret_cast<thread const Lanes*>(row)[line];
}

// A row as floats, zero-padded to a multiple of a line.
template <typename KV>
inline void load_row(device const KV* from, uint depth, thread float* to) {
  for (uint d = 0; d < depth; d++) to[d] = float(from[d]);
  for (uint d = depth; d < lined(depth); d++) to[d] = 0.0f;
}

inline void load_row(device const uchar* from, uint depth, thread float* to) {
  thread Lanes* lines = reinterpret_cast<thread Lanes*>(to);
  for (uint n = 0; n < depth / LINE; n++) lines[n] = line_at(from, n);
}

// ---- serial: one thread per block of queries, which are the lanes of vector registers ----
//
// Scores and results are kept transposed, (keys, queries) and (features, queries): then every step
// of the online softmax is the same operation on all queries, and nothing is summed across a
// register. Keys and values are broadcast as scalars. Scores are exponents of two.

constant constexpr uint SERIAL_DEPTH = 256;  // the most features of any head
constant constexpr uint SERIAL_KEYS = 64;
constant constexpr uint MOST_VECTORS = 4;
constant constexpr uint TILE = 4;  // rows
constant constexpr float LOG2_E = 1.44269504f;

// Rows as contiguous floats; the last tile is zero-padded.
template <typename KV>
inline void pack(device const KV* rows, long stride, uint count, uint depth, thread float* to) {
  const uint width = lined(depth);
  for (uint j = 0; j < count; j++) load_row(rows + j * stride, depth, to + j * width);
  for (uint n = count * width; n < (count + TILE - 1) / TILE * TILE * width; n++) to[n] = 0.0f;
}

// sum[r][v] += sum over k of a(r, k) * b[k][v]: what is loaded of b serves all rows.
template <uint V>
inline void multiply_tile(thread const float* a, uint a_row, uint a_step, thread const Lanes* b,
                          uint count, thread Lanes (&sum)[TILE][V]) {
#pragma nounroll
  for (uint k = 0; k < count; k++) {
#pragma unroll
    for (uint r = 0; r < TILE; r++) {
      const Lanes x = a[r * a_row + k * a_step];
#pragma unroll
      for (uint v = 0; v < V; v++) sum[r][v] = fused<LINE>(x, b[k * VECTORS + v], sum[r][v]);
    }
  }
}

// Scores of a tile of keys with the last `count` vectors of queries.
template <uint V>
inline void score_tile(thread const float* keys, uint width, uint depth, thread const Lanes* q,
                       uint count, thread Lanes* scores) {
  if (V > 1 && count < V) {
    score_tile<V == 1 ? 1 : V - 1>(keys, width, depth, q, count, scores);
    return;
  }
  const uint v0 = VECTORS - V;
  Lanes sum[TILE][V];
#pragma unroll
  for (uint r = 0; r < TILE; r++) for (uint v = 0; v < V; v++) sum[r][v] = 0.0f;
  multiply_tile<V>(keys, width, 1, q + v0, depth, sum);
#pragma unroll
  for (uint r = 0; r < TILE; r++)
    for (uint v = 0; v < V; v++) scores[r * VECTORS + v0 + v] = sum[r][v];
}

// Adds weighted values to a tile of features of the last `count` vectors of queries.
template <uint V>
inline void add_tile(thread const float* values, uint width, uint keys,
                     thread const Lanes* weights, uint count, thread Lanes* sums) {
  if (V > 1 && count < V) {
    add_tile<V == 1 ? 1 : V - 1>(values, width, keys, weights, count, sums);
    return;
  }
  const uint v0 = VECTORS - V;
  Lanes sum[TILE][V];
#pragma unroll
  for (uint r = 0; r < TILE; r++)
    for (uint v = 0; v < V; v++) sum[r][v] = sums[r * VECTORS + v0 + v];
  multiply_tile<V>(values, 1, width, weights + v0, keys, sum);
#pragma unroll
  for (uint r = 0; r < TILE; r++)
    for (uint v = 0; v < V; v++) sums[r * VECTORS + v0 + v] = sum[r][v];
}

// A thread's queries, and the keys that each of them sees.
struct QueryBlock {
  uint b, h, first, count, valid;
  Ints<LINE> first_key[MOST_VECTORS], last_key[MOST_VECTORS];
};

// Queries, scaled, as (features, queries), and what they see.
template <typename T>
inline void load_queries(constant AttentionRecord& a, device const T* query, thread QueryBlock& block,
                         thread Lanes* q) {
  const uint depth = depth_of(a);
  const float factor = CAPPED ? a.scale : a.scale * LOG2_E;
#pragma nounroll
  for (uint v = 0; v < VECTORS; v++) {
    alignas(64) float rows[LINE * SERIAL_DEPTH];
    for (uint l = 0; l < LINE; l++) {
      const uint i = min(block.first + v * LINE + l, a.queries - 1);
      const Seen seen = seen_by(a, block.valid, i);
      block.first_key[v][l] = seen.first;
      block.last_key[v][l] = seen.last;
      load_row(query + row_at(a.query, block.b, block.h, i), depth, rows + l * lined(depth));
    }
#pragma nounroll
    for (uint d = 0; d < depth; d += LINE) {
      Lanes tile[LINE];
      for (uint l = 0; l < LINE; l++) {
        tile[l] = line_at((thread const float*)rows + l * lined(depth), d / LINE) * factor;
      }
      transpose(tile);
      for (uint i = 0; i < LINE; i++) q[(d + i) * VECTORS + v] = tile[i];
    }
  }
}

// Hide keys that a query must not see, and add the mask.
inline void hide(constant AttentionRecord& a, device const float* mask, thread const QueryBlock& block,
                 uint j0, uint keys, thread Lanes* scores) {
  if (a.has_mask) {
    for (uint l = 0; l < block.count; l++) {
      const long row = row_at(a.mask, block.b, block.h, block.first + l);
      for (uint j = 0; j < keys; j++) {
        scores[j * VECTORS + l / LINE][l % LINE] += mask[row + (j0 + j) * a.mask_key] * LOG2_E;
      }
    }
  }
  for (uint j = 0; j < keys; j++) {
    const int at = j0 + j;
#pragma unroll
    for (uint v = 0; v < VECTORS; v++) {
      const Ints<LINE> seen = at >= block.first_key[v] & at < block.last_key[v];
      scores[j * VECTORS + v] = seen ? scores[j * VECTORS + v] : -INFINITY;
    }
  }
}

// The online softmax of a block's queries.
struct OnlineSoftmax {
  Lanes peak[MOST_VECTORS], total[MOST_VECTORS];
};

// Turns scores into weights, and rescales earlier sums to the new maximum.
inline void exponentiate(uint keys, thread Lanes* scores, thread OnlineSoftmax& state, uint width,
                         thread Lanes* sums) {
#pragma nounroll
  for (uint v = 0; v < VECTORS; v++) {
    Lanes peak = state.peak[v];
    for (uint j = 0; j < keys; j++) peak = larger(scores[j * VECTORS + v], peak);
    const Lanes base = peak == -INFINITY ? 0.0f : peak;
    const Lanes shrink = power_of_two(state.peak[v] - base);
    Lanes total = state.total[v] * shrink;
    for (uint j = 0; j < keys; j++) {
      const Lanes weight = power_of_two(scores[j * VECTORS + v] - base);
      scores[j * VECTORS + v] = weight;
      total += weight;
    }
    if (__builtin_reduce_or(shrink != 1.0f)) {
      for (uint d = 0; d < width; d++) sums[d * VECTORS + v] *= shrink;
    }
    state.peak[v] = peak;
    state.total[v] = total;
  }
}

// How many vectors of queries see a key, or a later one, if each sees only what is before it.
inline uint seeing(constant AttentionRecord& a, thread const QueryBlock& block, int key) {
  const int own = int(block.valid) - int(a.queries) + int(block.first);
  return a.causal ? VECTORS - max(key - own, 0) / LINE : VECTORS;
}

// The results of all queries, (queries, features).
template <typename T>
inline void store_results(constant AttentionRecord& a, device const float* mask,
                          thread const QueryBlock& block, thread const OnlineSoftmax& state, uint depth,
                          thread const Lanes* sums, device T* out) {
#pragma nounroll
  for (uint v = 0; v < VECTORS; v++) {
    Lanes total = state.total[v];
    if (a.has_sinks) {
      const Lanes base = state.peak[v] == -INFINITY ? 0.0f : state.peak[v];
      const Lanes above = sink_of(a, mask, block.h) * LOG2_E - base, most = 127.0f;
      total += power_of_two(__builtin_elementwise_min(above, most));
    }
    total = total == 0.0f ? 1.0f : total;
#pragma nounroll
    for (uint d = 0; d < depth; d += LINE) {
      Lanes tile[LINE];
      for (uint i = 0; i < LINE; i++) tile[i] = sums[(d + i) * VECTORS + v] / total;
      transpose(tile);
      for (uint l = 0; l < min(LINE, block.count - min(block.count, v * LINE)); l++) {
        thread const float* from = (thread const float*)&tile[l];
        device T* to = out + (v * LINE + l) * depth + d;
        for (uint i = 0; i < min(LINE, depth - d); i++) to[i] = T(from[i]);
      }
    }
  }
}

template <typename T, typename KV>
kernel void attention_serial(
    device const T* query [[buffer(0)]], device const KV* key [[buffer(1)]],
    device const KV* value [[buffer(2)]], device const float* mask [[buffer(3)]],
    device const int* lengths [[buffer(4)]], device T* out [[buffer(5)]],
    constant AttentionRecord& a [[buffer(6)]], uint2 at [[thread_position_in_grid]]) {
  const uint lanes = VECTORS * LINE, blocks = (a.queries + lanes - 1) / lanes;
  const uint depth = depth_of(a), value_depth = value_depth_of(a);
  const uint width = lined(value_depth);
  QueryBlock block;
  block.b = at.x / a.heads;
  block.h = at.x % a.heads;
  block.first = (blocks - 1 - at.y) * lanes;  // blocks with most keys start first
  block.count = min(lanes, a.queries - block.first);
  block.valid = valid_keys(a, lengths, block.b);
  Lanes q[SERIAL_DEPTH * MOST_VECTORS], sums[SERIAL_DEPTH * MOST_VECTORS];
  Lanes scores[SERIAL_KEYS * MOST_VECTORS];
  alignas(64) float rows[SERIAL_KEYS * SERIAL_DEPTH];
  OnlineSoftmax state;
  load_queries(a, query, block, q);
  for (uint v = 0; v < VECTORS; v++) {
    state.peak[v] = -INFINITY;
    state.total[v] = 0.0f;
  }
  for (uint n = 0; n < width * VECTORS; n++) sums[n] = 0.0f;

  const Seen low = seen_by(a, block.valid, block.first);
  const Seen high = seen_by(a, block.valid, block.first + block.count - 1);
  // Blocks begin at the same keys for every query: results do not depend on its neighbours.
  for (int j0 = low.first / SERIAL_KEYS * SERIAL_KEYS; j0 < high.last; j0 += SERIAL_KEYS) {
    const uint keys = min(int(SERIAL_KEYS), high.last - j0);
    const bool all_seen = j0 >= high.first && j0 + int(SERIAL_KEYS) <= low.last;
    pack(key + row_at(a.key, block.b, block.h / a.group, j0), a.key.row, keys, depth, rows);
    for (uint j = 0; j < keys; j += TILE) {
      score_tile<MOST_VECTORS>(rows + j * lined(depth), lined(depth), depth, q,
                               seeing(a, block, j0 + j), scores + j * VECTORS);
    }
    if (CAPPED) {
      thread float* each = (thread float*)scores;
      for (uint n = 0; n < keys * lanes; n++) each[n] = bent(a, each[n]) * LOG2_E;
    }
    if (a.has_mask || !all_seen) hide(a, mask, block, j0, keys, scores);
    exponentiate(keys, scores, state, width, sums);
    pack(value + row_at(a.value, block.b, block.h / a.group, j0), a.value.row, keys, value_depth,
         rows);
    const uint step = all_seen ? SERIAL_KEYS : LINE;
    for (uint j = 0; j < keys; j += step) {
      for (uint d = 0; d < value_depth; d += TILE) {
        add_tile<MOST_VECTORS>(rows + j * width + d, width, min(step, keys - j),
                               scores + j * VECTORS, seeing(a, block, j0 + j), sums + d * VECTORS);
      }
    }
  }
  device T* o = out + (long(at.x) * a.queries + block.first) * value_depth;
  store_results(a, mask, block, state, value_depth, sums, o);
}
