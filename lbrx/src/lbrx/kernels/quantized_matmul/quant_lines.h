// Products of one row with up to three quantized matrices, for GPUs that multiply bytes.
//
// A threadgroup rounds x to 16-bit integers with a scale for every 32 of them, as processors do, and
// keeps them in threadgroup memory as bytes. Simdgroups then read ROWS rows of a matrix at a time, in
// steps of 32 units along the rows, with the words of DEPTH steps under way. `split` simdgroups share
// long rows of small matrices and add their sums in order.
//
// A reader says how a thread reads a unit of 32 values:
//   Word              type of the words that the matrix is made of; rows start at whole words
//   WORDS             words of a unit in registers
//   value(unit, w)    where the four values of x for the w-th word of bytes start
//   ALTERNATE         whether words 2 i and 2 i + 1 have every second one of their eight values
//   stride            words of a row of so many units
//   load              the words of a unit in a row that starts `down` words after the batch
//   add               a sum, and the product of a unit and the same part of x
#pragma once
#include "early.h"
#include "quant_row.h"
#include "records/quant_lines.h"
#include "rotation.h"

constant bool TWO = PAIRED || TURNED;                 // a batch has two sets of rows
constant uint ROW_STEP = TURNED && INTERLEAVED ? 2 : 1;  // rows from one to the next of a set
constant constexpr uint MOST_ROWS = 8, MOST_DEPTH = 4, MOST_SIMDGROUPS = 32;
constant uint BATCH_ROWS = TWO ? ROWS / 2 : ROWS;  // of a set
constant uint ROW_LANES = ROWS ? 32 / ROWS : 1;          // lanes that have a row's sum in the end
constant uint GROUP_UNITS = GROUP > 32 ? GROUP / 32 : 1;  // units that share a scale

inline float half_of(uint bits) { return float(as_type<half>(ushort(bits))); }

// Words that start in the middle of others.
template <uint COUNT>
inline void shift_words(thread const uint* from, uint shift, thread uint (&to)[COUNT]) {
#pragma unroll
  for (uint j = 0; j < COUNT; j++) to[j] = uint((ulong(from[j + 1]) << 32 | from[j]) >> shift);
}

// ---- readers ----

// Where a batch of rows starts in its matrix.
template <typename Word>
struct BatchStart {
  device const Word* data;
  device const void* scales;
  device const void* offsets;
  uint group;  // number of the first scale
};

// Blocks of 18 or 34 bytes: those with odd numbers start in the middle of a word.
template <uint COUNT>
struct LinesOfBlocks {
  using Word = uint;
  static constant constexpr bool ALTERNATE = false;
  static constant constexpr uint WORDS = COUNT, BLOCK = COUNT * 4 - 2;
  static uint stride(uint units) { return units * BLOCK / 4; }
  static void load(BatchStart<uint> place, uint down, uint unit, thread uint (&words)[WORDS]) {
    device const uint* from = place.data + unit * BLOCK / 4 + down;
#pragma unroll
    for (uint i = 0; i < WORDS; i++) words[i] = from[i];
  }
  static float scale(uint unit, thread const uint (&words)[WORDS]) {
    return half_of(words[0] >> (unit % 2 * 16));
  }
};

struct Lines4_0 : LinesOfBlocks<5> {
  static uint value(uint unit, uint w) { return unit * 32 + w / 2 * 4 + w % 2 * 16; }
  static float add(float sum, uint unit, thread const uint (&words)[WORDS], thread const Part& x) {
    uint codes[4];
    shift_words(words, unit % 2 * 16 + 16, codes);
    const int2 sums = x.nibbles(codes, int2(0, -128 * (x.sums.x + x.sums.y)));
    return fma(scale(unit, words), float(sums.x * 16 + sums.y) * (x.step * 0.0625f), sum);
  }
};

struct Lines8_0 : LinesOfBlocks<9> {
  static uint value(uint unit, uint w) { return unit * 32 + w * 4; }
  static float add(float sum, uint unit, thread const uint (&words)[WORDS], thread const Part& x) {
    uint codes[8];
    shift_words(words, unit % 2 * 16 + 16, codes);
    return fma(scale(unit, words), float(x.bytes(codes)) * x.step, sum);
  }
};

