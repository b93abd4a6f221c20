// The row that quantized matrices are multiplied by: it is rounded to 16-bit integers, as bytes in
// threadgroup memory. It may be computed from other rows first.
#pragma once
#include "elementwise.h"
#include "exchange.h"
#include "quant_schemes.h"
#include "records/quant_row.h"

#if __has_include(<softmetal/dots>)
#include <softmetal/dots>
#define LBRX_DOTS
#endif

constant constexpr uint BYTES = 8;  // words of bytes in 32 values
constant uint SHARERS = OWN ? BYTES / OWN : 1;  // lanes that round a unit of x together

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

// Four values of x as they are stored: conversions would wait for them.
inline uint4 four_at(device const uint2* x, uint at) {
  if (VALUES == FLOAT) return uint4(x[at / 2], x[at / 2 + 1]);
  return uint4(x[at / 4], 0, 0);
}

inline float4 four_of(uint4 bits) {
  if (VALUES == FLOAT) return as_type<float4>(bits);
  if (VALUES == HALF) return float4(as_type<half4>(bits.xy));
  return as_type<float4>(uint4(bits.x << 16, bits.x & 0xffff0000u, bits.y << 16, bits.y & 0xffff0000u));
}

inline void put_four(device uint2* x, uint at, float4 values) {
  if (VALUES == HALF) {
    x[at / 4] = as_type<uint2>(half4(values));
  } else if (VALUES == BFLOAT) {
    x[at / 4] = as_type<uint2>(bfloat4(values));
  } else {
    x[at / 2] = as_type<uint2>(values.xy);
    x[at / 2 + 1] = as_type<uint2>(values.zw);
  }
}

// The codes of a unit of x as bytes, 256 * high + low, and their sums over even and odd words.
struct Part {
  uint high[BYTES], low[BYTES];
  float step;
  int2 sums;

  // Sums of products with the low nibbles of words, and 16 times those with the high ones.
  int2 nibbles(thread const uint* words, int2 first) const thread {
    int2 upper = 0, lower = first;
#pragma unroll
    for (uint j = 0; j < BYTES / 2; j++) {
      const uint even = words[j] & 0x0f0f0f0fu, odd = words[j] & 0xf0f0f0f0u;
      upper.x = dot4<false, true>(even, high[2 * j], upper.x);
      lower.x = dot4<false, false>(even, low[2 * j], lower.x);
      upper.y = dot4<false, true>(odd, high[2 * j + 1], upper.y);
      lower.y = dot4<false, false>(odd, low[2 * j + 1], lower.y);
    }
    return upper * 256 + lower;
  }

  int bytes(thread const uint* words) const thread {
    int upper = 0, lower = 0;
#pragma unroll
    for (uint j = 0; j < BYTES; j++) {
      upper = dot4<true, true>(words[j], high[j], upper);
      lower = dot4<true, false>(words[j], low[j], lower);
    }
    return upper * 256 + lower;
  }
};

// Parts of x in threadgroup memory: vector j of every unit, then vector j + 1.
struct Parts {
  threadgroup uint4* vectors;
  uint units;

  threadgroup int2* sums() const thread {
    return reinterpret_cast<threadgroup int2*>(vectors + BYTES / 2 * units);
  }
  threadgroup float* steps() const thread {
    return reinterpret_cast<threadgroup float*>(sums() + units);
  }
  Part get(uint unit) const thread {
    Part part;
#pragma unroll
    for (uint j = 0; j < BYTES / 4; j++) {
      const uint4 high = vectors[j * units + unit], low = vectors[(j + BYTES / 4) * units + unit];
#pragma unroll
      for (uint i = 0; i < 4; i++) {
        part.high[4 * j + i] = high[i];
        part.low[4 * j + i] = low[i];
      }
    }
    part.sums = sums()[unit];
    part.step = steps()[unit];
    return part;
  }

  // Writes OWN words from number `first` on, of those with the high bytes and those with the low ones.
  void put_words(uint unit, uint first, thread const uint (&words)[BYTES]) const thread {
    threadgroup uint4* to = vectors + first / 4 * units + unit;
    if (OWN == 1) {
      reinterpret_cast<threadgroup uint*>(to)[first % 4] = words[0];
    } else if (OWN == 2) {
      reinterpret_cast<threadgroup uint2*>(to)[first / 2 % 2] = uint2(words[0], words[1]);
    } else {
#pragma unroll
      for (uint w = 0; w < OWN; w += 4)
        to[w / 4 * units] = uint4(words[w], words[w + 1], words[w + 2], words[w + 3]);
    }
  }

