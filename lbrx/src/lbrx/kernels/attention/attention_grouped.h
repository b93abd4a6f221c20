// Attention of a few queries to a long cache, on GPUs: the heads that share keys are the rows of
// tiles, so that keys and values are read once. Every simdgroup has tiles of its own, which come
// into threadgroup memory while it multiplies earlier ones, and waits for no other until the end.
#pragma once
#include "attention.h"
#include "early.h"
#include "tile.h"

constant constexpr uint GROUPED_ROWS = 8;        // pairs of a query and a head
constant constexpr uint GROUPED_CHUNKS = 128;    // at most
constant constexpr uint GROUPED_SIMDGROUPS = 8;  // at most
constant constexpr uint GROUPED_STAGES = 2;      // tiles of a simdgroup, with those on their way
constant constexpr uint GROUPED_EARLY = 2;       // that are asked for before the kernels in front end
// Weights may be this power of two before sums are scaled down: multiplying all sums is rare then.
constant constexpr float GROUPED_SLACK = 10.0f;
constant constexpr float LOG2E = 1.442695041f;

// C is the type of what is multiplied. Tensor cores multiply 16 rows: if queries and weights are
// EXACT, the sums of two numbers of type C, the last eight rows are the smaller ones.
template <typename C, uint D, bool EXACT>
struct Grouped {
  static constant constexpr bool TENSOR = tile::Target<C>::TENSOR;
  static constant constexpr uint ROWS = TENSOR || EXACT ? 16 : 8;
  static constant constexpr uint KEYS = TENSOR ? 16 : 8;  // of a tile
  static constant constexpr uint WIDTH = D + 8;           // rows start in different banks
  static constant constexpr uint TILE = KEYS * WIDTH;
  using Scores = tile::Sums<C, ROWS, KEYS>;
  using Sums = tile::Sums<C, ROWS, 16>;
};

// The head and the query of a row; rows beyond the last repeat it.
struct Member {
  uint head, query;
};

inline Member member_of(constant AttentionRecord& a, uint kv_head, uint row) {
  const uint one = min(row, a.group * a.queries - 1);
  return {kv_head * a.group + one % a.group, one / a.group};
}

// Where the keys or values of a head begin.
template <typename KV>
struct Line {
  device const KV* start;
  long stride;
  device const KV* at(int row) const { return start + row * stride; }
  // Asks for rows of so many elements, if they follow one another.
  void fetch(int row, uint rows, uint width) const {
    if (stride == long(width)) prefetch(at(row), rows * width * sizeof(KV));
  }
};

// How keys and values come into threadgroup memory: `begin` starts with the first tile of a
// simdgroup, and `turn` completes the tile of keys from j on and starts with a later one. Keys from
// `last` on become zeros. `feature` says which feature of a row is in column d.
template <typename KV, uint D, bool EXACT>
struct Source {
  using C = KV;
  using G = Grouped<C, D, EXACT>;
  static constant constexpr uint STAGES = tile::Target<C>::ASYNC ? GROUPED_STAGES : 1;
  static constant constexpr uint BYTES = STAGES * 2 * G::TILE * sizeof(C);
  static uint feature(uint d) { return d; }

  Line<KV> key, value;
  int step, last;
  threadgroup C* memory;
  uint lane;
  uint next = 0;  // stage to be filled

  void begin(int j) {
#pragma unroll
    for (uint n = 0; n + 1 < STAGES; n++) start(j + int(n) * step);
  }

  // Returns the tile of keys; that of values follows.
  threadgroup const C* turn(int j) {
    start(j + int(STAGES - 1) * step);
    tile::Copy<>::template wait<int(STAGES - 1)>();
    return memory + next * 2 * G::TILE;  // the oldest
  }

  void start(int j) {
    threadgroup C* to = memory + next * 2 * G::TILE;
    copy(key, j, to);
    copy(value, j, to + G::TILE);
    tile::Copy<>::commit();
    next = next + 1 == STAGES ? 0 : next + 1;
  }

  void copy(Line<KV> from, int j, threadgroup C* to) const {
    constexpr uint ROW = D / 8, PIECES = G::KEYS * ROW;
    if (32 % ROW == 0) {  // every piece is as many rows further
      constexpr uint STEP = 32 % ROW == 0 ? 32 / ROW : 1;
      const int row = j + int(lane / ROW);
      device const KV* piece = from.at(row) + lane % ROW * 8;
      to += lane / ROW * G::WIDTH + lane % ROW * 8;
#pragma unroll
      for (uint n = 0; n < G::KEYS; n += STEP) {
        tile::Copy<>::start(to + n * G::WIDTH, piece, row + int(n) < last ? 8 : 0);
        piece += STEP * from.stride;
      }
      return;
    }
#pragma unroll
    for (uint n = 0; n < PIECES; n += 32) {
      const uint at = n + lane, row = at / ROW, d = at % ROW * 8;
      if (PIECES % 32 && at >= PIECES) break;
      tile::Copy<>::start(to + row * G::WIDTH + d, from.at(j + int(row)) + d,
                          j + int(row) < last ? 8 : 0);
    }
  }
};