// An eighth of a block of 144 bytes: 16 bytes of codes, whose low nibbles are 16 values of a group
// and whose high nibbles are those of the next group.
struct Lines4_K {
  using Word = uint4;
  static constant constexpr bool ALTERNATE = false;
  static constant constexpr uint WORDS = 8;
  static uint value(uint unit, uint w) {
    return unit / 2 * 64 + unit % 2 * 16 + w / 2 * 4 + w % 2 * 32;
  }
  static uint stride(uint units) { return units / 8 * 9; }
  static void load(BatchStart<uint4> place, uint down, uint unit, thread uint (&words)[WORDS]) {
    device const uint4* block = place.data + unit / 8 * 9 + down;
    const uint4 head = block[0], codes = block[1 + unit % 8];
#pragma unroll
    for (uint i = 0; i < 4; i++) {
      words[i] = codes[i];
      words[4 + i] = head[i];
    }
  }
  // Six bits each, for groups 2 p and 2 p + 1: scales and minima.
  static uint2 pair(thread const uint* head, uint p) {
    const uint shift = p % 2 * 16;
    const uint low = head[1] >> shift, minima = head[2] >> shift, high = head[3] >> shift;
    const uint2 early = uint2(low, minima) & 0x3f3f;
    const uint2 late = uint2((high & 0x0f0f) | (low >> 2 & 0x3030),
                             (high >> 4 & 0x0f0f) | (minima >> 2 & 0x3030));
    return select(late, early, bool2(p < 2));
  }
  // Sums of 16 products, times scales below 64, are below 2^30.
  static float add(float sum, uint unit, thread const uint (&words)[WORDS], thread const Part& x) {
    const int2 sums = x.nibbles(words, 0);
    const uint2 six = pair(words + 4, unit % 8 / 2);
    const int scaled = int(six.x & 255) * sums.x + int(six.x >> 8) * (sums.y >> 4);
    const int least = int(six.y & 255) * x.sums.x + int(six.y >> 8) * x.sums.y;
    return fma(half_of(words[4]), float(scaled) * x.step,
               fma(-half_of(words[4] >> 16), float(least) * x.step, sum));
  }
};

// 32 codes of four bits; scales and what is added are separate.
struct LinesAffine4 {
  using Word = uint4;
  static constant constexpr bool ALTERNATE = true;
  static constant constexpr uint WORDS = 6;
  static uint value(uint unit, uint w) { return unit * 32 + w * 4; }
  static uint stride(uint units) { return units; }
  // Conversions are left to `add`, which waits for the words.
  static uint bits(device const void* from, uint at) {
    if (SCALES == FLOAT) return static_cast<device const uint*>(from)[at];
    return static_cast<device const ushort*>(from)[at];
  }
  static float number(uint bits) {
    if (SCALES == HALF) return half_of(bits);
    return as_type<float>(SCALES == BFLOAT ? bits << 16 : bits);
  }
  static void load(BatchStart<uint4> place, uint down, uint unit, thread uint (&words)[WORDS]) {
    const uint4 codes = place.data[unit + down];
#pragma unroll
    for (uint i = 0; i < 4; i++) words[i] = codes[i];
    const uint group = place.group + (unit + down) / GROUP_UNITS;
    words[4] = bits(place.scales, group);
    words[5] = bits(place.offsets, group);
  }
  static float add(float sum, uint unit, thread const uint (&words)[WORDS], thread const Part& x) {
    const int2 sums = x.nibbles(words, 0);
    const float total = float(x.sums.x + x.sums.y) * x.step;
    return fma(number(words[4]), float(sums.x * 16 + sums.y) * (x.step * 0.0625f),
               fma(number(words[5]), total, sum));
  }
};

// ---- the kernel ----

// One of the matrices' members, without an index, which would need memory.
template <typename T>
inline T pick(uint which, T first, T second, T third) {
  return which == 0 ? first : which == 1 ? second : third;
}

