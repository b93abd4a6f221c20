// Runs of 32 values of a quantized matrix, decoded by one thread.
#pragma once
#include "quant_schemes.h"

constant constexpr uint RUN = 2 * UNIT;

// Two units of values. They are written to threadgroup memory 16 bytes at a time.
template <typename T>
struct RunValues {
  alignas(16) T units[2][UNIT];

  static void copy(threadgroup T* to, thread const T* from) {
    *(threadgroup uint4*)to = *(thread const uint4*)from;
  }
  // The units begin at `first` and `second` of a line of a tile::Panel.
  template <typename P>
  void write(threadgroup T* panel, uint line, uint first, uint second) const {
    constexpr uint CHUNK = 16 / sizeof(T);
#pragma unroll
    for (uint i = 0; i < UNIT; i += CHUNK) {
      copy(panel + P::offset(line, first + i), units[0] + i);
      copy(panel + P::offset(line, second + i), units[1] + i);
    }
  }
};

// Which run of a quantized matrix: of a line of k values. Runs beyond the line are read as its last
// one, and decoded to zeros: branches would keep warpgroups from going on with their products.
struct RunPlace {
  uint line, run, k;
  bool inside;
};

// A reader first loads what it can without waiting for it, then decodes it.
//   Word              type that the matrix is declared with, whose alignment its buffer has
//   Raw               what it loads
//   place(run, i)     where in a line unit i of a run belongs
//   load, decode
// This one is for any codec: units 2 run and 2 run + 1 of a line, which may end between them.
template <typename C>
struct RunReader {
  using Word = uchar;
  struct Raw {};
  static uint place(uint run, uint i) { return run * RUN + i * UNIT; }
  static Raw load(Weight, RunPlace) { return {}; }
  template <typename T>
  static void decode(Raw, Weight weight, RunPlace at, thread RunValues<T>& values) {
    const uint units = C::elements() / UNIT;
#pragma unroll
    for (uint u = 0; u < 2; u++) {
      const uint wanted = at.run * 2 + u, unit = min(wanted, at.k / UNIT - 1);
      const Block block = block_at<C>(weight, ulong(at.line) * (at.k / C::elements()) + unit / units);
      const bool inside = at.inside && unit == wanted;
      const float scale = inside ? C::scale(block, unit % units) : 0.0f;
      const float offset = inside ? C::offset(block, unit % units) : 0.0f;
#pragma unroll
      for (uint i = 0; i < UNIT; i++)
        values.units[u][i] = T(scale * float(C::code(block, unit % units, i)) + offset);
    }
  }
};

// The low and the high nibbles of four words are a unit each.
template <typename T>
inline void decode_nibbles(uint4 words, float2 scales, float2 offsets, thread RunValues<T>& values) {
#pragma unroll
  for (uint i = 0; i < UNIT; i++) {
    const uint byte = words[i / 4] >> (i % 4 * 8);
    values.units[0][i] = T(fma(scales.x, float(byte & 15), offsets.x));
    values.units[1][i] = T(fma(scales.y, float(byte >> 4 & 15), offsets.y));
  }
}

// Blocks of 18 or 34 bytes are read in words. Those with odd numbers begin in the middle of one, the
// others end there, where the matrix may end too.
template <uint WORDS>
struct BlockWords {
  uint words[WORDS];

  static uint shift(ulong block) { return block % 2 * 16; }
  void load(device const uchar* data, ulong block) {
    device const uint* from = (device const uint*)data + block * (WORDS * 4 - 2) / 4;
#pragma unroll
    for (uint i = 0; i + 1 < WORDS; i++) words[i] = from[i];
    const uint last = ((device const ushort*)from)[2 * WORDS - 2];
    words[WORDS - 1] = last | uint(((device const ushort*)from)[2 * WORDS - 2 + block % 2]) << 16;
  }
  float scale(ulong block) const { return float(as_type<half>(ushort(words[0] >> shift(block)))); }
  // Word i of the codes, which follow the scale.
  uint codes(ulong block, uint i) const {
    return uint((ulong(words[i + 1]) << 32 | words[i]) >> (shift(block) + 16));
  }
};

// A block of 32 values with a scale, in so many words.
template <uint WORDS>
struct RunOfBlock {
  using Word = uint;
  using Raw = BlockWords<WORDS>;
  static uint place(uint run, uint i) { return run * RUN + i * UNIT; }
  static ulong block(RunPlace at) { return ulong(at.line) * (at.k / RUN) + at.run; }
  static float scale(Raw raw, RunPlace at) { return at.inside ? raw.scale(block(at)) : 0.0f; }
  static Raw load(Weight weight, RunPlace at) {
    Raw raw;
    raw.load(weight.data, block(at));
    return raw;
  }
};

template <>
struct RunReader<Q4_0> : RunOfBlock<5> {
  template <typename T>
  static void decode(Raw raw, Weight, RunPlace at, thread RunValues<T>& values) {
    const ulong number = block(at);
    const uint4 codes(raw.codes(number, 0), raw.codes(number, 1), raw.codes(number, 2),
                      raw.codes(number, 3));
    const float d = scale(raw, at);
    decode_nibbles(codes, float2(d), float2(-8 * d), values);
  }
};

template <>
struct RunReader<Q8_0> : RunOfBlock<9> {
  template <typename T>
  static void decode(Raw raw, Weight, RunPlace at, thread RunValues<T>& values) {
    const float d = scale(raw, at);
#pragma unroll
    for (uint i = 0; i < RUN; i++) {
      const char code = char(raw.codes(block(at), i / 4) >> (i % 4 * 8) & 255);
      values.units[i / UNIT][i % UNIT] = T(d * float(code));
    }
  }
};

// An eighth of a block of 144 bytes: 16 bytes of codes, whose low nibbles are 16 values of a group
// and whose high nibbles are those of the next group.
template <>
struct RunReader<Q4_K> {
  using Word = uint4;
  struct Raw {
    uint4 head, codes;
  };
  static uint place(uint run, uint i) { return run / 2 * 64 + run % 2 * UNIT + i * RUN; }
  static Raw load(Weight weight, RunPlace at) {
    const ulong block = ulong(at.line) * (at.k / 256) + at.run / 8;
    device const uint4* from = (device const uint4*)weight.data + block * 9;
    return {from[0], from[1 + at.run % 8]};
  }
  // Scales and minima have six bits each, for groups 2 pair and 2 pair + 1.
  template <typename T>
  static void decode(Raw raw, Weight, RunPlace at, thread RunValues<T>& values) {
    const uint pair = at.run % 8 / 2, shift = pair % 2 * 16;
    const uint low = raw.head[1] >> shift, minima = raw.head[2] >> shift, high = raw.head[3] >> shift;
    const uint2 six = pair < 2 ? uint2(low, minima) & 0x3f3f
                               : uint2((high & 0x0f0f) | (low >> 2 & 0x3030),
                                       (high >> 4 & 0x0f0f) | (minima >> 2 & 0x3030));
    const float2 both = at.inside ? float2(as_type<half2>(raw.head[0])) : float2(0.0f);
    decode_nibbles(raw.codes, both.x * float2(six.x & 255, six.x >> 8),
                   -both.y * float2(six.y & 255, six.y >> 8), values);
  }
};
