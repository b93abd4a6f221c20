// Codecs whose codes stand for entries of a table of sixteen, ternary digits or a code book.
#pragma once
#include "quant_blocks.h"

// ---- tables of sixteen ----
//
// Polynomials within 0.5 of the entries, then rounded: lookups in a table in memory would not
// vectorise.

// -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
inline short uneven(short code) {
  const float t = float(code) - 7.5f;
  float y = fma(1.44791e-4f, t, 1.084358e-3f);
  y = fma(y, t, 0.06978527f);
  y = fma(y, t, -0.11349816f);
  y = fma(y, t, 11.61645f);
  return short(integer(rint(fma(y, t, -4.417675f))));
}

// Twice the value of an E2M1 code, which is an integer (0 1 2 3 4 6 8 12, and negative); scales are
// halved.
inline short doubled(short code) {
  const float t = code & 7;
  const float y = fma(fma(fma(0.05238095f, t, -0.3714286f), t, 1.747619f), t, -0.2142857f);
  return short(integer(rint(y))) * short(1 - (code >> 2 & 2));
}

// 2 ** (e - 128), below 2 ** -126 without the exponent's bits.
inline float half_power(uint e) { return as_type<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// E4M3 with a sign and NaN, as float: its exponent counts from 7.
inline float e4m3(uint stored) {
  const uint exponent = stored >> 3 & 15, mantissa = stored & 7;
  const float normal = as_type<float>((exponent + 120) << 23 | mantissa << 20);
  const float small = float(mantissa) / 512;
  const float size = (stored & 127) == 127 ? NAN : exponent ? normal : small;
  return stored & 128 ? -size : size;
}

struct IQ4_NL : Codec<32, 18, true, false> {
  static float scale(Block b, uint) { return half_at(b.data); }
  static short code(Block b, uint unit, uint i) { return uneven(nibble(b.data + 2, unit, i)); }
};

struct IQ4_XS : Codec<256, 136, true, false> {
  static float scale(Block b, uint unit) {
    const uint group = unit / 2;
    const uint low = b.data[4 + group / 2] >> (group % 2 * 4) & 15;
    const uint high = short_at(b.data + 2) >> (group * 2) & 3;
    return half_at(b.data) * float(int(low | high << 4) - 32);
  }
  static short code(Block b, uint unit, uint i) {
    return uneven(nibble(b.data + 8 + unit / 2 * UNIT, unit % 2, i));
  }
};

struct MXFP4 : Codec<32, 17, true, false> {
  static float scale(Block b, uint) { return half_power(b.data[0]); }
  static short code(Block b, uint unit, uint i) { return doubled(nibble(b.data + 1, unit, i)); }
};

// Its scales are unsigned, and NaN counts as 0.
struct NVFP4 : Codec<64, 36, false, false> {
  static float scale(Block b, uint unit) {
    const uint stored = b.data[unit] & 127;
    return b.data[unit] == 127 ? 0.0f : stored == 127 ? 240.0f : 0.5f * e4m3(stored);
  }
  static short code(Block b, uint unit, uint i) {
    return doubled(nibble(b.data + 4 + unit * 8, i / 8, i % 8));
  }
};

inline uint byte_scale(Block b) { return static_cast<device const uchar*>(b.weight.scales)[b.index]; }

// MLX's: a byte's two values are neighbours.
struct MlxMxfp4 : Codec<32, 16, true, false> {
  static constant constexpr bool NEIGHBOURS = true;
  static float scale(Block b, uint) { return half_power(byte_scale(b)); }
  static short code(Block b, uint unit, uint i) { return doubled(stream_bits<4>(b.data, unit, i)); }
  static short2 neighbours(Block b, uint run, uint i) {
    const short2 codes = two_nibbles(b.data, run, i, 0);
    return short2(doubled(codes.x), doubled(codes.y));
  }
};

struct MlxNvfp4 : Codec<16, 8, false, false> {
  static float scale(Block b, uint) { return 0.5f * e4m3(byte_scale(b)); }
  static short code(Block b, uint unit, uint i) { return doubled(stream_bits<4>(b.data, unit, i)); }
};

// Its values are not integers, so integer kernels do not support it.
struct MlxMxfp8 : Codec<32, 32, true, false> {
  static float scale(Block b, uint) { return 2 * half_power(byte_scale(b)); }
  static float code(Block b, uint unit, uint i) { return e4m3(b.data[unit * UNIT + i]); }
};

// ---- of checkpoints: a float scale for each group ----

template <uint BITS, bool P>
struct Scaled : Codec<0, 0, P, false> {
  static uint elements() { return GROUP; }
  static uint bytes() { return GROUP * BITS / 8; }
  static float scale(Block b, uint) { return element(SCALES, b.weight.scales, b.index); }
};

struct E4M3 : Scaled<8, true> {
  static float code(Block b, uint unit, uint i) { return e4m3((b.data + unit * UNIT)[i]); }
};

struct E2M1 : Scaled<4, false> {
  static float scale(Block b, uint) { return 0.5f * element(SCALES, b.weight.scales, b.index); }
  static short code(Block b, uint unit, uint i) { return doubled(stream_bits<4>(b.data, unit, i)); }
};

// bitsandbytes': a byte's first value is in its high half, and the points are any floats.
constant constexpr float NF4_POINTS[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
    -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
constant constexpr float FP4_POINTS[8] = {
    0.0f, 0.005208333333333333f, 0.6666666666666666f, 1.0f, 1.0f / 3, 0.5f, 1.0f / 6, 0.25f};

inline uint high_first(Block b, uint unit, uint i) {
  return (b.data + unit * 8)[i / 2] >> (4 - i % 2 * 4) & 15;
}
struct NF4 : Scaled<4, true> {
  static float code(Block b, uint unit, uint i) { return NF4_POINTS[high_first(b, unit, i)]; }
};
struct FP4 : Scaled<4, true> {
  static float code(Block b, uint unit, uint i) {
    const uint stored = high_first(b, unit, i);
    const float size = FP4_POINTS[stored & 7];
    return stored & 8 ? -size : size;
  }
};

// ---- ternary digits ----

// Five digits per byte, as a fraction of 256: multiplying by three moves the first digit out.
struct TQ1_0 : Codec<256, 54, true, false> {
  static float scale(Block b, uint) { return half_at(b.data + 52); }
  static short code(Block b, uint unit, uint i) {
    constexpr uchar POWERS[5] = {1, 3, 9, 27, 81};
    const uint at = unit < 10 ? unit % 2 * UNIT + i : unit < 15 ? 32 + i : 48 + i % 4;
    const uint digit = unit < 10 ? unit / 2 : unit < 15 ? unit - 10 : i / 4;
    return (uchar(b.data[at] * POWERS[digit]) * 3 >> 8) - 1;
  }
};

struct TQ2_0 : Codec<256, 66, true, false> {
  static float scale(Block b, uint) { return half_at(b.data + 64); }
  static short code(Block b, uint unit, uint i) { return two_bits(b.data, unit, i) - 1; }
};

// ---- code books: points of eight or four numbers, with signs ----

inline short signed_point(short point, uint signs, uint i) { return signs >> (i % 8) & 1 ? -point : point; }
// Seven of eight sign bits are stored: the number of negative signs is even.
inline uint even_signs(uint sevens) { return sevens | (popcount(sevens) & 1) << 7; }
inline uint four_bit_scale(device const uchar* from, uint i) { return from[i / 2] >> (i % 2 * 4) & 15; }

struct IQ2_XXS : Codec<256, 66, true, false> {
  static float scale(Block b, uint unit) {
    return half_at(b.data) * (0.5f + float(word_at(b.data + 6 + unit / 2 * 8) >> 28)) * 0.25f;
  }
  static short code(Block b, uint unit, uint i) {
    device const uchar* group = b.data + 2 + unit / 2 * 8;
    const uint entry = unit % 2 * 2 + i / 8;
    const uint signs = word_at(group + 4) >> (7 * entry) & 127;
    return signed_point(b.weight.book[group[entry] * 8 + i % 8], even_signs(signs), i);
  }
};

struct IQ2_XS : Codec<256, 74, false, false> {
  static float scale(Block b, uint unit) {
    return half_at(b.data) * (0.5f + float(four_bit_scale(b.data + 66, unit))) * 0.25f;
  }
  static short code(Block b, uint unit, uint i) {
    const uint word = short_at(b.data + 2 + (unit * 2 + i / 8) * 2);
    return signed_point(b.weight.book[(word & 511) * 8 + i % 8], even_signs(word >> 9), i);
  }
};

struct IQ2_S : Codec<256, 82, false, false> {
  static float scale(Block b, uint unit) {
    return half_at(b.data) * (0.5f + float(four_bit_scale(b.data + 74, unit))) * 0.25f;
  }
  static short code(Block b, uint unit, uint i) {
    const uint entry = unit * 2 + i / 8;
    const uint high = b.data[66 + entry / 4] >> (entry % 4 * 2) & 3;
    const uint point = b.data[2 + entry] | high << 8;
    return signed_point(b.weight.book[point * 8 + i % 8], b.data[34 + entry], i);
  }
};

struct IQ3_XXS : Codec<256, 98, true, false> {
  static float scale(Block b, uint unit) {
    return half_at(b.data) * (0.5f + float(word_at(b.data + 66 + unit / 2 * 4) >> 28)) * 0.5f;
  }
  static short code(Block b, uint unit, uint i) {
    const uint signs = word_at(b.data + 66 + unit / 2 * 4) >> (7 * (unit % 2 * 2 + i / 8)) & 127;
    const uint point = b.data[2 + unit * 4 + i / 4];
    return signed_point(b.weight.book[point * 4 + i % 4], even_signs(signs), i);
  }
};

struct IQ3_S : Codec<256, 110, true, false> {
  static float scale(Block b, uint unit) {
    return half_at(b.data) * float(1 + 2 * four_bit_scale(b.data + 106, unit / 2));
  }
  static short code(Block b, uint unit, uint i) {
    const uint entry = unit * 4 + i / 4;
    const uint high = b.data[66 + entry / 8] >> (entry % 8) & 1;
    const uint point = b.data[2 + entry] | high << 8;
    return signed_point(b.weight.book[point * 4 + i % 4], b.data[74 + unit * 2 + i / 8], i);
  }
};

// Ternary points, shifted by plus or minus 1/8: in eighths they are integers.
inline short moved_point(Block b, uint point, uint i, bool down) {
  return 8 * b.weight.book[point * 8 + i % 8] + (down ? -1 : 1);
}

struct IQ1_S : Codec<256, 50, true, false> {
  static float scale(Block b, uint unit) {
    const uint high = short_at(b.data + 34 + unit / 2 * 2);
    return half_at(b.data) * float(2 * (high >> 12 & 7) + 1) * 0.125f;
  }
  static short code(Block b, uint unit, uint i) {
    const uint high = short_at(b.data + 34 + unit / 2 * 2), entry = unit % 2 * 2 + i / 8;
    const uint point = b.data[2 + unit / 2 * 4 + entry] | (high >> (3 * entry) & 7) << 8;
    return moved_point(b, point, i, high >> 15);
  }
};

// The block's scale is made of the top four bits of the scale words.
struct IQ1_M : Codec<256, 56, false, false> {
  static float scale(Block b, uint unit) {
    ushort bits = 0;
    for (uint i = 0; i < 4; i++) bits |= short_at(b.data + 48 + 2 * i) >> 12 << (4 * i);
    const uint code = short_at(b.data + 48 + unit / 4 * 2) >> (unit % 4 * 3) & 7;
    return float(as_type<half>(bits)) * float(2 * code + 1) * 0.125f;
  }
  static short code(Block b, uint unit, uint i) {
    const uint entry = unit * 2 + i / 8;
    const uint high = four_bit_scale(b.data + 32, entry);
    return moved_point(b, b.data[entry] | (high & 7) << 8, i, high & 8);
  }
};
