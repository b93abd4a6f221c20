// Attention for many queries: simdgroups keep a block of queries, their sums and their scores as
// tiles, and go through blocks of keys and values in threadgroup memory.
#pragma once
#include "attention.h"
#include "records/attention_flash.h"
#include "tile.h"

// A threadgroup has GROUPS simdgroups with ROWS queries each; C is the type of what is multiplied.
// Rows in threadgroup memory are padded as in tile::Panel.
template <typename C_, uint D_, uint ROWS_, uint GROUPS_, uint KEYS_>
struct Flash {
  using C = C_;
  static constant constexpr uint D = D_, ROWS = ROWS_, GROUPS = GROUPS_, KEYS = KEYS_;
  static constant constexpr uint QUERIES = ROWS * GROUPS, THREADS = GROUPS * 32;
  static constant constexpr uint CHUNK = 16 / sizeof(C), WIDTH = D + CHUNK;
};

// ---- rows in threadgroup memory ----

// All threads copy `count` rows; those from `valid` on become zeros.
template <typename F, typename From>
struct Staging {
  using C = typename F::C;
  static void run(device const From* rows, long stride, int valid, uint count, threadgroup C* to,
                  uint thread_index) {
    for (uint n = thread_index; n < count * F::D; n += F::THREADS) {
      const uint row = n / F::D, d = n % F::D;
      to[row * F::WIDTH + d] = int(row) < valid ? C(feature(rows + row * stride, d)) : C(0);
    }
  }
};

template <typename F>
struct Staging<F, typename F::C> {
  using C = typename F::C;
  static void run(device const C* rows, long stride, int valid, uint count, threadgroup C* to,
                  uint thread_index) {
    constexpr uint CHUNKS = F::D / F::CHUNK, ALL = F::KEYS * CHUNKS;
#pragma unroll
    for (uint n = 0; n < ALL; n += F::THREADS) {
      const uint row = (n + thread_index) / CHUNKS, d = (n + thread_index) % CHUNKS * F::CHUNK;
      if (ALL % F::THREADS == 0 ? row >= count : n + thread_index >= ALL || row >= count) continue;
      threadgroup C* place = to + row * F::WIDTH + d;
      device const C* from = rows + row * stride + d;
      const uint inside = int(row) < valid ? F::CHUNK : 0;
      if (ALIGNED) tile::Copy<>::start(place, from, inside);
      else for (uint i = 0; i < F::CHUNK; i++) place[i] = inside ? from[i] : C(0);
    }
  }
};

template <typename F, typename From>
inline void stage(device const From* rows, long stride, int valid, uint count,
                  threadgroup typename F::C* to, uint thread_index) {
  Staging<F, From>::run(rows, stride, valid, count, to, thread_index);
}

// ---- the online softmax of a lane's rows, in powers of two ----

// What a threadgroup computes: queries from `i0` on of one head, and the keys that they see.
struct Task {
  uint b, h, kv_head;
  uint i0, queries;
  uint valid;
  int first, last;    // keys that some query sees
  int begun, hidden;  // keys from `begun` up to `hidden` are visible to all
};

inline Task task_of(constant AttentionRecord& a, device const int* lengths, uint head, uint block,
                    uint most) {
  Task task;
  task.b = head / a.heads, task.h = head % a.heads, task.kv_head = task.h / a.group;
  task.i0 = block * most, task.queries = min(most, a.queries - task.i0);
  task.valid = valid_keys(a, lengths, task.b);
  const Seen upper = seen_by(a, task.valid, task.i0);
  const Seen lower = seen_by(a, task.valid, task.i0 + task.queries - 1);
  task.first = upper.first, task.last = lower.last;
  task.begun = lower.first, task.hidden = upper.last;
  return task;
}

constant constexpr float LOG2E = 1.442695041f;
constant constexpr float MUCH = 8;  // by which a maximum must grow: weights are below 2^MUCH

// The score of a key that may be hidden; if `plain`, without the scale.
inline float masked(constant AttentionRecord& a, Seen seen, device const float* mask, int at,
                    float product, bool plain) {
  if (at < seen.first || at >= seen.last) return -INFINITY;
  if (plain) return product;
  return scored(a, product, MASKED ? mask[at * a.mask_key] : 0.0f) * LOG2E;
}


// `LINES` rows of a lane, eight apart, and of `BLOCKS` blocks of keys two neighbours each.
template <uint LINES, uint BLOCKS>
struct OnlineSoftmax {
  float peak[LINES], total[LINES];

  void clear() {
    for (uint i = 0; i < LINES; i++) peak[i] = -INFINITY, total[i] = 0.0f;
  }

