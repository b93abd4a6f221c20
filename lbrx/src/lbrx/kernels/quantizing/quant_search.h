// Encoding of the K types. Scales are searched for as in lbrx/quant/gguf/search.py, over the same
// candidates. A thread processes sixteen groups as vector lanes, from one or two blocks of 256 values;
// the sums of each group keep their order.
#pragma once
#include "quant_encode.h"

constant constexpr uint BLOCK = 256;
constant constexpr uint G = 16;  // groups that a thread works on; of S values each

template <uint S>
struct Groups {
  float at[S][G];
};

struct GroupLanes {
  float of[G];
};

// Round to the nearest integer in [low, high]. Written so, each comparison is one instruction.
inline float whole(float x, float low, float high) {
  x = rint(x);
  x = x < low ? low : x;
  return x > high ? high : x;
}

// Of a block's groups.
template <uint N>
inline float largest(thread const float* x) {
  float result = 0;
  for (uint g = 0; g < N; g++) result = x[g] > result ? x[g] : result;
  return result;
}

template <uint N>
inline float extreme(thread const float* x) {
  float result = x[0];
  for (uint g = 1; g < N; g++)
    if (abs(x[g]) > abs(result)) result = x[g];
  return result;
}

template <uint S>
inline GroupLanes extremes(thread const Groups<S>& v) {
  GroupLanes result;
  for (uint g = 0; g < G; g++) result.of[g] = v.at[0][g];
  for (uint i = 1; i < S; i++)
    for (uint g = 0; g < G; g++)
      result.of[g] = abs(v.at[i][g]) > abs(result.of[g]) ? v.at[i][g] : result.of[g];
  return result;
}

// ---- value = scale * code - minimum ----

// Into how many steps a range is divided: TOP, then from TOP + FIRST / 10 on in tenths.
template <uint TOP, int FIRST, uint TRIES, bool ABSOLUTE>
struct Candidates {
  static constant constexpr float top = TOP;
  static constant constexpr uint tries = TRIES;
  static constant constexpr bool absolute = ABSOLUTE;
  static float steps(uint i) { return float(int(10 * TOP) + FIRST + int(i)) / 10; }
};

template <uint S>
inline Groups<S> offset_weights(thread const Groups<S>& v, bool even) {
  GroupLanes sum = {};
  for (uint i = 0; i < S; i++)
    for (uint g = 0; g < G; g++) sum.of[g] += v.at[i][g] * v.at[i][g];
  for (uint g = 0; g < G; g++) sum.of[g] = even ? 0.0f : sqrt(sum.of[g] / S);
  Groups<S> result;
  for (uint i = 0; i < S; i++)
    for (uint g = 0; g < G; g++) result.at[i][g] = abs(v.at[i][g]) + sum.of[g];
  return result;
}

template <typename C, uint S>
struct OffsetSearch {
  Groups<S> weight, above, code;
  GroupLanes low, span, w, wv, scale, shift, error;

  void start(thread const Groups<S>& v) {
    weight = offset_weights(v, C::absolute);
    low = span = w = wv = shift = {};
    for (uint i = 0; i < S; i++)
      for (uint g = 0; g < G; g++) low.of[g] = v.at[i][g] < low.of[g] ? v.at[i][g] : low.of[g];
    for (uint i = 0; i < S; i++)
      for (uint g = 0; g < G; g++) {
        const float x = v.at[i][g] - low.of[g];
        above.at[i][g] = x;
        span.of[g] = x > span.of[g] ? x : span.of[g];
        w.of[g] += weight.at[i][g];
        wv.of[g] += weight.at[i][g] * x;
      }
    for (uint g = 0; g < G; g++) scale.of[g] = span.of[g] / C::top;
    for (uint g = 0; g < G; g++) error.of[g] = INFINITY;
  }

  // The least-squares scale and shift for given codes; NaN if the codes do not determine them.
  void fit(float steps, thread GroupLanes& fitted, thread GroupLanes& shifted) {
    GroupLanes ratio, q = {}, qq = {}, qv = {};
    for (uint g = 0; g < G; g++) {
      const float range = span.of[g] - shift.of[g];
      ratio.of[g] = range > 0 ? steps / range : 0.0f;
    }
    for (uint i = 0; i < S; i++)
      for (uint g = 0; g < G; g++) {
        const float x = above.at[i][g];
        const float c = whole((x - shift.of[g]) * ratio.of[g], 0, C::top);
        const float weighted = weight.at[i][g] * c;
        code.at[i][g] = c;
        q.of[g] += weighted;
        qq.of[g] += weighted * c;
        qv.of[g] += weighted * x;
      }
    for (uint g = 0; g < G; g++) {
      const float found = w.of[g] * qq.of[g] - q.of[g] * q.of[g];
      const float determinant = found > 0 ? found : NAN;
      const float a = (w.of[g] * qv.of[g] - wv.of[g] * q.of[g]) / determinant;
      const float b = (qq.of[g] * wv.of[g] - q.of[g] * qv.of[g]) / determinant;
      const bool outside = low.of[g] + b > 0;  // minima have no sign
      fitted.of[g] = outside ? (qv.of[g] + low.of[g] * q.of[g]) / qq.of[g] : a;
      shifted.of[g] = outside ? -low.of[g] : b;
    }
  }

