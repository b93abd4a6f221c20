// Products of one row with up to three quantized matrices. Each thread keeps its part of x in
// registers and reads the same part of many rows, in aligned words and several rows at a time.
//
// x is rounded to 16-bit integers with a scale for each unit, as on processors, and products of bytes
// are added four at a time where the GPU has an instruction for it.
//
// A reader says how a thread reads its values of a row:
//   Word              type of the words that the matrix is made of; blocks start at whole words
//   WORDS, VALUES     words and values of a unit
//   value(unit, w)    where the four values of x for the w-th word of bytes are: start and step
//   stride            words of a row of so many units
//   load              the words of a unit
//   times             product of a unit and the thread's part of x
#pragma once
#include "quant_schemes.h"

#if __has_include(<softmetal/dots>)
#include <softmetal/dots>
#define LBRX_DOTS
#endif

struct Lines {
  uint k;
  uint rows[3];    // of the matrices
  uint groups[2];  // threadgroups before those of the second and of the third matrix
};

constant uint BATCH [[function_constant(4)]];  // rows that a thread reads at a time
constant uint LINES [[function_constant(5)]];  // of a threadgroup
constant uint UNITS [[function_constant(6)]];  // that a thread reads of a row
constant bool ALIGNED [[function_constant(7)]];  // whether four values of x can be loaded at once
constant constexpr uint MOST_BATCH = 4, MOST_LINES = 128, MOST_UNITS = 4, MOST_SIMDGROUPS = 8;
// Rows whose sums a simdgroup keeps by lane before it adds the lanes, and what they are apart.
constant constexpr uint KEPT = 16, KEPT_WIDTH = 36;

// ---- x ----

template <bool A_SIGNED, bool B_SIGNED>
inline int dot4(uint a, uint b, int sum) {
#ifdef LBRX_DOTS
  return softmetal::dot4<A_SIGNED, B_SIGNED>(a, b, sum);
#else
  const int4 left = A_SIGNED ? int4(as_type<char4>(a)) : int4(as_type<uchar4>(a));
  const int4 right = B_SIGNED ? int4(as_type<char4>(b)) : int4(as_type<uchar4>(b));
  return sum + left.x * right.x + left.y * right.y + left.z * right.z + left.w * right.w;
#endif
}

inline float4 four_of(device const void* x, uint start) {
  if (ALIGNED && VALUES == HALF) return float4(static_cast<device const half4*>(x)[start / 4]);
  if (ALIGNED && VALUES == FLOAT) return static_cast<device const float4*>(x)[start / 4];
  return float4(element(VALUES, x, start), element(VALUES, x, start + 1),
                element(VALUES, x, start + 2), element(VALUES, x, start + 3));
}

// Neighbours, or every second one.
inline float4 four_in_steps(device const void* x, uint2 at) {
  if (at.y == 1) return four_of(x, at.x);
  const uint start = at.x / 8 * 8;
  const float4 low = four_of(x, start), high = four_of(x, start + 4);
  return at.x % 2 ? float4(low.yw, high.yw) : float4(low.xz, high.xz);
}

// Codes of a unit of x as bytes: 256 * high + low, and the sums of the even and of the odd words.
template <uint COUNT>
struct Part {
  uint high[COUNT], low[COUNT];
  float2 totals;
  float step;