  // From products to scores, scaled and masked, in powers of two. Returns what they still have to be
  // multiplied by. `row` and `key` are those of the lane's first ones.
  template <typename S>
  float score(thread S& scores, constant AttentionRecord& a, thread const Task& task,
              device const float* mask, uint row, int j0, int key) const {
    // The same arithmetic whether a block is hidden in part or not: bits do not depend on neighbours.
    const bool plain = !MASKED && !CAPPED && a.scale > 0.0f;
    if (plain && j0 >= task.begun && j0 + int(BLOCKS * 8) <= task.hidden) return a.scale * LOG2E;
#pragma unroll
    for (uint i = 0; i < LINES; i++) {
      const uint at = min(row + i * 8, a.queries - 1);
      const Seen seen = seen_by(a, task.valid, at);
      device const float* mask_row = mask + (MASKED ? row_at(a.mask, task.b, task.h, at) : 0);
#pragma unroll
      for (uint j = 0; j < BLOCKS; j++) {
        const float2 pair = scores.pair(i, j);
        const int k = key + int(j * 8);
        scores.set(i, j, float2(masked(a, seen, mask_row, k, pair.x, plain),
                                masked(a, seen, mask_row, k + 1, pair.y, plain)));
      }
    }
    if (plain) return a.scale * LOG2E;
    return 1.0f;
  }

  // From scores to weights. `sums` are scaled to new maxima, but only if these are much larger, as
  // weights may well be larger than one. `R` knows the lanes of a row.
  template <typename R, uint DEPTH, typename S, typename V>
  void update(thread S& scores, float factor, thread V& sums) {
    float shrink[LINES];
    bool changed = false;
#pragma unroll
    for (uint i = 0; i < LINES; i++) {
      float above = max(scores.pair(i, 0).x, scores.pair(i, 0).y);
#pragma unroll
      for (uint j = 1; j < BLOCKS; j++)
        above = max(above, max(scores.pair(i, j).x, scores.pair(i, j).y));
      above = R::row_max(above) * factor;
      above = above > peak[i] + MUCH ? above : peak[i];
      const float less = pivot(above);
      shrink[i] = tile::exp2(peak[i] - less);
      changed = changed || shrink[i] != 1.0f;
      peak[i] = above;
      float sum = 0.0f;
#pragma unroll
      for (uint j = 0; j < BLOCKS; j++) {
        const float2 pair = fma(scores.pair(i, j), factor, -less);
        const float2 weight = float2(tile::exp2(pair.x), tile::exp2(pair.y));
        scores.set(i, j, weight);
        sum += weight.x + weight.y;
      }
      total[i] = fma(total[i], shrink[i], sum);
    }
    if (!simd_any(changed)) return;
#pragma unroll
    for (uint i = 0; i < LINES; i++)
#pragma unroll
      for (uint d = 0; d < DEPTH / 8; d++) sums.set(i, d, sums.pair(i, d) * shrink[i]);
  }

  // Results: the sums divided by the totals. `row` and `out` are of the lane's first ones.
  template <typename R, uint DEPTH, typename V, typename T>
  void write(constant AttentionRecord& a, device const float* mask, uint head, thread const V& sums,
             device T* out, uint row, uint rows) const {
#pragma unroll
    for (uint i = 0; i < LINES; i++) {
      const float all = with_sink_of_two(a, mask, head, peak[i], R::row_sum(total[i]));
      if (row + i * 8 >= rows) continue;
      device T* line = out + i * 8 * DEPTH;
#pragma unroll
      for (uint d = 0; d < DEPTH / 8; d++) {
        const float2 pair = sums.pair(i, d);
        line[d * 8] = T(divided(pair.x, all));
        line[d * 8 + 1] = T(divided(pair.y, all));
      }
    }
  }
};

// ---- products by simdgroups ----

// Where the operands and results of a head begin.
template <typename T, typename KV>
struct HeadArrays {
  device const T* query;
  device const KV* key;
  device const KV* value;
  device const float* mask;
  device T* out;  // row 0
};

template <typename T, typename KV, typename F, bool TOGETHER>
struct FlashEngine {
  using C = typename F::C;
  using Scores = tile::Sums<C, F::ROWS, F::KEYS>;
  static constant constexpr int KEYS = F::KEYS;
  static constant constexpr uint STEP = F::KEYS < 16 ? F::KEYS : 16;  // of a product's depth

