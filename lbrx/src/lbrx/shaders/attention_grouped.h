// Attention of a few queries to a long cache, on GPUs: the heads that share keys are the rows of
// simdgroup matrices, so that keys and values are read once, 16 bytes at a time.
#pragma once
#include "attention.h"

constant constexpr uint GROUPED_ROWS = 8;  // pairs of a query and a head
constant constexpr uint GROUPED_CHUNKS = 128;  // at most
// Weights may be this power of e before sums are scaled down: multiplying all sums is rare then.
constant constexpr float GROUPED_SLACK = 8.0f;

template <uint D>
struct Grouped {
  static constant constexpr uint SIMDGROUPS = D > 128 ? 2 : 4;
  static constant constexpr uint THREADS = SIMDGROUPS * 32;
  static constant constexpr uint KEYS = D > 128 ? 8 : 16;  // of a tile
  static constant constexpr uint WIDTH = D + 8;               // rows start in different banks
  // In halves: a tile, later the sums of a simdgroup.
  static constant constexpr uint TILE = KEYS * WIDTH > 16 * D ? KEYS * WIDTH : 16 * D;
};

// The head and the query of a row; rows beyond the last repeat it.
struct Member {
  uint head, query;
};

inline Member member_of(constant Attention& a, uint kv_head, uint row) {
  const uint one = min(row, a.group * a.queries - 1);
  return {kv_head * a.group + one % a.group, one / a.group};
}

// How keys and values are stored: a lane fetches its pieces of a tile into registers while another
// tile is computed, and places them in threadgroup memory as halves. `feature` says which feature
// of a row is in column d there.
template <typename KV, uint D> struct Source;

template <uint D>
struct Source<half, D> {
  using Word = uint4;
  static constant constexpr uint ELEMENTS = 8;  // of a word
  static constant constexpr uint ROW = D / 8, PIECES = Grouped<D>::KEYS * ROW / 32;
  static constant constexpr uint RAW = 1;
  static uint feature(uint d) { return d; }
  static void place(thread const uint4 (&pieces)[PIECES], threadgroup half* tile, threadgroup uint*,
                    uint, uint lane) {
#pragma unroll
    for (uint n = 0; n < PIECES; n++) {
      const uint at = n * 32 + lane;
      threadgroup half* to = tile + at / ROW * Grouped<D>::WIDTH + at % ROW * 8;
      *reinterpret_cast<threadgroup uint4*>(to) = pieces[n];
    }
  }
};

// Blocks of 34 bytes: every second one starts in the middle of a word. A code is the mantissa of a
// half, less 1152, and pairs are the first and third, or second and fourth of a word.
template <uint D>
struct Source<uchar, D> {
  using Word = uint;
  static constant constexpr uint ELEMENTS = 4;
  static constant constexpr uint BLOCKS = D / BLOCK, ROW = BLOCKS * BLOCK_BYTES / 4;
  static constant constexpr uint RAW = Grouped<D>::KEYS * ROW, PIECES = (RAW + 31) / 32;
  static uint feature(uint d) { return (d & ~3u) | (d & 1) << 1 | (d >> 1 & 1); }
  static void place(thread const uint (&pieces)[PIECES], threadgroup half* tile,
                    threadgroup uint* raw, uint magic, uint lane) {
#pragma unroll
    for (uint n = 0; n < PIECES; n++)
      if (RAW % 32 == 0 || n * 32 + lane < RAW) raw[n * 32 + lane] = pieces[n];
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint n = 0; n < Grouped<D>::KEYS * BLOCKS; n += 32) {
      const uint at = n + lane, row = at / BLOCKS, block = at % BLOCKS;
      if (at >= Grouped<D>::KEYS * BLOCKS) break;
      const uint start = row * ROW + block * BLOCK_BYTES / 4, odd = block % 2;
      threadgroup uint4* to =
          reinterpret_cast<threadgroup uint4*>(tile + row * Grouped<D>::WIDTH + block * BLOCK);
      uint word = raw[start];
      const half2 scale = as_type<half>(ushort(word >> (16 * odd)));
#pragma unroll
      for (uint i = 0; i < 4; i++) {
        uint4 made;
#pragma unroll
        for (uint half_of = 0; half_of < 2; half_of++) {
          const uint next = raw[start + 2 * i + half_of + 1];
          const uint codes = uint((ulong(next) << 32 | word) >> (16 + 16 * odd));
          word = next;
          const half2 even = as_type<half2>((codes & 0x00ff00ffu) ^ magic) - half2(1152);
          const half2 other = as_type<half2>((codes >> 8 & 0x00ff00ffu) ^ magic) - half2(1152);
          made[2 * half_of] = as_type<uint>(even * scale);
          made[2 * half_of + 1] = as_type<uint>(other * scale);
        }
        to[i] = made;
      }
    }
  }
};

