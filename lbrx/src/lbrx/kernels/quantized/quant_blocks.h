// Blocks of quantized values: their layout, and codecs of GGUF's basic types and K types.
//
// A codec reads a block in units of 16 values, which share a scale: value = scale * code + offset.
//   ELEMENTS, BYTES   of a block
//   PAIRED            whether units 2 i and 2 i + 1 share scale and offset
//   SHIFTED           whether there is an offset
//   scale(block, unit), offset(block, unit), code(block, unit, i)
// Loops over i vectorise if a pointer is advanced first and then indexed by i alone.
#pragma once
#include "records/quant_blocks.h"
using namespace metal;

constant constexpr uint UNIT = 16;

// The numbers of element types.
constant constexpr uint FLOAT = 0, HALF = 1, BFLOAT = 2;

// The integer that x is, of magnitude below 2^22, from the low bits of a sum. A conversion would
// saturate, which takes several instructions on processors.
inline int integer(float x) { return as_type<int>(x + 12582912.0f) - 0x4b400000; }

inline float element(uint type, device const void* from, ulong i) {
  if (type == HALF) return float(static_cast<device const half*>(from)[i]);
  if (type == BFLOAT) return as_type<float>(uint(static_cast<device const ushort*>(from)[i]) << 16);
  return static_cast<device const float*>(from)[i];
}

inline void put(device void* to, ulong i, float x) {
  if (VALUES == HALF) static_cast<device half*>(to)[i] = half(x);
  else if (VALUES == BFLOAT) static_cast<device bfloat*>(to)[i] = bfloat(x);
  else static_cast<device float*>(to)[i] = x;
}

// A quantized matrix. Members that a scheme does not have are not read.
struct Weight {
  device const uchar* data;
  device const void* scales;
  device const void* offsets;   // zero points or biases
  device const char* book;      // the points of an IQ type's code book
};

struct Block {
  device const uchar* data;
  Weight weight;
  ulong index;
};

template <typename C>
inline Block block_at(Weight weight, ulong index) {
  return {weight.data + index * C::bytes(), weight, index};
}

// Blocks are aligned to two bytes only.
inline ushort short_at(device const uchar* from) { return *reinterpret_cast<device const ushort*>(from); }
inline uint word_at(device const uchar* from) { return short_at(from) | uint(short_at(from + 2)) << 16; }
inline float half_at(device const uchar* from) { return float(*reinterpret_cast<device const half*>(from)); }

template <uint E, uint B, bool P, bool S>
struct Codec {
  static constant constexpr bool PAIRED = P, SHIFTED = S;
  static constant constexpr bool NEIGHBOURS = false;  // whether `neighbours` reads a byte's two
  static uint elements() { return E; }
  static uint bytes() { return B; }
  static float offset(Block, uint) { return 0; }
  static short2 neighbours(Block, uint, uint) { return 0; }
};

// ---- 32 values with a scale, and a minimum in those called *_1 ----

inline short nibble(device const uchar* from, uint unit, uint i) { return (from[i] >> (4 * unit)) & 15; }
inline short fifth_bit(device const uchar* from, uint unit, uint i) {
  return ((word_at(from) >> (unit * UNIT + i)) & 1) << 4;
}

struct Q4_0 : Codec<32, 18, true, false> {
  static float scale(Block b, uint) { return half_at(b.data); }
  static short code(Block b, uint unit, uint i) { return nibble(b.data + 2, unit, i) - 8; }
};

struct Q4_1 : Codec<32, 20, true, true> {
  static float scale(Block b, uint) { return half_at(b.data); }
  static float offset(Block b, uint) { return half_at(b.data + 2); }
  static short code(Block b, uint unit, uint i) { return nibble(b.data + 4, unit, i); }
};

struct Q5_0 : Codec<32, 22, true, false> {
  static float scale(Block b, uint) { return half_at(b.data); }
  static short code(Block b, uint unit, uint i) {
    return (nibble(b.data + 6, unit, i) | fifth_bit(b.data + 2, unit, i)) - 16;
  }
};

struct Q5_1 : Codec<32, 24, true, true> {
  static float scale(Block b, uint) { return half_at(b.data); }
  static float offset(Block b, uint) { return half_at(b.data + 2); }
  static short code(Block b, uint unit, uint i) {
    return nibble(b.data + 8, unit, i) | fifth_bit(b.data + 4, unit, i);
  }
};

struct Q8_0 : Codec<32, 34, true, false> {
  static float scale(Block b, uint) { return half_at(b.data); }
  static short code(Block b, uint unit, uint i) { return char((b.data + 2 + unit * UNIT)[i]); }
};

struct Q1_0 : Codec<128, 18, true, false> {
  static float scale(Block b, uint) { return half_at(b.data); }
  static short code(Block b, uint unit, uint i) {
    return 2 * ((short_at(b.data + 2 + 2 * unit) >> i) & 1) - 1;
  }
};

// ---- 256 values in groups, whose scales are quantized too ----

// Two bits of 32 bytes after another: the first 32 values are the lowest bits.
inline short two_bits(device const uchar* from, uint unit, uint i) {
  from += unit / 8 * 32 + unit % 2 * UNIT;
  return (from[i] >> (unit % 8 / 2 * 2)) & 3;
}
inline short high_bit(device const uchar* from, uint unit, uint i) {
  from += unit % 2 * UNIT;
  return (from[i] >> (unit / 2)) & 1;
}
inline short four_bits(device const uchar* from, uint unit, uint i) {
  from += unit / 4 * 32 + unit % 2 * UNIT;
  return (from[i] >> (unit % 4 / 2 * 4)) & 15;
}