  static void run(HeadArrays<T, KV> head, constant AttentionRecord& a, Task task, threadgroup C* keys,
                  uint thread_index, uint simdgroup, uint lane) {
    threadgroup C* values = keys + F::KEYS * F::WIDTH;
    const uint own = task.i0 + simdgroup * F::ROWS + Scores::row(lane);
    tile::Left<C, F::ROWS, F::D> q;
    load_queries(q, head.query + task.i0 * a.query.row, a.query.row, task.queries, keys, thread_index,
                 simdgroup);
    tile::Sums<C, F::ROWS, F::D> sums;
    tile::clear(sums);
    OnlineSoftmax<F::ROWS / 8, F::KEYS / 8> softmax;
    softmax.clear();
    const int first = task.first / KEYS * KEYS, last = task.last;
    stage<F>(head.key + first * a.key.row, a.key.row, last - first, F::KEYS, keys, thread_index);
    tile::Copy<>::commit();
    for (int j0 = first; j0 < last; j0 += KEYS) {
      tile::Copy<>::template wait<0>();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      stage<F>(head.value + j0 * a.value.row, a.value.row, last - j0, F::KEYS, values, thread_index);
      tile::Copy<>::commit();
      Scores scores;
      tile::clear(scores);
#pragma unroll
      for (uint d = 0; d < F::D / 16; d++) {
        tile::Right<C, 16, F::KEYS> k;
        k.load(keys + d * 16, F::WIDTH, true);
        tile::multiply_add(scores, q.template slice<16>(d), k);
      }
      const float factor =
          softmax.score(scores, a, task, head.mask, own, j0, j0 + int(Scores::column(lane)));
      softmax.template update<Scores, F::D>(scores, factor, sums);

      tile::Copy<>::template wait<0>();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (j0 + KEYS < last)
        stage<F>(head.key + (j0 + KEYS) * a.key.row, a.key.row, last - j0 - KEYS, F::KEYS, keys,
                 thread_index);
      tile::Copy<>::commit();
      tile::Left<C, F::ROWS, F::KEYS> weights;
      weights.round(scores);
#pragma unroll
      for (uint j = 0; j < F::KEYS / STEP; j++) {
        tile::Right<C, STEP, F::D> v;
        v.load(values + j * STEP * F::WIDTH, F::WIDTH, false);
        tile::multiply_add(sums, weights.template slice<STEP>(j), v);
      }
    }
    softmax.template write<Scores, F::D>(a, head.mask, task.h, sums, head.out + own * F::D + Scores::column(lane), own,
                                         task.i0 + task.queries);
  }

  // Through the place of keys and values, which hold two blocks of rows.
  static void load_queries(thread tile::Left<C, F::ROWS, F::D>& q, device const T* rows, long stride,
                           uint queries, threadgroup C* memory, uint thread_index, uint simdgroup) {
    for (uint first = 0; first < F::QUERIES; first += 2 * F::KEYS) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
      for (uint block = 0; block < 2; block++) {
        const uint i = first + block * F::KEYS;
        if (i < F::QUERIES)
          stage<F>(rows + i * stride, stride, int(queries) - int(i), min(F::KEYS, F::QUERIES - i),
                   memory + block * F::KEYS * F::WIDTH, thread_index);
      }
      tile::Copy<>::commit();
      tile::Copy<>::template wait<0>();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const uint at = simdgroup * F::ROWS - first;
      if (at < 2 * F::KEYS) q.load(memory + at * F::WIDTH, F::WIDTH, false);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
};

#ifdef LBRX_SOFTMETAL_TILES
// ---- products by four simdgroups together, on Hopper ----

// The next keys and values are copied while these are used, so that one barrier a block is enough.
template <typename C, typename F>
struct FlashEngine<C, C, F, true> {
  using Warpgroup = softmetal::warpgroup<C>;
  using Lane = tile::Sums<C, 16, 16>;
  using Queries = tile::Panel<C, F::QUERIES, F::D, F::THREADS, true>;
  using Rows = tile::Panel<C, F::KEYS, F::D, F::THREADS, true>;
  static constant constexpr int KEYS = F::KEYS;
  static constant constexpr uint GROUP = 1024, BLOCK = F::KEYS * 128;  // bytes of 8 and of all lines

  static void run(HeadArrays<C, C> head, constant AttentionRecord& a, Task task, threadgroup C* memory,
                  uint thread_index, uint simdgroup, uint lane) {
    threadgroup C* queries = Warpgroup::aligned(memory);
    threadgroup C* here = queries + Queries::size;
    threadgroup C* next = here + 2 * Rows::size;
    const uint own = task.i0 + simdgroup * 16 + Lane::row(lane);
    softmetal::warpgroup_sums<F::D> sums;
    for (uint i = 0; i < 2; i++)
      for (uint d = 0; d < F::D / 8; d++) sums.set(i, d, 0.0f);
    OnlineSoftmax<2, F::KEYS / 8> softmax;
    softmax.clear();
    const int first = task.first / KEYS * KEYS, last = task.last;
    Queries::load(queries, head.query + task.i0 * a.query.row, a.query.row, task.queries, F::D,
                  thread_index, ALIGNED);
    copy(here, head, a, first, last, thread_index);
    for (int j0 = first; j0 < last; j0 += KEYS) {
      tile::Copy<>::template wait<0>();
      Warpgroup::publish();
      threadgroup_barrier(mem_flags::mem_threadgroup);
      copy(next, head, a, j0 + KEYS, last, thread_index);
      softmetal::warpgroup_sums<F::KEYS> scores;
      multiply_keys(scores, queries + simdgroup / 4 * 64 * 64, here);
      const float factor =
          softmax.score(scores, a, task, head.mask, own, j0, j0 + int(Lane::column(lane)));
      softmax.template update<Lane, F::D>(scores, factor, sums);
      multiply_values(sums, scores, here + Rows::size);
      threadgroup C* free = here;
      here = next;
      next = free;
    }
    softmax.template write<Lane, F::D>(a, head.mask, task.h, sums, head.out + own * F::D + Lane::column(lane), own,
                                       task.i0 + task.queries);
  }

