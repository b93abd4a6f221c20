// Products of one row with up to three quantized matrices. Each thread keeps its part of x in
// registers and reads the same part of many rows, in aligned words and several rows at a time.
//
// A reader says how a thread reads its values of a row:
//   Word              type of the words that the matrix is made of; blocks start at whole words
//   WORDS, VALUES     words and values of a unit, UNITS units of a thread in each row
//   value(unit, i)    where in its row the i-th value of a unit is, in the order of `times`
//   factor(i)         power of two that the i-th value of x is multiplied by
//   stride            words of a row of so many units
//   load              the words of a unit
//   times             product of a unit and the thread's part of x
#pragma once
#include "quant_schemes.h"

struct Lines {
  uint k;
  uint magic;      // the bits of 2^23: what compilers do not know is combined in one instruction
  uint rows[3];    // of the matrices
  uint groups[2];  // threadgroups before those of the second and of the third matrix
};

constant uint BATCH [[function_constant(4)]];  // rows that a thread reads at a time
constant uint TILE [[function_constant(5)]];   // rows between sums over a threadgroup
constant uint TILES [[function_constant(6)]];  // of a threadgroup
constant uint UNITS [[function_constant(7)]];  // that a thread reads of a row
constant constexpr uint MOST_BATCH = 4, MOST_TILE = 8, MOST_UNITS = 4, MOST_THREADS = 512;
constant constexpr uint ADDING = 16;  // threads that add up a row

// ---- integers as floats, by the mantissa of a sum ----

constant constexpr float MAGIC = 8388608.0f;

// Nibbles stay where they are in a word: their values are powers of 16 times the codes less `zero`,
// and the factors of x are the inverse powers. Even nibbles are added to sums.x, odd ones to sums.y.
template <uint PLACE>
inline float nibble_at(uint word, uint magic, float zero) {
  constexpr float power = 1u << (4 * PLACE);
  return as_type<float>((word & (15u << (4 * PLACE))) | magic) - (MAGIC + zero * power);
}

inline float2 add_nibbles(uint word, uint magic, float zero, thread const float* x, float2 sums) {
  const uint rest = word >> 12;  // 16 would be a bit field, which takes one more instruction
  sums.x = fma(nibble_at<0>(word, magic, zero), x[0], sums.x);
  sums.y = fma(nibble_at<1>(word, magic, zero), x[1], sums.y);
  sums.x = fma(nibble_at<2>(word, magic, zero), x[2], sums.x);
  sums.y = fma(nibble_at<3>(word, magic, zero), x[3], sums.y);
  sums.x = fma(nibble_at<1>(rest, magic, zero), x[4], sums.x);
  sums.y = fma(nibble_at<2>(rest, magic, zero), x[5], sums.y);
  sums.x = fma(nibble_at<3>(rest, magic, zero), x[6], sums.x);
  sums.y = fma(nibble_at<4>(rest, magic, zero), x[7], sums.y);
  return sums;
}

inline float nibble_factor(uint i) {
  const uint place = i % 8 < 4 ? i % 8 : i % 8 - 3;
  return 1.0f / float(1u << (4 * place));
}

inline float half_of(uint bits) { return float(as_type<half>(ushort(bits))); }

// ---- readers ----

// Blocks of 18 bytes: those with odd numbers start in the middle of a word.
struct Lines4_0 {
  using Word = uint;
  static constant constexpr uint WORDS = 5, VALUES = 32;
  static constant constexpr bool SHIFTED = false;
  // Nibbles of a word are the values 4 j, 4 j + 16, 4 j + 1, ...
  static uint value(uint unit, uint i) { return unit * 32 + i / 8 * 4 + i % 8 / 2 + i % 2 * 16; }
  static float factor(uint i) { return nibble_factor(i); }
  static uint stride(uint units) { return units * 18 / 4; }
  static void load(Weight, device const uint* row, uint, uint, uint unit, thread uint* w) {
    device const uint* from = row + unit * 18 / 4;
    for (uint i = 0; i < WORDS; i++) w[i] = from[i];
  }
  static float times(uint unit, uint magic, thread const uint* w, thread const float* x,
                     float2) {
    const uint shift = unit % 2 * 16 + 16;
    float2 sums = 0;
    for (uint j = 0; j < 4; j++) {
      const uint codes = uint((ulong(w[j + 1]) << 32 | w[j]) >> shift);
      sums = add_nibbles(codes, magic, 8, x + 8 * j, sums);
    }
    return half_of(w[0] >> (unit % 2 * 16)) * (sums.x + sums.y);
  }
};