template <typename S, uint KEYS>
inline void fetch(device const typename S::Word* rows, long stride, int valid, uint lane,
                  thread typename S::Word (&pieces)[S::PIECES]) {
  if (32 % S::ROW == 0) {  // every step is as many rows further
    constexpr uint STEP = 32 % S::ROW == 0 ? 32 / S::ROW : 1;
    const int own = int(lane / S::ROW);
    device const typename S::Word* from = rows + own * stride + lane % S::ROW;
    const long step = STEP * stride;
#pragma unroll
    for (uint n = 0; n < S::PIECES; n++) {
      pieces[n] = own + int(n * STEP) < valid ? *from : 0;
      from += step;
    }
    return;
  }
#pragma unroll
  for (uint n = 0; n < S::PIECES; n++) {
    const uint at = n * 32 + lane, row = at / S::ROW;
    pieces[n] = int(row) < valid && row < KEYS ? rows[row * stride + at % S::ROW] : 0;
  }
}

struct Progress {
  float peak, total;
};

// Weights of a tile's keys for one row, by four lanes with a quarter of the keys each. Returns what
// the sums so far have to be multiplied by.
template <uint KEYS, bool EXACT>
inline float weigh(thread Progress& state, Seen seen, int j0, uint part, constant Attention& a,
                   device const float* mask, threadgroup const float* scores,
                   threadgroup half* weights, threadgroup half* rests) {
  float score[KEYS / 4];
  float peak = -INFINITY;
#pragma unroll
  for (uint n = 0; n < KEYS / 4; n++) {
    const uint j = part * (KEYS / 4) + n;
    const int at = j0 + int(j);
    const bool visible = at >= seen.first && at < seen.last;
    const float added = visible && mask ? mask[at * a.mask_key] : 0.0f;
    score[n] = visible ? scored(a, scores[j], added) : -INFINITY;
    peak = max(peak, score[n]);
  }
  peak = max(peak, simd_shuffle_xor(peak, 1));
  peak = max(peak, simd_shuffle_xor(peak, 2));
  float shrink = 1.0f;
  if (peak > state.peak + GROUPED_SLACK) {
    if (state.peak != -INFINITY) shrink = exp(state.peak - peak);
    state.peak = peak;
  }
  float sum = 0.0f;
#pragma unroll
  for (uint n = 0; n < KEYS / 4; n++) {
    const float weight = exp(score[n] - pivot(state.peak));
    const float finite = isnan(weight) ? 0.0f : weight;
    weights[part * (KEYS / 4) + n] = half(finite);
    if (EXACT) rests[part * (KEYS / 4) + n] = half(finite - float(half(finite)));
    sum += weight;
  }
  state.total = fma(state.total, shrink, sum);
  return isnan(shrink) ? 0.0f : shrink;
}

