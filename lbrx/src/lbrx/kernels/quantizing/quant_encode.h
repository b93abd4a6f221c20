// Encoding into quantized blocks, with the same bits as lbrx.quant: one thread per block, one pass for
// the scale and one for the codes.
#pragma once
#include "quant_blocks.h"

// The reference rounds products before additions.
#pragma METAL fp contract(off)

constant constexpr uint MOST = 128;  // values per block

// Where a kernel reports the first block that the scheme cannot represent.
struct BlockReport {
  atomic_uint found;
  uint block[2];
};

inline void report(device BlockReport& to, ulong block) {
  if (atomic_exchange_explicit(&to.found, 1u, memory_order_relaxed) == 0) {
    to.block[0] = uint(block);
    to.block[1] = uint(block >> 32);
  }
}

struct BlockValues {
  float at[MOST];
  float low, high, extreme;  // `extreme` is the first of the largest magnitude
  bool finite;
};

// A pointer that is advanced first and then indexed by i alone can be read with vector loads.
inline device const void* values_at(device const void* x, ulong first) {
  return static_cast<device const uchar*>(x) + first * (VALUES == FLOAT ? 4 : 2);
}

// Loops of sixteen vectorise; block sizes are multiples of it.
inline void load(thread BlockValues& v, device const void* from, uint count) {
  constexpr uint LANES = 16;
  float low[LANES], high[LANES], strange[LANES] = {};
  for (uint i = 0; i < count; i += LANES)
    for (uint j = 0; j < LANES; j++) v.at[i + j] = element(VALUES, from, i + j);
  for (uint j = 0; j < LANES; j++) low[j] = high[j] = v.at[j];
  for (uint i = 0; i < count; i += LANES)
    for (uint j = 0; j < LANES; j++) {
      const float value = v.at[i + j];
      strange[j] += value * 0;
      low[j] = value < low[j] ? value : low[j];
      high[j] = value > high[j] ? value : high[j];
    }
  for (uint width = LANES / 2; width; width /= 2)
    for (uint j = 0; j < width; j++) {
      strange[j] += strange[j + width];
      low[j] = low[j + width] < low[j] ? low[j + width] : low[j];
      high[j] = high[j + width] > high[j] ? high[j + width] : high[j];
    }
  v.low = low[0];
  v.high = high[0];
  v.finite = strange[0] == 0;
  v.extreme = abs(v.low) > abs(v.high) ? v.low : v.high;
  if (v.low == -v.high)
    for (uint i = count; i > 0; i--)
      if (abs(v.at[i - 1]) == v.high) v.extreme = v.at[i - 1];
}

// 1 / scale, or 0 if that is not finite.
inline float inverse(float scale) {
  const float result = 1 / scale;
  return isfinite(result) ? result : 0.0f;
}

inline void put_half(device uchar* to, float x) { *reinterpret_cast<device half*>(to) = half(x); }
// Larger magnitudes round to infinity in float16.
inline bool fits_half(float x) { return abs(x) < 65520; }

// ---- GGUF's blocks of 32 ----

// Sixteen bytes of nibbles, after four with the fifth bits where there are some.
template <uint BITS>
inline void put_codes(device uchar* to, thread const uchar (&codes)[32]) {
  if (BITS == 5) {
    uint high = 0;
    for (uint i = 0; i < 32; i++) high |= uint(codes[i] >> 4) << i;
    for (uint i = 0; i < 4; i++) to[i] = high >> (8 * i);
    to += 4;
  }
  for (uint i = 0; i < 16; i++) to[i] = (codes[i] & 15) | (codes[i + 16] & 15) << 4;
}

template <uint BITS>
struct CentredBlock {
  static constant constexpr uint BYTES = 2 + BITS / 5 * 4 + 16;
  static bool encode(device const void* from, device uchar* to) {
    BlockValues v;
    load(v, from, 32);
    constexpr float middle = 1 << (BITS - 1);
    const float d = v.extreme / -middle, inverted = inverse(d);
    uchar codes[32];
    for (uint i = 0; i < 32; i++) {
      const float scaled = v.at[i] * inverted;
      codes[i] = uchar(integer(clamp(trunc(scaled + (middle + 0.5f)), 0.0f, 2 * middle - 1)));
    }
    put_half(to, d);
    put_codes<BITS>(to + 2, codes);
    return v.finite && fits_half(d);
  }
};

template <uint BITS>
struct OffsetBlock {
  static constant constexpr uint BYTES = 4 + BITS / 5 * 4 + 16;
  static bool encode(device const void* from, device uchar* to) {
    BlockValues v;
    load(v, from, 32);
    constexpr float top = (1 << BITS) - 1;
    const float d = (v.high - v.low) / top, inverted = inverse(d);
    uchar codes[32];
    for (uint i = 0; i < 32; i++) {
      const float scaled = (v.at[i] - v.low) * inverted;
      codes[i] = uchar(integer(clamp(trunc(scaled + 0.5f), 0.0f, top)));
    }
    put_half(to, d);
    put_half(to + 2, v.low);
    put_codes<BITS>(to + 4, codes);
    return v.finite && fits_half(d) && fits_half(v.low);
  }
};

// Magnitudes compare like their bits; infinity and NaN are above all finite numbers.
inline uint magnitude(float x) { return as_type<uint>(x) & 0x7fffffff; }

// Round to nearest, ties away from zero.
inline int rounded(float x) { return integer(trunc(x + copysign(0.49999997f, x))); }