// Half a block of 34 bytes.
struct Lines8_0 {
  using Word = uint;
  static constant constexpr uint WORDS = 6, VALUES = 16;
  static constant constexpr bool SHIFTED = false;
  static uint value(uint unit, uint i) { return unit * 16 + i; }
  static float factor(uint) { return 1; }
  static uint stride(uint units) { return units * 17 / 4; }
  static void load(Weight, device const uint* row, uint, uint, uint unit, thread uint* w) {
    const uint block = unit / 2, odd = block % 2;
    device const uint* from = row + (block * 34 + 2) / 4 + unit % 2 * 4;
    for (uint i = 0; i < 4; i++) w[i] = from[i];
    w[4] = from[4 - odd];
    w[5] = reinterpret_cast<device const ushort*>(row)[block * 17];
  }
  static float times(uint unit, uint magic, thread const uint* w, thread const float* x,
                     float2) {
    const uint shift = 16 - unit / 2 % 2 * 16;
    float sum = 0;
    for (uint j = 0; j < 4; j++) {
      const uint codes = uint((ulong(w[j + 1]) << 32 | w[j]) >> shift) ^ 0x80808080u;
      for (uint i = 0; i < 4; i++) {
        const float code = as_type<float>((codes >> (8 * i) & 255) | magic) - (MAGIC + 128);
        sum = fma(code, x[4 * j + i], sum);
      }
    }
    return half_of(w[5]) * sum;
  }
};

// An eighth of a block of 144 bytes: 16 bytes of codes, whose low nibbles are 16 values of a group
// and whose high nibbles are those of the next group.
struct Lines4_K {
  using Word = uint4;
  static constant constexpr uint WORDS = 8, VALUES = 32;
  static constant constexpr bool SHIFTED = true;
  static uint value(uint unit, uint i) {
    return unit / 2 * 64 + unit % 2 * 16 + i / 8 * 4 + i % 8 / 2 + i % 2 * 32;
  }
  static float factor(uint i) { return nibble_factor(i); }
  static uint stride(uint units) { return units / 8 * 9; }
  static void load(Weight, device const uint4* row, uint, uint, uint unit, thread uint* w) {
    device const uint4* block = row + unit / 8 * 9;
    const uint4 head = block[0], codes = block[1 + unit % 8];
    for (uint i = 0; i < 4; i++) {
      w[i] = codes[i];
      w[4 + i] = head[i];
    }
  }
  // Six bits each, for groups 2 p and 2 p + 1: scales in the lower bytes, minima in the upper.
  static uint2 pair(thread const uint* head, uint p) {
    const uint shift = p % 2 * 16;
    const uint low = head[1] >> shift & 0xffff, minima = head[2] >> shift & 0xffff;
    const uint high = head[3] >> shift & 0xffff;
    const uint2 early = uint2(low, minima) & 0x3f3f;
    const uint2 late = uint2((high & 0x0f0f) | (low >> 2 & 0x3030),
                             (high >> 4 & 0x0f0f) | (minima >> 2 & 0x3030));
    return select(late, early, bool2(p < 2));
  }
  static float times(uint unit, uint magic, thread const uint* w, thread const float* x,
                     float2 totals) {
    float2 sums = 0;
    for (uint j = 0; j < 4; j++) sums = add_nibbles(w[j], magic, 0, x + 8 * j, sums);
    const uint2 six = pair(w + 4, unit % 8 / 2);
    const float scaled = fma(float(six.x & 255), sums.x, float(six.x >> 8) * sums.y);
    const float least = fma(float(six.y & 255), totals.x, float(six.y >> 8) * totals.y);
    return half_of(w[4]) * scaled - half_of(w[4] >> 16) * least;
  }
};

// 32 codes of four bits; scales and what is added are separate.
struct LinesAffine4 {
  using Word = uint4;
  static constant constexpr uint WORDS = 6, VALUES = 32;
  static constant constexpr bool SHIFTED = true;
  static uint value(uint unit, uint i) { return unit * 32 + i; }
  static float factor(uint i) { return nibble_factor(i); }
  static uint stride(uint units) { return units; }
  static void load(Weight weight, device const uint4* row, uint number, uint units, uint unit,
                   thread uint* w) {
    const uint4 codes = row[unit];
    for (uint i = 0; i < 4; i++) w[i] = codes[i];
    const ulong group = ulong(number) * (units * 32 / GROUP) + unit * 32 / GROUP;
    w[4] = as_type<uint>(element(SCALES, weight.scales, group));
    w[5] = as_type<uint>(element(SCALES, weight.offsets, group));
  }
  static float times(uint unit, uint magic, thread const uint* w, thread const float* x,
                     float2 totals) {
    float2 sums = 0;
    for (uint j = 0; j < 4; j++) sums = add_nibbles(w[j], magic, 0, x + 8 * j, sums);
    return fma(as_type<float>(w[4]), sums.x + sums.y, as_type<float>(w[5]) * (totals.x + totals.y));
  }
};