  void keep_better(GroupLanes fitted, GroupLanes shifted) {
    GroupLanes sum = {};
    for (uint i = 0; i < S; i++)
      for (uint g = 0; g < G; g++) {
        const float x = code.at[i][g] * fitted.of[g] + shifted.of[g] - above.at[i][g];
        sum.of[g] += C::absolute ? weight.at[i][g] * abs(x) : weight.at[i][g] * x * x;
      }
    for (uint g = 0; g < G; g++) {
      const bool better = sum.of[g] < error.of[g];
      error.of[g] = better ? sum.of[g] : error.of[g];
      scale.of[g] = better ? fitted.of[g] : scale.of[g];
      shift.of[g] = better ? shifted.of[g] : shift.of[g];
    }
  }

  void run(thread const Groups<S>& v) {
    start(v);
    GroupLanes fitted, shifted;
    fit(C::top, fitted, shifted);
    keep_better(scale, shift);
    for (uint i = 0; i < C::tries; i++) {
      fit(C::steps(i), fitted, shifted);
      keep_better(fitted, shifted);
    }
  }
};

template <uint N>
struct OffsetScales {
  float d, dmin;
  uchar scale[N], minimum[N];
};

// A block whose groups start at `first`.
template <uint N, uint SCALE_TOP, typename C, uint S>
inline OffsetScales<N> encode_offset(thread const Groups<S>& v, thread const OffsetSearch<C, S>& found,
                                     uint first, thread uchar (&codes)[BLOCK]) {
  thread const float* scales = found.scale.of + first;
  float minima[N];
  for (uint g = 0; g < N; g++) minima[g] = -(found.low.of[first + g] + found.shift.of[first + g]);
  OffsetScales<N> result;
  result.d = largest<N>(scales) / SCALE_TOP;
  result.dmin = largest<N>(minima) / SCALE_TOP;
  const float d = float(half(result.d)), dmin = float(half(result.dmin));
  const float to_scale = inverse(result.d), to_minimum = inverse(result.dmin);
  for (uint g = 0; g < N; g++) {
    const float s = whole(scales[g] * to_scale, 0, SCALE_TOP);
    const float m = whole(minima[g] * to_minimum, 0, SCALE_TOP);
    result.scale[g] = uchar(integer(s));
    result.minimum[g] = uchar(integer(m));
    const float by = inverse(d * s), minimum = dmin * m;
    for (uint i = 0; i < S; i++)
      codes[g * S + i] = uchar(integer(whole((v.at[i][first + g] + minimum) * by, 0, C::top)));
  }
  return result;
}

// ---- value = scale * code, with a sign ----

// Weights are the values' squares.
template <int HALF_RANGE, uint S>
inline GroupLanes centred_scales(thread const Groups<S>& v) {
  GroupLanes peak = extremes(v), scale, best = {}, inverted;
  for (uint g = 0; g < G; g++) scale.of[g] = peak.of[g] / -float(HALF_RANGE);
  for (uint g = 0; g < G; g++) inverted.of[g] = inverse(peak.of[g]);
  for (int trial = 0; trial < 19; trial++) {
    // 0, -1, 1, -2, 2 ... tenths
    const int tenths = trial % 2 ? -(trial + 1) / 2 : trial / 2;
    const float steps = float(-10 * HALF_RANGE - tenths) / 10;
    GroupLanes products = {}, squares = {}, by;
    for (uint g = 0; g < G; g++) by.of[g] = steps * inverted.of[g];
    for (uint i = 0; i < S; i++)
      for (uint g = 0; g < G; g++) {
        const float x = v.at[i][g], c = whole(x * by.of[g], -HALF_RANGE, HALF_RANGE - 1);
        const float weighted = x * x * c;
        products.of[g] += weighted * x;
        squares.of[g] += weighted * c;
      }
    for (uint g = 0; g < G; g++) {
      const float explained = products.of[g] * products.of[g] / squares.of[g];
      const bool better = explained > best.of[g];
      best.of[g] = better ? explained : best.of[g];
      scale.of[g] = better ? products.of[g] / squares.of[g] : scale.of[g];
    }
  }
  return scale;
}