// Blocks of 34 bytes: every second one starts in the middle of a word. A code is the mantissa of a
// half, less 1152, and pairs are the first and third, or second and fourth of a word. Words are
// fetched into registers while earlier keys are multiplied.
template <uint D, bool EXACT>
struct Source<uchar, D, EXACT> {
  using C = half;
  using G = Grouped<C, D, EXACT>;
  static constant constexpr uint BLOCKS = D / BLOCK, ROW = BLOCKS * BLOCK_BYTES / 4;
  static constant constexpr uint RAW = G::KEYS * ROW, PIECES = (RAW + 31) / 32;
  static constant constexpr uint BYTES = 2 * G::TILE * sizeof(C) + (RAW + 3) / 4 * 16;
  static uint feature(uint d) { return (d & ~3u) | (d & 1) << 1 | (d >> 1 & 1); }

  Line<uchar> key, value;
  int step, last;
  threadgroup C* memory;
  uint lane;
  uint key_pieces[PIECES], value_pieces[PIECES];

  void begin(int j) {
    fetch(key, j, key_pieces);
    fetch(value, j, value_pieces);
  }

  threadgroup const C* turn(int j) {
    place(key_pieces, memory);
    fetch(key, j + step, key_pieces);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    place(value_pieces, memory + G::TILE);
    fetch(value, j + step, value_pieces);
    return memory;
  }

  void fetch(Line<uchar> from, int j, thread uint (&pieces)[PIECES]) const {
#pragma unroll
    for (uint n = 0; n < PIECES; n++) {
      const uint at = n * 32 + lane, row = at / ROW;
      const bool inside = j + int(row) < last && row < G::KEYS;
      pieces[n] = inside ? ((device const uint*)from.at(j + int(row)))[at % ROW] : 0;
    }
  }