  static void copy(threadgroup C* to, HeadArrays<C, C> head, constant AttentionRecord& a, int j0, int last,
                   uint thread_index) {
    const uint lines = max(last - j0, 0);
    Rows::load(to, head.key + j0 * a.key.row, a.key.row, lines, F::D, thread_index, ALIGNED);
    Rows::load(to + Rows::size, head.value + j0 * a.value.row, a.value.row, lines, F::D, thread_index,
               ALIGNED);
    tile::Copy<>::commit();
  }

  static void multiply_keys(thread softmetal::warpgroup_sums<F::KEYS>& scores,
                            threadgroup const C* queries, threadgroup const C* keys) {
    Warpgroup::begin();
#pragma unroll
    for (uint d = 0; d < F::D; d += 16) {
      const ulong left =
          Warpgroup::operand(queries + d / 64 * F::QUERIES * 64 + d % 64, GROUP, BLOCK);
      const ulong right = Warpgroup::operand(keys + d / 64 * F::KEYS * 64 + d % 64, GROUP, BLOCK);
      if (d == 0) Warpgroup::template multiply_add<false>(scores, left, right, false, false);
      else Warpgroup::template multiply_add<true>(scores, left, right, false, false);
    }
    Warpgroup::commit();
    Warpgroup::template wait<0>();
  }

  static void multiply_values(thread softmetal::warpgroup_sums<F::D>& sums,
                              thread const softmetal::warpgroup_sums<F::KEYS>& weights,
                              threadgroup const C* values) {
    uint rounded[F::KEYS / 16][4];
#pragma unroll
    for (uint j = 0; j < F::KEYS / 16; j++)
      Warpgroup::round(rounded[j], weights.pair(0, 2 * j), weights.pair(1, 2 * j),
                       weights.pair(0, 2 * j + 1), weights.pair(1, 2 * j + 1));
    Warpgroup::begin();
#pragma unroll
    for (uint j = 0; j < F::KEYS / 16; j++) {
      const ulong right = Warpgroup::operand(values + j * 16 * 64, GROUP, BLOCK);
      Warpgroup::template multiply_add<true>(sums, rounded[j], right, true);
    }
    Warpgroup::commit();
    Warpgroup::template wait<0>();
  }
};
#endif

template <typename A, typename B> struct IsSame {
  static constant constexpr bool value = false;
};
template <typename A> struct IsSame<A, A> {
  static constant constexpr bool value = true;
};

// ---- the kernel ----

template <typename T, typename KV, typename F>
kernel void attention_flash(
    device const T* query [[buffer(0)]], device const KV* key [[buffer(1)]],
    device const KV* value [[buffer(2)]], device const float* mask [[buffer(3)]],
    device const int* lengths [[buffer(4)]], device T* out [[buffer(5)]],
    constant AttentionRecord& a [[buffer(6)]], threadgroup float4* memory [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]], uint2 groups [[threadgroups_per_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  using C = typename F::C;
  constexpr bool PLAIN = IsSame<T, C>::value && IsSame<KV, C>::value;
  constexpr bool TOGETHER = tile::Target<C>::WARPGROUPS && PLAIN && F::D % 64 == 0 && F::D <= 128 &&
                            F::KEYS % 64 == 0 && F::GROUPS % 4 == 0;
  // Under a causal mask the last queries see most keys: they begin first.
  const Task task = task_of(a, lengths, group.y, groups.x - 1 - group.x, F::QUERIES);
  const HeadArrays<T, KV> head = {query + row_at(a.query, task.b, task.h, 0),
                                  key + row_at(a.key, task.b, task.kv_head, 0),
                                  value + row_at(a.value, task.b, task.kv_head, 0), mask,
                                  out + long(group.y) * a.queries * F::D};
  FlashEngine<T, KV, F, TOGETHER>::run(head, a, task, (threadgroup C*)memory, thread_index, simdgroup,
                                       lane);
}