// ---- the kernel ----

// This thread's words of some rows; rows beyond the last repeat it.
template <typename F>
inline void load_lines(Weight weight, device const typename F::Word* data, uint first, uint rows,
                       uint units, uint own, uint threads,
                       thread uint (&words)[MOST_BATCH][MOST_UNITS][F::WORDS]) {
#pragma unroll
  for (uint b = 0; b < BATCH; b++) {
    const uint row = min(first + b, rows - 1);
    device const typename F::Word* from = data + ulong(row) * F::stride(units);
#pragma unroll
    for (uint u = 0; u < UNITS; u++)
      F::load(weight, from, row, units, min(own + u * threads, units - 1), words[b][u]);
  }
}

template <typename F>
inline void multiply_lines(thread const uint (&words)[MOST_BATCH][MOST_UNITS][F::WORDS],
                           thread const float (&own)[MOST_UNITS][F::VALUES],
                           thread const float2 (&totals)[MOST_UNITS], uint magic, uint start,
                           uint index, uint threads, uint units,
                           threadgroup float (*parts)[MOST_THREADS]) {
#pragma unroll
  for (uint b = 0; b < BATCH; b++) {
    float sum = start ? parts[b][index] : 0.0f;
#pragma unroll
    for (uint u = 0; u < UNITS; u++) {
      const uint unit = start + u * threads + index;
      const float one = F::times(unit, magic, words[b][u], own[u], totals[u]);
      sum += unit < units ? one : 0.0f;
    }
    parts[b][index] = sum;
  }
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
    uint threads [[threads_per_threadgroup]]) {
  threadgroup float parts[MOST_TILE][MOST_THREADS];
  const uint which = uint(group >= p.groups[0]) + uint(group >= p.groups[1]);
  device const typename F::Word* data = which == 0 ? data0 : which == 1 ? data1 : data2;
  const Weight weight = {nullptr, which == 0 ? scales0 : which == 1 ? scales1 : scales2,
                         which == 0 ? offsets0 : which == 1 ? offsets1 : offsets2, nullptr};
  device void* out = which == 0 ? out0 : which == 1 ? out1 : out2;
  group -= which == 0 ? 0 : p.groups[which - 1];
  const uint units = p.k / F::VALUES, span = threads * UNITS, magic = p.magic;
  const uint end = min((group + 1) * TILES * TILE, p.rows[which]);
  float own[MOST_UNITS][F::VALUES];
  float2 totals[MOST_UNITS];
  uint words[MOST_BATCH][MOST_UNITS][F::WORDS];
  for (uint tile = 0; tile < TILES; tile++) {
    const uint first = (group * TILES + tile) * TILE;
    if (first >= end) break;
    for (uint start = 0; start < units; start += span) {
      const bool fresh = units > span || tile == 0;
      if (fresh) {
#pragma unroll
        for (uint u = 0; u < UNITS; u++) {
          const uint unit = start + u * threads + index;
          totals[u] = 0;
#pragma unroll
          for (uint i = 0; i < F::VALUES; i++) {
            const float value = unit < units ? element(VALUES, x, F::value(unit, i)) : 0.0f;
            own[u][i] = value * F::factor(i);
            totals[u][i % 2] += value;
          }
        }
        load_lines<F>(weight, data, first, end, units, start + index, threads, words);
      }
      // Rows are under way while those before them are multiplied. Of a chunk's last rows there is
      // no next: they are read again, from the cache.
      for (uint line = 0; line < TILE; line += 2 * BATCH) {
        uint others[MOST_BATCH][MOST_UNITS][F::WORDS];
        load_lines<F>(weight, data, first + line + BATCH, end, units, start + index, threads, others);
        multiply_lines<F>(words, own, totals, magic, start, index, threads, units, parts + line);
        const uint next = units <= span || line + 2 * BATCH < TILE ? 2 * BATCH : 0;
        load_lines<F>(weight, data, first + line + next, end, units, start + index, threads, words);
        multiply_lines<F>(others, own, totals, magic, start, index, threads, units,
                          parts + line + BATCH);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint line = index / ADDING; line < TILE; line += threads / ADDING) {
      float sum = 0;
      for (uint i = index % ADDING; i < threads; i += ADDING) sum += parts[line][i];
#pragma unroll
      for (uint step = ADDING / 2; step; step /= 2) sum += simd_shuffle_xor(sum, step);
      if (index % ADDING == 0 && first + line < end) put(out, first + line, sum);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}