// A simdgroup's way through the batches, which 1 << shift simdgroups may share: steps of 32 units.
// Simdgroups that wait for each other count the threadgroup's batches, since they need to take as
// many turns; the last batch of all may then be read again.
struct Walk {
  uint batch, step;
  uint own, start;            // what this simdgroup and lane add to the batch and to the unit
  uint every, shift, steps, batches;

  bool goes_on() const thread { return batch < batches; }
  uint unit() const thread { return start + (step << (shift + 5)); }
  // Whether that was the last step of the batch.
  bool advance() thread {
    if (++step < steps) return false;
    step = 0;
    batch += every;
    return true;
  }
};

// How the batches are divided among matrices.
struct Heights {
  uint rows0, rows1, rows2, before1, before2;

  uint which(uint batch) const thread {
    return SEVERAL ? uint(batch >= before1) + uint(batch >= before2) : 0;
  }
  uint rows(uint which) const thread { return pick(which, rows0, rows1, rows2); }
  uint first_row(uint which, uint batch) const thread {
    return (batch - pick(which, 0u, before1, before2)) * BATCH_ROWS;
  }
};

// The words of one step after the other.
template <typename F>
struct LineStream {
  using Word = typename F::Word;
  device const Word *data0, *data1, *data2;
  device const void *scales0, *scales1, *scales2, *offsets0, *offsets1, *offsets2;
  Heights heights;
  uint k, half_features;
  Walk walk;
  BatchStart<Word> place, second;  // of the second set of rows
  uint last;

  // The row of the matrix that is the n-th one of the first sets.
  uint first_row(uint n) const thread {
    if (!TURNED) return n;
    return INTERLEAVED ? 2 * n : n / half_features * half_features + n;
  }
  // Rows between a row of the first set and its partner in the same matrix.
  uint between() const thread { return INTERLEAVED ? 1 : half_features; }

  void start_batch() thread {
    const uint batch = min(walk.batch + walk.own, walk.batches - 1), which = heights.which(batch);
    const uint n = heights.first_row(which, batch), row = first_row(n);
    const uint groups = k / 32 / GROUP_UNITS;
    last = heights.rows(which) - 1 - n;
    place.data = pick(which, data0, data1, data2) + ulong(row) * F::stride(k / 32);
    place.scales = pick(which, scales0, scales1, scales2);
    place.offsets = pick(which, offsets0, offsets1, offsets2);
    place.group = row * groups;
    if (PAIRED)
      second = {data1 + ulong(row) * F::stride(k / 32), scales1, offsets1, place.group};
    if (TURNED)
      second = {place.data + ulong(between()) * F::stride(k / 32), place.scales, place.offsets,
                place.group + between() * groups};
  }

  // Rows beyond the last repeat it, and so do units.
  void load(thread uint (&words)[MOST_ROWS][F::WORDS]) thread {
    if (walk.step == 0) start_batch();
    const uint unit = EVEN ? walk.unit() : min(walk.unit(), k / 32 - 1);
#pragma unroll
    for (uint r = 0; r < ROWS; r++)
      F::load(r < BATCH_ROWS ? place : second,
              min(r % BATCH_ROWS, last) * ROW_STEP * F::stride(k / 32), unit, words[r]);
    walk.advance();
  }
};

template <uint COUNT>
inline void halve_rows(thread float (&sums)[MOST_ROWS], uint lanes, bool upper) {
#pragma unroll
  for (uint r = 0; r < COUNT; r++) {
    const float mine = upper ? sums[r + COUNT] : sums[r], other = upper ? sums[r] : sums[r + COUNT];
    sums[r] = mine + exchanged(other, lanes);
  }
}

// The sum of row lane / ROW_LANES over all lanes: each exchange halves the rows of a lane.
inline float add_lanes(thread float (&sums)[MOST_ROWS], uint lane) {
  if (ROWS == 8) halve_rows<4>(sums, 16, lane & 16);
  if (ROWS >= 4) halve_rows<2>(sums, 2 * ROW_LANES, lane & (2 * ROW_LANES));
  if (ROWS >= 2) halve_rows<1>(sums, ROW_LANES, lane & ROW_LANES);
  float sum = sums[0];
#pragma unroll
  for (uint lanes = ROW_LANES / 2; lanes; lanes /= 2) sum += exchanged(sum, lanes);
  return sum;
}