// The limit is above the number of threads: it leaves registers for several threadgroups.
template <typename T, typename KV, uint D>
[[max_total_threads_per_threadgroup(256)]]
kernel void attention_grouped(
    device const T* query [[buffer(0)]],
    device const typename Source<KV, D>::Word* key [[buffer(1)]],
    device const typename Source<KV, D>::Word* value [[buffer(2)]], device const float* mask [[buffer(3)]],
    device const int* lengths [[buffer(4)]], device T* out [[buffer(5)]],
    constant Attention& a [[buffer(6)]], device float* shares [[buffer(7)]],
    device float2* marks [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  using G = Grouped<D>;
  using S = Source<KV, D>;
  constexpr bool EXACT = sizeof(T) > 2;  // queries and weights as sums of two halves
  constexpr uint KEYS = G::KEYS, SIMDGROUPS = G::SIMDGROUPS;
  threadgroup uint4 tiles[SIMDGROUPS][G::TILE / 8];
  threadgroup float all_scores[SIMDGROUPS][GROUPED_ROWS * KEYS];
  threadgroup half all_weights[SIMDGROUPS][2][GROUPED_ROWS * KEYS];
  threadgroup float all_factors[SIMDGROUPS][GROUPED_ROWS];
  threadgroup float2 all_marks[SIMDGROUPS][GROUPED_ROWS];
  threadgroup uint all_raw[SIMDGROUPS][S::RAW];
  threadgroup half* tile = reinterpret_cast<threadgroup half*>(tiles[simdgroup]);
  threadgroup float* scores = all_scores[simdgroup];
  threadgroup half* weights = all_weights[simdgroup][0];
  threadgroup half* rests = all_weights[simdgroup][1];
  threadgroup float* factors = all_factors[simdgroup];
  threadgroup uint* raw = all_raw[simdgroup];

  const uint kv_heads = a.heads / a.group, b = group.z / kv_heads, kv_head = group.z % kv_heads;
  const uint first_row = group.y * GROUPED_ROWS;
  const uint rows = min(GROUPED_ROWS, a.group * a.queries - first_row);
  const uint row = lane / 4, part = lane % 4;
  const Member own = member_of(a, kv_head, first_row + row);
  const uint valid = valid_keys(a, lengths, b);
  const Seen seen = seen_by(a, valid, own.query);
  device const float* mask_row =
      a.has_mask ? mask + row_at(a.mask, b, own.head, own.query) : nullptr;

  // The queries of the rows, through this simdgroup's tile.
  simdgroup_half8x8 q[D / 8], q_rest[D / 8];
#pragma unroll
  for (uint step = 0; step <= (EXACT ? 1u : 0u); step++) {
    for (uint n = lane; n < GROUPED_ROWS * D; n += 32) {
      const Member each = member_of(a, kv_head, first_row + n / D);
      const float x = query[row_at(a.query, b, each.head, each.query) + S::feature(n % D)];
      tile[n / D * G::WIDTH + n % D] = half(step ? x - float(half(x)) : x);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    // Transposed: the products are keys times rows.
#pragma unroll
    for (uint d = 0; d < D / 8; d++)
      simdgroup_load(step ? q_rest[d] : q[d], tile + d * 8, G::WIDTH, ulong2(0, 0), true);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  simdgroup_float8x8 sums[D / 8];
#pragma unroll
  for (uint d = 0; d < D / 8; d++) sums[d] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  Progress state = {-INFINITY, 0.0f};

  // This threadgroup's part of the keys that any row sees.
  const int from = seen_by(a, valid, member_of(a, kv_head, first_row).query).first;
  const int to = seen_by(a, valid, member_of(a, kv_head, first_row + rows - 1).query).last;
  const int step = SIMDGROUPS * KEYS;
  const uint magic = 0x64806480u;
  const int split = (max(to - from, 0) + int(a.chunks) * step - 1) / (int(a.chunks) * step) * step;
  const int first = from + int(group.x) * split, last = min(to, first + split);
  device const typename S::Word* keys = key + row_at(a.key, b, kv_head, 0) / S::ELEMENTS;
  device const typename S::Word* values = value + row_at(a.value, b, kv_head, 0) / S::ELEMENTS;
  const long key_row = a.key.row / S::ELEMENTS, value_row = a.value.row / S::ELEMENTS;
  typename S::Word key_pieces[S::PIECES], value_pieces[S::PIECES];
  int j0 = first + int(simdgroup * KEYS);
  fetch<S, KEYS>(keys + j0 * key_row, key_row, last - j0, lane, key_pieces);
  for (; j0 < last; j0 += step) {
    const int next = j0 + step;
    S::place(key_pieces, tile, raw, magic, lane);
    fetch<S, KEYS>(values + j0 * value_row, value_row, last - j0, lane, value_pieces);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 products[KEYS / 8];
#pragma unroll
    for (uint j = 0; j < KEYS / 8; j++)
      products[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
#pragma unroll
    for (uint d = 0; d < D / 8; d++) {
#pragma unroll
      for (uint j = 0; j < KEYS / 8; j++) {
        simdgroup_half8x8 k;
        simdgroup_load(k, tile + j * 8 * G::WIDTH + d * 8, G::WIDTH);
        simdgroup_multiply_accumulate(products[j], k, q[d], products[j]);
        if (EXACT) simdgroup_multiply_accumulate(products[j], k, q_rest[d], products[j]);
      }
    }
#pragma unroll
    for (uint j = 0; j < KEYS / 8; j++)
      simdgroup_store(products[j], scores + j * 8, KEYS, ulong2(0, 0), true);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    S::place(value_pieces, tile, raw, magic, lane);
    fetch<S, KEYS>(keys + next * key_row, key_row, last - next, lane, key_pieces);
    const float shrink = weigh<KEYS, EXACT>(state, seen, j0, part, a, mask_row, scores + row * KEYS,
                                            weights + row * KEYS, rests + row * KEYS);
    if (part == 0) factors[row] = shrink;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (simd_any(shrink != 1.0f)) {
      // Lanes know the rows of elements in memory only.
#pragma unroll
      for (uint d = 0; d < D / 8; d++) {
        simdgroup_store(sums[d], scores, 8);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        scores[lane] *= factors[lane / 8];
        scores[lane + 32] *= factors[lane / 8 + 4];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_load(sums[d], scores, 8);
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
#pragma unroll
    for (uint j = 0; j < KEYS; j += 8) {
      simdgroup_half8x8 w, w_rest;
      simdgroup_load(w, weights + j, KEYS);
      if (EXACT) simdgroup_load(w_rest, rests + j, KEYS);
#pragma unroll
      for (uint d = 0; d < D / 8; d++) {
        simdgroup_half8x8 v;
        simdgroup_load(v, tile + j * G::WIDTH + d * 8, G::WIDTH);
        simdgroup_multiply_accumulate(sums[d], w, v, sums[d]);
        if (EXACT) simdgroup_multiply_accumulate(sums[d], w_rest, v, sums[d]);
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }

  // Sums of the simdgroups, in the place of their tiles.
  threadgroup float* own_sums = reinterpret_cast<threadgroup float*>(tile);
#pragma unroll
  for (uint d = 0; d < D / 8; d++) simdgroup_store(sums[d], own_sums + d * 8, D);
  state.total += simd_shuffle_xor(state.total, 1);
  state.total += simd_shuffle_xor(state.total, 2);
  if (part == 0) all_marks[simdgroup][row] = float2(state.peak, state.total);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint n = thread_index; n < rows * D; n += G::THREADS) {
    const uint r = n / D, d = n % D;
    float2 mark = float2(-INFINITY, 0.0f);
    for (uint s = 0; s < SIMDGROUPS; s++) mark.x = max(mark.x, all_marks[s][r].x);
    float sum = 0.0f;
    for (uint s = 0; s < SIMDGROUPS; s++) {
      const float weight = exp(all_marks[s][r].x - pivot(mark.x));
      mark.y = fma(all_marks[s][r].y, weight, mark.y);
      sum = fma(reinterpret_cast<threadgroup const float*>(tiles[s])[r * D + d], weight, sum);
    }
    const Member each = member_of(a, kv_head, first_row + r);
    const ulong place = share_at(a, b, each.head, each.query, group.x);
    if (a.chunks == 1) {
      out[place * D + S::feature(d)] = T(divided(sum, mark.y));
    } else {
      shares[place * D + S::feature(d)] = sum;
      if (d == 0) marks[place] = mark;
    }
  }
}

// One threadgroup per row of the result, one thread per feature.
template <typename T>
kernel void attention_join(device const float* shares [[buffer(0)]],
                           device const float2* marks [[buffer(1)]], device T* out [[buffer(2)]],
                           constant Attention& a [[buffer(3)]],
                           uint row [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float weights[GROUPED_CHUNKS];
  const uint chunks = a.chunks, depth = a.value_depth;
  const ulong start = ulong(row) * chunks;
  // Every simdgroup finds the maximum and the total, a lane for each chunk.
  float2 own[GROUPED_CHUNKS / 32];
  float peak = -INFINITY, total = 0.0f;
#pragma unroll
  for (uint n = 0; n < GROUPED_CHUNKS / 32; n++) {
    const uint c = n * 32 + lane;
    own[n] = c < chunks ? marks[start + c] : float2(-INFINITY, 0.0f);
    peak = max(peak, own[n].x);
  }
  peak = simd_max(peak);
#pragma unroll
  for (uint n = 0; n < GROUPED_CHUNKS / 32; n++) {
    const float weight = exp(own[n].x - pivot(peak));
    if (thread_index < 32) weights[n * 32 + lane] = weight;
    total = fma(own[n].y, weight, total);
  }
  total = simd_sum(total);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint d = thread_index; d < depth; d += threads) {
    float sum = 0.0f;
#pragma unroll 16
    for (uint c = 0; c < chunks; c++) sum = fma(shares[(start + c) * depth + d], weights[c], sum);
    out[ulong(row) * depth + d] = T(divided(sum, total));
  }
}