  void place(thread const uint (&pieces)[PIECES], threadgroup half* tile) const {
    threadgroup uint* raw = (threadgroup uint*)(memory + 2 * G::TILE);
    const uint magic = 0x64806480u;
#pragma unroll
    for (uint n = 0; n < PIECES; n++)
      if (RAW % 32 == 0 || n * 32 + lane < RAW) raw[n * 32 + lane] = pieces[n];
    simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (uint n = 0; n < G::KEYS * BLOCKS; n += 32) {
      const uint at = n + lane, row = at / BLOCKS, block = at % BLOCKS;
      if (at >= G::KEYS * BLOCKS) break;
      const uint start = row * ROW + block * BLOCK_BYTES / 4, odd = block % 2;
      threadgroup uint4* to = (threadgroup uint4*)(tile + row * G::WIDTH + block * BLOCK);
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

// The online softmax of a row, in powers of two: lanes that hold a row have the same peak, and
// totals of their own keys.
struct Progress {
  Seen seen;
  device const float* mask;  // null if there is none
  float scale;
  float peak, total;

  // From products to weights. Returns what the sums so far have to be multiplied by.
  template <typename C, bool EXACT, typename G>
  float weigh(thread typename G::Scores& scores, constant AttentionRecord& a, int j) {
    float2 own[G::KEYS / 8];
    float above = -INFINITY;
#pragma unroll
    for (uint n = 0; n < G::KEYS / 8; n++) {
      const float2 product = scores.pair(0, n) + (EXACT ? scores.pair(1, n) : 0.0f);
#pragma unroll
      for (uint i = 0; i < 2; i++) {
        const int at = j + int(n * 8 + i);
        const bool visible = at >= seen.first && at < seen.last;
        float score = CAPPED ? bent(a, product[i] * a.scale) * LOG2E : product[i] * scale;
        if (mask) score = visible ? fma(mask[at * a.mask_key], LOG2E, score) : score;
        own[n][i] = visible ? score : -INFINITY;
      }
      above = max(above, max(own[n].x, own[n].y));
    }
    above = G::Scores::row_max(above);
    float shrink = 1.0f;
    if (above > peak + GROUPED_SLACK) {
      shrink = tile::exp2(peak - above);
      peak = above;
    }
    float sum = 0.0f;
#pragma unroll
    for (uint n = 0; n < G::KEYS / 8; n++) {
      const float2 less = own[n] - pivot(peak);
      const float2 weight = float2(tile::exp2(less.x), tile::exp2(less.y));
      scores.set(0, n, weight);
      if (G::ROWS > 8) scores.set(1, n, EXACT ? weight - float2(vec<C, 2>(weight)) : float2(0.0f));
      sum += weight.x + weight.y;
    }
    total = fma(total, shrink, sum);
    return shrink;
  }
};

// Without a limit of threads: with one, ptxas takes more registers, and heads of 128 more time.
template <typename T, typename KV, uint D>
kernel void attention_grouped(
    device const T* query [[buffer(0)]], device const KV* key [[buffer(1)]],
    device const KV* value [[buffer(2)]], device const float* mask [[buffer(3)]],
    device const int* lengths [[buffer(4)]], device vec<T, 4>* out [[buffer(5)]],
    constant AttentionRecord& a [[buffer(6)]], device float4* shares [[buffer(7)]],
    device float2* marks [[buffer(8)]], threadgroup uint4* memory [[threadgroup(0)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr bool EXACT = sizeof(T) > 2;
  using S = Source<KV, D, EXACT>;
  using G = typename S::G;
  using C = typename S::C;
  constexpr uint KEYS = G::KEYS;
  threadgroup float2 all_marks[GROUPED_SIMDGROUPS][GROUPED_ROWS];
  threadgroup uint4* own_memory = memory + simdgroup * (S::BYTES / 16);

  const uint kv_heads = a.heads / a.group, b = group.z / kv_heads, kv_head = group.z % kv_heads;
  const uint first_row = group.y * GROUPED_ROWS;
  const uint rows = min(GROUPED_ROWS, a.group * a.queries - first_row);
  const uint row = G::Scores::row(lane), column = G::Scores::column(lane);
  const Member own = member_of(a, kv_head, first_row + row);
  device const T* own_query = query + row_at(a.query, b, own.head, own.query);
  Progress state;
  state.mask = a.has_mask ? mask + row_at(a.mask, b, own.head, own.query) : nullptr;
  state.scale = a.scale * LOG2E;
  state.peak = -INFINITY, state.total = 0.0f;
  S source;
  source.key = {key + row_at(a.key, b, kv_head, 0), a.key.row};
  source.value = {value + row_at(a.value, b, kv_head, 0), a.value.row};
  source.step = int(a.chunks * simdgroups * KEYS);
  source.memory = (threadgroup C*)own_memory, source.lane = lane;
  const AttentionRecord sizes = a;  // read before the kernels that compute keys and lengths have ended
  const uint first_query = member_of(a, kv_head, first_row).query;
  const uint last_query = member_of(a, kv_head, first_row + rows - 1).query;
  const int tile = int((group.x * simdgroups + simdgroup) * KEYS);
  if (lane < 2 * GROUPED_EARLY) {  // the number of keys may be an old one: nothing depends on it
    const uint guess = valid_keys(sizes, lengths, b);
    const int j = seen_by(sizes, guess, first_query).first + tile + int(lane / 2) * source.step;
    constexpr uint WIDTH = sizeof(KV) > 1 ? D : D / BLOCK * BLOCK_BYTES;
    if (j + int(KEYS) <= int(guess)) (lane % 2 ? source.value : source.key).fetch(j, KEYS, WIDTH);
  }
  await_previous();

  // The tiles of keys that any row sees are dealt out, so that all threadgroups together read one
  // place of memory after the other.
  const uint valid = valid_keys(sizes, lengths, b);
  state.seen = seen_by(sizes, valid, own.query);
  const int from = seen_by(sizes, valid, first_query).first;
  const int last = seen_by(sizes, valid, last_query).last;
  int j = from + tile;
  source.last = last;
  if (j < last) source.begin(j);

  // A lane's elements of the queries are where those of a product's sums are.
  tile::Left<C, G::ROWS, 16> q[D / 16];
  typename G::Sums sums[D / 16];
#pragma unroll
  for (uint d = 0; d < D / 16; d++) {
#pragma unroll
    for (uint n = 0; n < 2; n++) {
      const uint at = d * 16 + n * 8 + column;
      const float2 x = float2(own_query[S::feature(at)], own_query[S::feature(at + 1)]);
      sums[d].set(0, n, x);
      if (G::ROWS > 8) sums[d].set(1, n, EXACT ? x - float2(vec<C, 2>(x)) : float2(0.0f));
    }
    q[d].round(sums[d]);
    tile::clear(sums[d]);
  }

  for (; j < last; j += source.step) {
    threadgroup const C* keys = source.turn(j);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    typename G::Scores scores;
    tile::clear(scores);
#pragma unroll
    for (uint d = 0; d < D / 16; d++) {
      tile::Right<C, 16, KEYS> k;
      k.load(keys + d * 16, G::WIDTH, true);
      tile::multiply_add(scores, q[d], k);
    }
    const float shrink = state.weigh<C, EXACT, G>(scores, a, j + int(column));
    if (simd_any(shrink != 1.0f)) {
#pragma unroll
      for (uint d = 0; d < D / 8; d++) {
#pragma unroll
        for (uint i = 0; i <= (EXACT ? 1u : 0u); i++)
          sums[d / 2].set(i, d % 2, sums[d / 2].pair(i, d % 2) * shrink);
      }
    }
    tile::Left<C, G::ROWS, KEYS> weights;
    weights.round(scores);
#pragma unroll
    for (uint d = 0; d < D / 16; d++) {
      tile::Right<C, KEYS, 16> v;
      v.load(keys + G::TILE + d * 16, G::WIDTH, false);
      tile::multiply_add(sums[d], weights, v);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }

  // Sums of the simdgroups, in the place of their tiles.
  tile::Copy<>::template wait<0>();
  simdgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup float* own_sums = (threadgroup float*)own_memory;
#pragma unroll
  for (uint d = 0; d < D / 8; d++) {
    const float2 pair =
        sums[d / 2].pair(0, d % 2) + (EXACT ? sums[d / 2].pair(1, d % 2) : 0.0f);
    const uint at = row * D + d * 8 + column;
    own_sums[S::feature(at)] = pair.x, own_sums[S::feature(at + 1)] = pair.y;
  }
  state.total = G::Scores::row_sum(state.total);
  if (column == 0) all_marks[simdgroup][row] = float2(state.peak, state.total);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint n = thread_index; n < rows * (D / 4); n += simdgroups * 32) {
    const uint r = n / (D / 4), d = n % (D / 4);
    float2 mark = float2(-INFINITY, 0.0f);
#pragma unroll
    for (uint s = 0; s < GROUPED_SIMDGROUPS; s++)
      if (s < simdgroups) mark.x = max(mark.x, all_marks[s][r].x);
    float4 sum = 0.0f;
#pragma unroll
    for (uint s = 0; s < GROUPED_SIMDGROUPS; s++) {
      if (s >= simdgroups) break;
      const float weight = tile::exp2(all_marks[s][r].x - pivot(mark.x));
      mark.y = fma(all_marks[s][r].y, weight, mark.y);
      sum = fma(((threadgroup const float4*)(memory + s * (S::BYTES / 16)))[n], weight, sum);
    }
    const Member each = member_of(a, kv_head, first_row + r);
    const ulong place = share_at(a, b, each.head, each.query, group.x);
    if (a.chunks == 1) {
      const float total = with_sink_of_two(a, mask, each.head, mark.x, mark.y);
      float4 quotient;
      for (uint i = 0; i < 4; i++) quotient[i] = divided(sum[i], total);
      out[place * (D / 4) + d] = vec<T, 4>(quotient);
    } else {
      shares[place * (D / 4) + d] = sum;
      if (d == 0) marks[place] = mark;
    }
  }
}

// One threadgroup per row of the result; a thread adds up four features of every so many chunks.
constant constexpr uint JOIN_THREADS = 256;

template <typename T>
kernel void attention_join(device const float4* shares [[buffer(0)]],
                           device const float2* marks [[buffer(1)]],
                           device vec<T, 4>* out [[buffer(2)]],
                           constant AttentionRecord& a [[buffer(3)]],
                           device const float* mask [[buffer(4)]],
                           uint row [[threadgroup_position_in_grid]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint EACH = 8;  // chunks of a thread at a time
  threadgroup float weights[GROUPED_CHUNKS];
  threadgroup float4 sums[JOIN_THREADS];
  const uint chunks = a.chunks, width = a.value_depth / 4, lines = JOIN_THREADS / width;
  const uint line = thread_index / width, d = thread_index % width;
  const ulong start = ulong(row) * chunks;
  const uint own_chunks = line < lines && line < chunks ? (chunks - line - 1) / lines + 1 : 0;
  device const float4* from = shares + (start + line) * width + d;
  await_previous();
  float4 first[EACH];
#pragma unroll
  for (uint n = 0; n < EACH; n++)
    first[n] = n < own_chunks ? from[n * lines * width] : float4(0.0f);
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
    const float weight = tile::exp2(own[n].x - pivot(peak));
    if (thread_index < 32) weights[n * 32 + lane] = weight;
    total = fma(own[n].y, weight, total);
  }
  total = with_sink_of_two(a, mask, row / a.queries % a.heads, peak, simd_sum(total));
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float4 sum = 0.0f;
#pragma unroll
  for (uint n = 0; n < EACH; n++)
    if (n < own_chunks) sum = fma(first[n], weights[line + n * lines], sum);
  for (uint n = EACH; n < own_chunks; n++)
    sum = fma(from[n * lines * width], weights[line + n * lines], sum);
  sums[thread_index] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (line > 0) return;
  for (uint n = 1; n < lines; n++) sum += sums[n * width + d];
  float4 quotient;
  for (uint i = 0; i < 4; i++) quotient[i] = divided(sum[i], total);
  out[ulong(row) * width + d] = vec<T, 4>(quotient);
}