// A lane's pair of features of the heads.
struct Turn {
  uint half_features;
  ulong position, speed;

  void start(uint n, device const float2* speeds, device const float* factors) thread {
    const uint pair = n % half_features;
    speed = speed_of(FACTORED ? slower(speeds[pair], factors[pair]) : speeds[pair]);
  }
  void put_pair(device void* out, uint n, float2 both, bool turns, uint capacity) const thread {
    if (turns) both = rotated(both.x, both.y, rotation(speed, position));
    const uint head = n / half_features, pair = n % half_features;
    const ulong row = capacity ? head * ulong(capacity) + position : head;
    const ulong to = row * half_features * 2 + (INTERLEAVED ? 2 * pair : pair);
    if (capacity && position >= capacity) return;
    put(out, to, both.x);
    put(out, to + (INTERLEAVED ? 1 : half_features), both.y);
  }
};

// The first steps are on their way.
template <typename F>
inline void begin_lines(thread LineStream<F>& stream,
                        thread uint (&words)[MOST_DEPTH][MOST_ROWS][F::WORDS]) {
#pragma unroll
  for (uint d = 0; d < DEPTH; d++)
    if (stream.walk.goes_on()) stream.load(words[d]);
}

template <typename F>
[[max_total_threads_per_threadgroup(512)]]
kernel void matvec_lines(
    device const typename F::Word* data0 [[buffer(0)]], device const void* scales0 [[buffer(1)]],
    device const void* offsets0 [[buffer(2)]], device void* out0 [[buffer(3)]],
    device const typename F::Word* data1 [[buffer(4)]], device const void* scales1 [[buffer(5)]],
    device const void* offsets1 [[buffer(6)]], device void* out1 [[buffer(7)]],
    device const typename F::Word* data2 [[buffer(8)]], device const void* scales2 [[buffer(9)]],
    device const void* offsets2 [[buffer(10)]], device void* out2 [[buffer(11)]],
    device const uint2* x [[buffer(12)]], constant LinesRecord& p [[buffer(13)]],
    device const uint2* added [[buffer(14), function_constant(ADDED)]],
    device uint2* total [[buffer(15), function_constant(ADDED)]],
    device const uint2* weight [[buffer(16), function_constant(NORMED)]],
    constant float& eps [[buffer(17), function_constant(NORMED)]],
    device const uint2* gated [[buffer(18), function_constant(GATED)]],
    constant TurnsRecord& turned [[buffer(19), function_constant(TURNED)]],
    device const void* positions [[buffer(20), function_constant(TURNED)]],
    device const float2* speeds [[buffer(21), function_constant(TURNED)]],
    device const float* factors [[buffer(22), function_constant(FACTORED)]],
    threadgroup uint4* vectors [[threadgroup(0)]], uint group [[threadgroup_position_in_grid]],
    uint groups [[threadgroups_per_grid]], uint index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float shared[2][MOST_SIMDGROUPS][MOST_ROWS];
  const uint units = p.k / 32, split = 1 << p.shift, teams = threads / 32 >> p.shift;
  const uint member = simdgroup % split, team = simdgroup >> p.shift;
  const Heights heights = {p.rows[0], p.rows[1], p.rows[2], p.before[0], p.before[1]};
  Walk walk = {group * teams, 0,       team,    member * 32 + lane,
               groups * teams, p.shift, p.steps, p.batches};
  if (split == 1) walk.batch += team, walk.own = 0;
  Turn turn_of = {TURNED ? turned.half_features : 1, 0, 0};
  LineStream<F> stream = {data0,    data1,    data2,   scales0, scales1,               scales2,
                          offsets0, offsets1, offsets2, heights, p.k, turn_of.half_features,
                          walk,     {},       {},      0};
  if (NORMED && group + index == 0) prefetch(weight, p.k * (VALUES == FLOAT ? 4 : 2));
  const float epsilon = NORMED ? eps : 0.0f;
  const uint row = lane / ROW_LANES;
  const uint start = min(walk.batch + walk.own, p.batches - 1);  // batch
  const uint first_pair = heights.first_row(heights.which(start), start) + row % BATCH_ROWS;
  if (TURNED && !FACTORED) turn_of.start(first_pair, speeds, factors);
  uint words[MOST_DEPTH][MOST_ROWS][F::WORDS];
  if (SETTLED) {
    reads_early();
    begin_lines(stream, words);
  }
  await_previous();
  // x is loaded first, since it is needed first: by a few simdgroups, if it is short.
  const uint pieces = p.steps * 32 * split * SHARERS;
  const uint loaders = min(pieces, threads) / 32;
  const bool loads = simdgroup < loaders;
  const Parts parts = {vectors, pieces / SHARERS};
  const Rows rows = {x, ADDED ? added : x, NORMED ? weight : x, GATED ? gated : x};
  Piece<F> piece;
  if (loads) piece.load(rows, units, index);
  if (TURNED)
    turn_of.position = WIDE ? static_cast<device const ulong*>(positions)[turned.position]
                            : ulong(static_cast<device const int*>(positions)[turned.position]);
  if (TURNED && FACTORED) turn_of.start(first_pair, speeds, factors);
  if (!SETTLED) begin_lines(stream, words);
  float factor = 1;
  if (NORMED) {
    float squares = loads ? piece.squares() : 0.0f;
    for (uint i = index + threads; i < pieces; i += threads) {
      Piece<F> more;
      more.load(rows, units, i);
      squares += more.squares();
    }
    squares = add_threads(squares, shared[0][0], loaders, simdgroup, lane);
    factor = 1.0f / sqrt(squares / p.k + epsilon);
  }
  for (uint i = index; loads;) {
    if (ADDED && group == 0) piece.store(total);
    piece.take(parts, factor);
    i += threads;
    if (i >= pieces) break;
    piece.load(rows, units, i);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sums[MOST_ROWS] = {};
  const bool adds = lane % ROW_LANES == 0;         // whether this lane has a row's sum
  const bool writes = adds && row < BATCH_ROWS && member == 0;
  uint turn = 0;
  while (walk.goes_on()) {
#pragma unroll
    for (uint d = 0; d < DEPTH; d++) {
      if (!walk.goes_on()) break;
      const uint unit = walk.unit(), batch = walk.batch + walk.own;
      const Part part = parts.get(unit);
#pragma unroll
      for (uint r = 0; r < ROWS; r++) {
        const float sum = F::add(sums[r], unit, words[d][r], part);
        sums[r] = EVEN || unit < units ? sum : sums[r];
      }
      if (stream.walk.goes_on()) stream.load(words[d]);
      if (!walk.advance()) continue;
      float sum = add_lanes(sums, lane);
      if (split > 1) {
        if (adds) shared[turn][simdgroup][row] = sum;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (adds && member == 0)
#pragma nounroll
          for (uint s = 1; s < split; s++) sum += shared[turn][simdgroup + s][row];
        turn ^= 1;
      }
      if (PAIRED) {
        const float4 both = as_stored(float4(sum, exchanged(sum, 16), 0, 0));
        sum = op::swiglu(both.x, both.y);
      }
      const uint which = heights.which(batch), at = heights.first_row(which, batch) + row;
      const bool exists = writes && batch < p.batches && at < heights.rows(which);
      device void* out = pick(which, out0, out1, out2);
      if (TURNED) {
        const float2 both = as_stored(float4(sum, exchanged(sum, 16), 0, 0)).xy;
        if (exists)
          turn_of.put_pair(out, at, both, pick(which, turned.turns[0], turned.turns[1], turned.turns[2]),
                           pick(which, turned.capacity[0], turned.capacity[1], turned.capacity[2]));
        if (walk.goes_on()) {
          const uint next = min(walk.batch + walk.own, p.batches - 1);
          turn_of.start(heights.first_row(heights.which(next), next) + row % BATCH_ROWS, speeds,
                        factors);
        }
      } else if (exists) {
        put(out, at, sum);
      }
#pragma unroll
      for (uint r = 0; r < ROWS; r++) sums[r] = 0;
    }
  }
}