  void take(thread const float4 (&values)[COUNT]) {
    float4 sizes = 0;
#pragma unroll
    for (uint w = 0; w < COUNT; w++) {
      // Magnitudes compare like their bits; NaN is above infinity.
      sizes = as_type<float4>(max(as_type<int4>(sizes), as_type<int4>(values[w]) & 0x7fffffff));
    }
    const int4 tops = as_type<int4>(sizes);
    const int top = max(max(tops.x, tops.y), max(tops.z, tops.w));
    const float largest = as_type<float>(top);
    // Codes are 0 if the scale would be denormal; NaN and infinity make the whole result NaN.
    const float inverse = largest < 1e-33f ? 0.0f : 32767 / largest;
    step = top >= 0x7f800000 ? NAN : largest / 32767;
    int sums[2] = {0, 0};
#pragma unroll
    for (uint w = 0; w < COUNT; w++) {
      const float4 scaled = values[w] * inverse;
      const int4 codes =  // `integer` rounds
          int4(integer(scaled.x), integer(scaled.y), integer(scaled.z), integer(scaled.w));
      high[w] = as_type<uint>(uchar4(codes >> 8));
      low[w] = as_type<uint>(uchar4(codes));
      sums[w % 2] += codes.x + codes.y + codes.z + codes.w;
    }
    totals = float2(sums[0], sums[1]) * step;
  }

  // The low and the high nibbles of words.
  float2 nibbles(thread const uint* words) const thread {
    int2 upper = 0, lower = 0;
#pragma unroll
    for (uint j = 0; j < COUNT / 2; j++) {
      const uint even = words[j] & 0x0f0f0f0fu, odd = words[j] >> 4 & 0x0f0f0f0fu;
      upper.x = dot4<false, true>(even, high[2 * j], upper.x);
      lower.x = dot4<false, false>(even, low[2 * j], lower.x);
      upper.y = dot4<false, true>(odd, high[2 * j + 1], upper.y);
      lower.y = dot4<false, false>(odd, low[2 * j + 1], lower.y);
    }
    return float2(upper * 256 + lower) * step;
  }

  // Signed bytes.
  float bytes(thread const uint* words) const thread {
    int upper = 0, lower = 0;
#pragma unroll
    for (uint j = 0; j < COUNT; j++) {
      upper = dot4<true, true>(words[j], high[j], upper);
      lower = dot4<true, false>(words[j], low[j], lower);
    }
    return float(upper * 256 + lower) * step;
  }
};

inline float half_of(uint bits) { return float(as_type<half>(ushort(bits))); }

// Words that start in the middle of others.
inline void shift_words(thread const uint* from, uint shift, thread uint (&to)[4]) {
#pragma unroll
  for (uint j = 0; j < 4; j++) to[j] = uint((ulong(from[j + 1]) << 32 | from[j]) >> shift);
}

// ---- readers ----

// Blocks of 18 bytes: those with odd numbers start in the middle of a word.
struct Lines4_0 {
  using Word = uint;
  static constant constexpr uint WORDS = 5, VALUES = 32;
  static uint2 value(uint unit, uint w) { return uint2(unit * 32 + w / 2 * 4 + w % 2 * 16, 1); }
  static uint stride(uint units) { return units * 18 / 4; }
  static void load(Weight, device const uint* row, uint, uint, uint unit, thread uint* words) {
    device const uint* from = row + unit * 18 / 4;
#pragma unroll
    for (uint i = 0; i < WORDS; i++) words[i] = from[i];
  }
  static float times(uint unit, thread const uint* words, thread const Part<8>& x) {
    uint codes[4];
    shift_words(words, unit % 2 * 16 + 16, codes);
    const float2 sums = x.nibbles(codes) - 8 * x.totals;
    return half_of(words[0] >> (unit % 2 * 16)) * (sums.x + sums.y);
  }
};

// Half a block of 34 bytes.
struct Lines8_0 {
  using Word = uint;
  static constant constexpr uint WORDS = 6, VALUES = 16;
  static uint2 value(uint unit, uint w) { return uint2(unit * 16 + w * 4, 1); }
  static uint stride(uint units) { return units * 17 / 4; }
  static void load(Weight, device const uint* row, uint, uint, uint unit, thread uint* words) {
    const uint block = unit / 2, odd = block % 2;
    device const uint* from = row + (block * 34 + 2) / 4 + unit % 2 * 4;
#pragma unroll
    for (uint i = 0; i < 4; i++) words[i] = from[i];
    words[4] = from[4 - odd];
    words[5] = reinterpret_cast<device const ushort*>(row)[block * 17];
  }
  static float times(uint unit, thread const uint* words, thread const Part<4>& x) {
    uint codes[4];
    shift_words(words, 16 - unit / 2 % 2 * 16, codes);
    return half_of(words[5]) * x.bytes(codes);
  }
};