// Refine scales by changing single codes as long as the error decreases.
template <int HALF_RANGE, uint S>
inline GroupLanes descended_scales(thread const Groups<S>& v) {
  GroupLanes peak = extremes(v), products = {}, squares = {}, result;
  Groups<S> code;
  for (uint g = 0; g < G; g++) peak.of[g] = -HALF_RANGE * inverse(peak.of[g]);
  for (uint i = 0; i < S; i++)
    for (uint g = 0; g < G; g++) {
      const float x = v.at[i][g], c = whole(x * peak.of[g], -HALF_RANGE, HALF_RANGE - 1);
      code.at[i][g] = c;
      products.of[g] += x * x * x * c;
      squares.of[g] += x * x * c * c;
    }
  for (uint round = 0; round < 5; round++)
    for (uint i = 0; i < S; i++)
      for (uint g = 0; g < G; g++) {
        const float x = v.at[i][g], c = code.at[i][g], weight = x * x;
        const float others = products.of[g] - weight * x * c;
        const float other_squares = squares.of[g] - weight * c * c;
        const float moved = whole(x * other_squares / others, -HALF_RANGE, HALF_RANGE - 1);
        const float new_products = others + weight * x * moved;
        const float new_squares = other_squares + weight * moved * moved;
        const float gain = new_products * new_products / new_squares;
        const bool better = others > 0 && moved != c &&
                            gain > products.of[g] * products.of[g] / squares.of[g];
        code.at[i][g] = better ? moved : c;
        products.of[g] = better ? new_products : products.of[g];
        squares.of[g] = better ? new_squares : squares.of[g];
      }
  for (uint g = 0; g < G; g++)
    result.of[g] = squares.of[g] > 0 ? products.of[g] / squares.of[g] : 0.0f;
  return result;
}

struct CentredScales {
  float d;
  char scale[G];
};

template <int HALF_RANGE, int SCALE_RANGE, uint S>
inline CentredScales encode_centred(thread const Groups<S>& v, thread const GroupLanes& scales,
                                    thread uchar (&codes)[BLOCK]) {
  CentredScales result;
  result.d = extreme<G>(scales.of) / -float(SCALE_RANGE);
  const float d = float(half(result.d)), inverted = inverse(result.d);
  for (uint g = 0; g < G; g++) {
    const float s = whole(scales.of[g] * inverted, -SCALE_RANGE, SCALE_RANGE - 1);
    result.scale[g] = char(integer(s));
    const float by = inverse(d * s);
    for (uint i = 0; i < S; i++) {
      const float c = whole(v.at[i][g] * by, -HALF_RANGE, HALF_RANGE - 1);
      codes[g * S + i] = uchar(integer(c + HALF_RANGE));
    }
  }
  return result;
}

// ---- blocks ----

// `bits` of each code from bit `from` on, in runs: a byte has values that lie RUN apart.
template <uint BITS, uint RUN>
inline void put_runs(device uchar* to, thread const uchar* codes, uint count, uint from) {
  constexpr uint IN_BYTE = 8 / BITS, MASK = (1 << BITS) - 1;
  for (uint part = 0; part < count; part += RUN * IN_BYTE, to += RUN)
    for (uint i = 0; i < RUN; i++) {
      uint byte = 0;
      for (uint k = 0; k < IN_BYTE; k++)
        byte |= ((codes[part + k * RUN + i] >> from) & MASK) << (k * BITS);
      to[i] = uchar(byte);
    }
}

// A kind of block: GROUPS of SIZE, `search` for a thread's groups, and `put`, which writes the block whose
// groups start at `first` and says whether its scales fit.

template <uint BITS, typename C>
struct K4Block {  // Q4_K and Q5_K
  static constant constexpr uint BYTES = 16 + BITS / 5 * 32 + 128, GROUPS = 8, SIZE = 32;
  using Found = OffsetSearch<C, SIZE>;
  static void search(thread const Groups<SIZE>& v, thread Found& found) { found.run(v); }
  static bool put(device uchar* to, thread const Groups<SIZE>& v, thread const Found& found,
                  uint first) {
    uchar codes[BLOCK];
    const OffsetScales<GROUPS> s = encode_offset<GROUPS, 63>(v, found, first, codes);
    put_half(to, s.d);
    put_half(to + 2, s.dmin);
    for (uint j = 0; j < 4; j++) {
      to[4 + j] = s.scale[j] | (s.scale[j + 4] >> 4) << 6;
      to[8 + j] = s.minimum[j] | (s.minimum[j + 4] >> 4) << 6;
      to[12 + j] = (s.scale[j + 4] & 15) | (s.minimum[j + 4] & 15) << 4;
    }
    if (BITS == 5) put_runs<1, 32>(to + 16, codes, BLOCK, 4);
    put_runs<4, 32>(to + BYTES - 128, codes, BLOCK, 0);
    return fits_half(s.d) && fits_half(s.dmin);
  }
};