struct ByteBlock {
  static constant constexpr uint BYTES = 34;
  static bool encode(device const void* from, device uchar* to) {
    constexpr uint LANES = 16;
    float values[2 * LANES];
    uint largest[LANES];
    for (uint i = 0; i < 2 * LANES; i++) values[i] = element(VALUES, from, i);
    for (uint i = 0; i < LANES; i++)
      largest[i] = max(magnitude(values[i]), magnitude(values[i + LANES]));
    for (uint width = LANES / 2; width; width /= 2)
      for (uint i = 0; i < width; i++) largest[i] = max(largest[i], largest[i + width]);
    const float d = as_type<float>(largest[0]) / 127, inverted = inverse(d);
    put_half(to, d);
    for (uint i = 0; i < 2 * LANES; i++) to[2 + i] = uchar(rounded(values[i] * inverted));
    return fits_half(d);
  }
};

template <typename B>
kernel void encode_blocks(device const void* x [[buffer(0)]], device uchar* blocks [[buffer(1)]],
                          device BlockReport& wrong [[buffer(4)]], uint at [[thread_position_in_grid]]) {
  if (!B::encode(values_at(x, ulong(at) * 32), blocks + ulong(at) * B::BYTES)) report(wrong, at);
}

// ---- groups with separate scales ----

struct GroupScale {
  float scale, inverse, zero, offset;  // code = value * inverse + zero, or (value - offset) / scale
};

template <uint BITS>
struct SymmetricGroup {
  static GroupScale fit(thread const BlockValues& v) {
    const float scale = float(half(v.extreme / -float(1 << (BITS - 1))));
    return {scale, scale == 0 ? 0 : 1 / scale, float(1 << (BITS - 1)), 0};
  }
  static float code(GroupScale s, float value) { return rint(value * s.inverse) + s.zero; }
  static void put(device void* scales, device void*, ulong at, GroupScale s) {
    static_cast<device half*>(scales)[at] = half(s.scale);
  }
  static bool fits(GroupScale s) { return isfinite(s.scale); }
};

template <uint BITS>
struct AsymmetricGroup {
  static GroupScale fit(thread const BlockValues& v) {
    constexpr float top = (1 << BITS) - 1;
    const float low = min(v.low, 0.0f), high = max(v.high, 0.0f);
    const float scale = float(half((high - low) / top));
    const float inverted = scale == 0 ? 0 : 1 / scale;
    return {scale, inverted, clamp(rint(-low * inverted), 0.0f, top), 0};
  }
  static float code(GroupScale s, float value) {
    const float scaled = value * s.inverse;
    return rint(scaled + s.zero);
  }
  static void put(device void* scales, device void* zeros, ulong at, GroupScale s) {
    static_cast<device half*>(scales)[at] = half(s.scale);
    static_cast<device uchar*>(zeros)[at] = uchar(s.zero);
  }
  static bool fits(GroupScale s) { return isfinite(s.scale); }
};

// MLX's: the end of the range that lies farther from zero is exact.
template <uint BITS>
struct AffineGroup {
  static GroupScale fit(thread const BlockValues& v) {
    constexpr float top = (1 << BITS) - 1;
    const bool downwards = abs(v.low) > abs(v.high);
    const float size = max((v.high - v.low) / top, 1e-7f);
    const float scale = downwards ? size : -size, edge = downwards ? v.low : v.high;
    const float steps = rint(edge / scale);
    return {steps != 0 ? edge / steps : scale, 0, 0, steps != 0 ? edge : 0.0f};
  }
  static float code(GroupScale s, float value) { return rint((value - s.offset) / s.scale); }
  static void put(device void* scales, device void* biases, ulong at, GroupScale s) {
    ::put(scales, at, s.scale);
    ::put(biases, at, s.offset);
  }
  // Decoding multiplies before it adds the offset; bfloat16 rounds a scale up by 1/256 at most.
  static bool fits(GroupScale s) {
    constexpr float most = ((1 << BITS) - 1) * (1 + 1 / 256.0f);
    return isfinite(s.scale * most) &&
           (VALUES != HALF || (fits_half(s.scale) && fits_half(s.offset)));
  }
};

// Codes one after the other from the lowest bit on. Eight of them are whole bytes.
template <uint BITS>
inline void put_stream(device uchar* to, thread const uchar (&code)[MOST], uint count) {
  if (8 % BITS == 0) {
    constexpr uint IN_BYTE = 8 / BITS;
    for (uint i = 0; i < count / IN_BYTE; i++) {
      uint byte = 0;
      for (uint j = 0; j < IN_BYTE; j++) byte |= uint(code[i * IN_BYTE + j]) << (j * BITS);
      to[i] = uchar(byte);
    }
    return;
  }
  for (uint i = 0; i < count; i += 8, to += BITS) {
    ulong bits = 0;
    for (uint j = 0; j < 8; j++) bits |= ulong(code[i + j]) << (j * BITS);
    for (uint j = 0; j < BITS; j++) to[j] = uchar(bits >> (8 * j));
  }
}

template <typename G, uint BITS>
kernel void encode_groups(device const void* x [[buffer(0)]], device uchar* codes [[buffer(1)]],
                          device void* scales [[buffer(2)]], device void* offsets [[buffer(3)]],
                          device BlockReport& wrong [[buffer(4)]], uint at [[thread_position_in_grid]]) {
  constexpr float top = (1 << BITS) - 1;
  BlockValues values;
  load(values, values_at(x, ulong(at) * GROUP), GROUP);
  const GroupScale scaled = G::fit(values);
  if (!values.finite || !G::fits(scaled)) report(wrong, at);
  G::put(scales, offsets, at, scaled);
  uchar code[MOST];
  for (uint i = 0; i < GROUP; i++)
    code[i] = uchar(integer(clamp(G::code(scaled, values.at[i]), 0.0f, top)));
  put_stream<BITS>(codes + ulong(at) * (GROUP * BITS / 8), code, GROUP);
}