// An eighth of a block of 144 bytes: 16 bytes of codes, whose low nibbles are 16 values of a group
// and whose high nibbles are those of the next group.
struct Lines4_K {
  using Word = uint4;
  static constant constexpr uint WORDS = 8, VALUES = 32;
  static uint2 value(uint unit, uint w) {
    return uint2(unit / 2 * 64 + unit % 2 * 16 + w / 2 * 4 + w % 2 * 32, 1);
  }
  static uint stride(uint units) { return units / 8 * 9; }
  static void load(Weight, device const uint4* row, uint, uint, uint unit, thread uint* words) {
    device const uint4* block = row + unit / 8 * 9;
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
    const uint low = head[1] >> shift & 0xffff, minima = head[2] >> shift & 0xffff;
    const uint high = head[3] >> shift & 0xffff;
    const uint2 early = uint2(low, minima) & 0x3f3f;
    const uint2 late = uint2((high & 0x0f0f) | (low >> 2 & 0x3030),
                             (high >> 4 & 0x0f0f) | (minima >> 2 & 0x3030));
    return select(late, early, bool2(p < 2));
  }
  static float times(uint unit, thread const uint* words, thread const Part<8>& x) {
    const float2 sums = x.nibbles(words);
    const uint2 six = pair(words + 4, unit % 8 / 2);
    const float scaled = fma(float(six.x & 255), sums.x, float(six.x >> 8) * sums.y);
    const float least = fma(float(six.y & 255), x.totals.x, float(six.y >> 8) * x.totals.y);
    return half_of(words[4]) * scaled - half_of(words[4] >> 16) * least;
  }
};

// 32 codes of four bits; scales and what is added are separate.
struct LinesAffine4 {
  using Word = uint4;
  static constant constexpr uint WORDS = 6, VALUES = 32;
  static uint2 value(uint unit, uint w) { return uint2(unit * 32 + w / 2 * 8 + w % 2, 2); }
  static uint stride(uint units) { return units; }
  static void load(Weight weight, device const uint4* row, uint number, uint units, uint unit,
                   thread uint* words) {
    const uint4 codes = row[unit];
#pragma unroll
    for (uint i = 0; i < 4; i++) words[i] = codes[i];
    const ulong group = ulong(number) * (units * 32 / GROUP) + unit * 32 / GROUP;
    words[4] = as_type<uint>(element(SCALES, weight.scales, group));
    words[5] = as_type<uint>(element(SCALES, weight.offsets, group));
  }
  static float times(uint unit, thread const uint* words, thread const Part<8>& x) {
    const float2 sums = x.nibbles(words);
    return fma(as_type<float>(words[4]), sums.x + sums.y,
               as_type<float>(words[5]) * (x.totals.x + x.totals.y));
  }
};

// ---- the kernel ----

// This thread's words of some rows; rows beyond the last repeat it.
template <typename F>
inline void load_lines(Weight weight, device const typename F::Word* data, uint first, uint end,
                       uint units, uint own, uint threads,
                       thread uint (&words)[MOST_BATCH][MOST_UNITS][F::WORDS]) {
#pragma unroll
  for (uint b = 0; b < BATCH; b++) {
    const uint row = min(first + b, end - 1);
    device const typename F::Word* from = data + ulong(row) * F::stride(units);
#pragma unroll
    for (uint u = 0; u < UNITS; u++)
      F::load(weight, from, row, units, min(own + u * threads, units - 1), words[b][u]);
  }
}