struct Q2_K : Codec<256, 84, false, true> {
  static float scale(Block b, uint unit) { return half_at(b.data + 80) * float(b.data[unit] & 15); }
  static float offset(Block b, uint unit) { return -(half_at(b.data + 82) * float(b.data[unit] >> 4)); }
  static short code(Block b, uint unit, uint i) { return two_bits(b.data + 16, unit, i); }
};

struct Q3_K : Codec<256, 110, false, false> {
  static float scale(Block b, uint unit) {
    device const uchar* packed = b.data + 96;
    const uint low = (packed[unit % 8] >> (unit / 8 * 4)) & 15;
    const uint high = (packed[8 + unit % 4] >> (unit / 4 * 2)) & 3;
    return half_at(b.data + 108) * float(int(low | high << 4) - 32);
  }
  static short code(Block b, uint unit, uint i) {
    return (two_bits(b.data + 32, unit, i) | high_bit(b.data, unit, i) << 2) - 4;
  }
};

// Of eight scales and eight minima of six bits in twelve bytes: which = 0 is a scale, 4 a minimum.
inline float six_bits(device const uchar* packed, uint group, uint which) {
  if (group < 4) return packed[which + group] & 63;
  const uint low = packed[4 + group] >> which & 15;
  return low | packed[which + group - 4] >> 6 << 4;
}

template <uint BYTES, bool FIVE>
struct SixBitScales : Codec<256, BYTES, true, true> {
  static float scale(Block b, uint unit) { return half_at(b.data) * six_bits(b.data + 4, unit / 2, 0); }
  static float offset(Block b, uint unit) {
    return -(half_at(b.data + 2) * six_bits(b.data + 4, unit / 2, 4));
  }
  static short code(Block b, uint unit, uint i) {
    if (!FIVE) return four_bits(b.data + 16, unit, i);
    return four_bits(b.data + 48, unit, i) | high_bit(b.data + 16, unit, i) << 4;
  }
};
using Q4_K = SixBitScales<144, false>;
using Q5_K = SixBitScales<176, true>;

struct Q6_K : Codec<256, 210, false, false> {
  static float scale(Block b, uint unit) { return half_at(b.data + 208) * float(char((b.data + 192)[unit])); }
  static short code(Block b, uint unit, uint i) {
    device const uchar* from = b.data + unit / 8 * 64 + unit % 4 * UNIT;
    const short low = (from[i] >> (unit % 8 / 4 * 4)) & 15;
    return (low | two_bits(b.data + 128, unit, i) << 4) - 32;
  }
};

struct Q8_K : Codec<256, 292, true, false> {
  static float scale(Block b, uint) { return *reinterpret_cast<device const float*>(b.data); }
  static short code(Block b, uint unit, uint i) { return char((b.data + 4 + unit * UNIT)[i]); }
};

// ---- groups with separate scales: the codes of a row are one stream of bits ----

template <uint BITS>
inline short stream_bits(device const uchar* from, uint unit, uint i) {
  if (BITS == 8) return (from + unit * UNIT)[i];
  from += unit * 2 * BITS;
  const uint bit = i * BITS, last = 2 * BITS - 1;
  const uint two = from[bit / 8] | uint(from[min(bit / 8 + 1, last)]) << 8;
  return (two >> (bit % 8)) & ((1 << BITS) - 1);
}

// Of 32 values the two in byte i, less what stands for zero.
inline short2 two_nibbles(device const uchar* from, uint run, uint i, short zero) {
  const uchar both = (from + run * UNIT)[i];
  return short2((both & 15) - zero, (both >> 4) - zero);
}

template <uint BITS, bool S>
struct Stream : Codec<0, 0, true, S> {
  static constant constexpr bool NEIGHBOURS = BITS == 4;
  static uint elements() { return GROUP; }
  static uint bytes() { return GROUP * BITS / 8; }
  static float scale(Block b, uint) { return element(SCALES, b.weight.scales, b.index); }
};

template <uint BITS>
struct Symmetric : Stream<BITS, false> {
  static short code(Block b, uint unit, uint i) {
    return stream_bits<BITS>(b.data, unit, i) - (1 << (BITS - 1));
  }
  static short2 neighbours(Block b, uint run, uint i) { return two_nibbles(b.data, run, i, 8); }
};

// Zero points are codes, or products would not fit.
template <uint BITS>
struct Asymmetric : Stream<BITS, false> {
  static short zero(Block b) { return static_cast<device const uchar*>(b.weight.offsets)[b.index]; }
  static short code(Block b, uint unit, uint i) { return stream_bits<BITS>(b.data, unit, i) - zero(b); }
  static short2 neighbours(Block b, uint run, uint i) { return two_nibbles(b.data, run, i, zero(b)); }
};

template <uint BITS>
struct Affine : Stream<BITS, true> {
  static float offset(Block b, uint) { return element(SCALES, b.weight.offsets, b.index); }
  static short code(Block b, uint unit, uint i) { return stream_bits<BITS>(b.data, unit, i); }
  static short2 neighbours(Block b, uint run, uint i) { return two_nibbles(b.data, run, i, 0); }
};