  // Rounds OWN words of a unit; the neighbouring lanes have the others.
  void take(uint unit, uint first, thread const float4 (&values)[BYTES]) const thread {
    // Magnitudes compare like their bits; NaN is above infinity.
    int4 sizes = 0;
#pragma unroll
    for (uint w = 0; w < OWN; w++) sizes = max(sizes, as_type<int4>(values[w]) & 0x7fffffff);
    int top = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
#pragma unroll
    for (uint lanes = 1; lanes < SHARERS; lanes *= 2) top = max(top, exchanged(top, lanes));
    const float largest = as_type<float>(top);
    // Codes are 0 if the scale would be denormal; NaN and infinity make the whole result NaN.
    const float inverse = largest < 1e-33f ? 0.0f : 32767 / largest;
    uint high[BYTES], low[BYTES];
    int2 totals = 0;
#pragma unroll
    for (uint w = 0; w < OWN; w++) {
      // The low half of each sum is the code, as in `integer`.
      const uint4 bits = as_type<uint4>(values[w] * inverse + 12582912.0f);
      low[w] = (bits.x & 255) | (bits.y & 255) << 8 | (bits.z & 255) << 16 | bits.w << 24;
      high[w] = (bits.x >> 8 & 255) | (bits.y & 0xff00) | (bits.z & 0xff00) << 8 |
                (bits.w & 0xff00) << 16;
      totals[w % 2] += int(bits.x + bits.y + bits.z + bits.w - 4 * 0x4b400000u);
    }
    // Lanes with one word each have an even or an odd one.
#pragma unroll
    for (uint lanes = OWN == 1 ? 2 : 1; lanes < SHARERS; lanes *= 2) {
      totals.x += exchanged(totals.x, lanes);
      if (OWN > 1) totals.y += exchanged(totals.y, lanes);
    }
    put_words(unit, first, high);
    put_words(unit, first + BYTES, low);
    if (OWN == 1) {
      if (first < 2) reinterpret_cast<threadgroup int*>(sums() + unit)[first] = totals.x;
    } else if (first == 0) {
      sums()[unit] = totals;
    }
    if (first == 0) steps()[unit] = top >= 0x7f800000 ? NAN : largest * (1.0f / 32767);
  }
};

// ---- where the row comes from ----

// x and operands of its shape, as far as there are any.
struct Rows {
  device const uint2 *x, *added, *weight, *gated;
};

// Rounded as an array would be.
inline float4 as_stored(float4 x) {
  if (VALUES == HALF) return float4(half4(x));
  if (VALUES == BFLOAT) return float4(bfloat4(x));
  return x;
}

// A thread's words of x, or of what x is computed from.
template <typename F>
struct Piece {
  uint4 x[BYTES], added[BYTES], weight[BYTES], gated[BYTES];
  uint unit, first;
  bool exists;

  void load(Rows rows, uint units, uint i) thread {
    unit = i / SHARERS, first = i % SHARERS * OWN;
    exists = EVEN || unit < units;
#pragma unroll
    for (uint w = 0; w < OWN; w++) {
      const uint at = F::value(min(unit, units - 1), first + w);
      x[w] = four_at(rows.x, at);
      if (ADDED) added[w] = four_at(rows.added, at);
      if (NORMED) weight[w] = four_at(rows.weight, at);
      if (GATED) gated[w] = four_at(rows.gated, at);
    }
  }

  // Four neighbours, before a norm.
  float4 four(uint w) const thread {
    return ADDED ? four_of(x[w]) + four_of(added[w]) : four_of(x[w]);
  }

  float squares() const thread {
    float sum = 0;
#pragma unroll
    for (uint w = 0; w < OWN; w++) sum += dot(four(w), four(w));
    return exists ? sum : 0.0f;
  }

  // Writes the sums of x and what is added to it.
  void store(device uint2* total) const thread {
    if (!exists) return;
#pragma unroll
    for (uint w = 0; w < OWN; w++) put_four(total, F::value(unit, first + w), four(w));
  }

  float4 finished(uint w, float factor) const thread {
    const float4 values = four(w);
    if (NORMED) return as_stored(values * factor * four_of(weight[w]));
    if (!GATED) return values;
    const float4 by = four_of(gated[w]);
    return as_stored(float4(op::swiglu(values.x, by.x), op::swiglu(values.y, by.y),
                            op::swiglu(values.z, by.z), op::swiglu(values.w, by.w)));
  }

  void take(Parts parts, float factor) const thread {
    float4 values[BYTES];
#pragma unroll
    for (uint w = 0; w < OWN; w++) values[w] = EVEN || exists ? finished(w, factor) : 0.0f;
    if (F::ALTERNATE) {
#pragma unroll
      for (uint w = 0; w + 1 < OWN; w += 2) {
        const float4 one = values[w], two = values[w + 1];
        values[w] = float4(one.xz, two.xz), values[w + 1] = float4(one.yw, two.yw);
      }
    }
    parts.take(unit, first, values);
  }
};

// The sum over the first `simdgroups` simdgroups of a threadgroup, for the threads of these. All
// threads come here.
inline float add_threads(float own, threadgroup float* shared, uint simdgroups, uint simdgroup,
                         uint lane) {
  if (simdgroup < simdgroups) own = exchanged_sum(own);
  if (simdgroup < simdgroups && lane == 0) shared[simdgroup] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simdgroup < simdgroups ? exchanged_sum(lane < simdgroups ? shared[lane] : 0.0f) : 0.0f;
}