template <typename F>
inline void multiply_lines(thread const uint (&words)[MOST_BATCH][MOST_UNITS][F::WORDS],
                           thread const Part<F::VALUES / 4> (&own)[MOST_UNITS], uint start,
                           uint index, uint threads, uint units, threadgroup float* kept) {
#pragma unroll
  for (uint b = 0; b < BATCH; b++) {
    float sum = 0;
#pragma unroll
    for (uint u = 0; u < UNITS; u++) {
      const uint unit = start + u * threads + index;
      const float one = F::times(unit, words[b][u], own[u]);
      sum += unit < units ? one : 0.0f;
    }
    kept[b * KEPT_WIDTH] = sum;
  }
}

// Adds the lanes' sums of `count` rows, two lanes a row.
inline float add_lanes(threadgroup const float4* kept, uint lane, uint count) {
  threadgroup const float4* row = kept + (lane / 2 * KEPT_WIDTH + lane % 2 * 16) / 4;
  float4 sums = 0;
  if (lane / 2 < count) sums = row[0] + row[1] + row[2] + row[3];
  const float sum = sums.x + sums.y + sums.z + sums.w;
  return sum + simd_shuffle_xor(sum, 1);
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
    device const void* x [[buffer(12)]], constant Lines& p [[buffer(13)]],
    uint group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float parts[MOST_LINES][MOST_SIMDGROUPS];
  threadgroup float4 all_kept[MOST_SIMDGROUPS][KEPT * KEPT_WIDTH / 4];
  threadgroup float* kept = reinterpret_cast<threadgroup float*>(all_kept[simdgroup]) + lane;
  const uint which = uint(group >= p.groups[0]) + uint(group >= p.groups[1]);
  device const typename F::Word* data = which == 0 ? data0 : which == 1 ? data1 : data2;
  const Weight weight = {nullptr, which == 0 ? scales0 : which == 1 ? scales1 : scales2,
                         which == 0 ? offsets0 : which == 1 ? offsets1 : offsets2, nullptr};
  device void* out = which == 0 ? out0 : which == 1 ? out1 : out2;
  const uint first = (group - (which == 0 ? 0 : p.groups[which - 1])) * LINES;
  const uint end = min(first + LINES, p.rows[which]);
  const uint units = p.k / F::VALUES;
  for (uint start = 0; start < units; start += threads * UNITS) {
    uint words[MOST_BATCH][MOST_UNITS][F::WORDS], others[MOST_BATCH][MOST_UNITS][F::WORDS];
    load_lines<F>(weight, data, first, end, units, start + index, threads, words);
    Part<F::VALUES / 4> own[MOST_UNITS];
#pragma unroll
    for (uint u = 0; u < UNITS; u++) {
      const uint unit = start + u * threads + index;
      float4 values[F::VALUES / 4];
#pragma unroll
      for (uint w = 0; w < F::VALUES / 4; w++)
        values[w] = unit < units ? four_in_steps(x, F::value(unit, w)) : float4(0);
      own[u].take(values);
    }
    // Rows are under way while those before them are multiplied. After the last rows there are none:
    // the last one is read again, from the cache.
    for (uint line = 0; line < LINES; line += 2 * BATCH) {
      threadgroup float* here = kept + line % KEPT * KEPT_WIDTH;
      load_lines<F>(weight, data, first + line + BATCH, end, units, start + index, threads, others);
      multiply_lines<F>(words, own, start, index, threads, units, here);
      load_lines<F>(weight, data, first + line + 2 * BATCH, end, units, start + index, threads,
                    words);
      multiply_lines<F>(others, own, start, index, threads, units, here + BATCH * KEPT_WIDTH);
      const uint done = line % KEPT + 2 * BATCH;
      if (done == KEPT || line + 2 * BATCH == LINES) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        const float sum = add_lanes(all_kept[simdgroup], lane, done);
        threadgroup float& part = parts[line / KEPT * KEPT + lane / 2][simdgroup];
        if (lane % 2 == 0 && lane / 2 < done) part = start ? part + sum : sum;
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint line = index; first + line < end; line += threads) {
    float sum = 0;
    for (uint s = 0; s < (threads + 31) / 32; s++) sum += parts[line][s];
    put(out, first + line, sum);
  }
}