struct K2Block {
  static constant constexpr uint BYTES = 84, GROUPS = 16, SIZE = 16;
  using Found = OffsetSearch<Candidates<3, -5, 16, true>, SIZE>;
  static void search(thread const Groups<SIZE>& v, thread Found& found) { found.run(v); }
  static bool put(device uchar* to, thread const Groups<SIZE>& v, thread const Found& found, uint) {
    uchar codes[BLOCK];
    const OffsetScales<GROUPS> s = encode_offset<GROUPS, 15>(v, found, 0, codes);
    for (uint g = 0; g < GROUPS; g++) to[g] = s.scale[g] | s.minimum[g] << 4;
    put_runs<2, 32>(to + 16, codes, BLOCK, 0);
    put_half(to + 80, s.d);
    put_half(to + 82, s.dmin);
    return fits_half(s.d) && fits_half(s.dmin);
  }
};

struct K3Block {
  static constant constexpr uint BYTES = 110, GROUPS = 16, SIZE = 16;
  using Found = GroupLanes;
  static void search(thread const Groups<SIZE>& v, thread Found& found) {
    found = descended_scales<4>(v);
  }
  static bool put(device uchar* to, thread const Groups<SIZE>& v, thread const Found& found, uint) {
    uchar codes[BLOCK], six[GROUPS];
    const CentredScales s = encode_centred<4, 32>(v, found, codes);
    for (uint g = 0; g < GROUPS; g++) six[g] = uchar(s.scale[g] + 32);
    put_runs<1, 32>(to, codes, BLOCK, 2);
    put_runs<2, 32>(to + 32, codes, BLOCK, 0);
    put_runs<4, 8>(to + 96, six, GROUPS, 0);
    put_runs<2, 4>(to + 104, six, GROUPS, 4);
    put_half(to + 108, s.d);
    return fits_half(s.d);
  }
};

struct K6Block {
  static constant constexpr uint BYTES = 210, GROUPS = 16, SIZE = 16;
  using Found = GroupLanes;
  static void search(thread const Groups<SIZE>& v, thread Found& found) {
    found = centred_scales<32>(v);
  }
  static bool put(device uchar* to, thread const Groups<SIZE>& v, thread const Found& found, uint) {
    uchar codes[BLOCK];
    const CentredScales s = encode_centred<32, 128>(v, found, codes);
    put_runs<4, 64>(to, codes, BLOCK, 0);
    put_runs<2, 32>(to + 128, codes, BLOCK, 4);
    for (uint g = 0; g < GROUPS; g++) to[192 + g] = uchar(s.scale[g]);
    put_half(to + 208, s.d);
    return fits_half(s.d);
  }
};

template <typename B>
kernel void search_blocks(device const void* x [[buffer(0)]], device uchar* blocks [[buffer(1)]],
                          device BlockReport& wrong [[buffer(2)]], constant ulong& count [[buffer(3)]],
                          uint at [[thread_position_in_grid]]) {
  constexpr uint SIZE = B::SIZE, IN_BLOCK = B::GROUPS, TOGETHER = G / IN_BLOCK;
  Groups<SIZE> values;
  float strange[TOGETHER] = {};
  for (uint g = 0; g < G; g++) {
    // If the last thread has only one block, it processes that block twice.
    const ulong block = min(ulong(at) * TOGETHER + g / IN_BLOCK, count - 1);
    device const void* from = values_at(x, block * BLOCK + g % IN_BLOCK * SIZE);
    for (uint i = 0; i < SIZE; i++) {
      const float value = element(VALUES, from, i);
      values.at[i][g] = value;
      strange[g / IN_BLOCK] += value * 0;
    }
  }
  typename B::Found found;
  B::search(values, found);
  for (uint k = 0; k < TOGETHER; k++) {
    const ulong block = min(ulong(at) * TOGETHER + k, count - 1);
    const bool fits = B::put(blocks + block * B::BYTES, values, found, k * IN_BLOCK);
    if (!fits || strange[k] != 0) report(wrong, block);
  }
}
