// log, log2, log10, pow, powr, asinh, acosh, atanh.
#ifndef SOFTMETAL_MATH_LOG_H
#define SOFTMETAL_MATH_LOG_H

#include <softmetal/math_exp.h>

namespace softmetal::math {

SM_PRECISE_BEGIN

inline constexpr float kLog10E = 0x1.bcb7b2p-2f;

// log(1 + t) - t for 1 + t in [sqrt(1/2), sqrt(2)).
template <bool Fast, class F> SM_INLINE F log1p_tail(F t) {
  F z = t * t, p;
  if constexpr (Fast)
    p = poly(t, 0x1.5556dap-2f, -0x1.000380p-2f, 0x1.98d776p-3f, -0x1.538268p-3f, 0x1.317ab4p-3f,
             -0x1.2433dap-3f, 0x1.643752p-4f);
  else
    p = poly(t, 0x1.555548p-2f, -0x1.000006p-2f, 0x1.99a47ap-3f, -0x1.555c48p-3f, 0x1.233b26p-3f,
             -0x1.fc279ap-4f, 0x1.e6c7f8p-4f, -0x1.de0c8ep-4f, 0x1.146b0cp-4f);
  return fma(z, -0.5f, z * t * p);
}

// What every logarithm is for arguments that are not positive and finite.
template <bool Fast, class F> SM_INLINE F log_special(F x, F finite) {
  F y = x < kInf ? finite : x;
  y = x < (Fast ? kMinNormal : 0x1p-149f) ? (F)-kInf : y;
  return x < 0.0f ? (F)kNan : y;
}

template <bool Fast, class F> SM_INLINE F log(F x) {
  Split<F> s = split<!Fast>(x, kBitsOfSqrtHalf);
  F t = s.m - 1.0f, e = cast<F>(s.e);
  F tail = fma(e, kLn2Lo, log1p_tail<Fast>(t));
  return log_special<Fast>(x, fma(e, kLn2Hi, t + tail));
}

template <bool Fast, class F> SM_INLINE F log2(F x) {
  Split<F> s = split<!Fast>(x, kBitsOfSqrtHalf);
  F t = s.m - 1.0f;
  return log_special<Fast>(x, fma(t + log1p_tail<Fast>(t), kLog2E, cast<F>(s.e)));
}

template <bool Fast, class F> SM_INLINE F log10(F x) {
  Split<F> s = split<!Fast>(x, kBitsOfSqrtHalf);
  F t = s.m - 1.0f, e = cast<F>(s.e);
  F y = fma(t + log1p_tail<Fast>(t), kLog10E, e * kLog10Of2Lo);
  return log_special<Fast>(x, fma(e, kLog10Of2Hi, y));
}

// A sum of two floats, the second far smaller.
template <class F> struct Pair {
  F hi, lo;
};

// log2(x) of a positive finite x to some 2^-32: 2 atanh(s) with s = (m - 1) / (m + 1).
template <class F> SM_INLINE Pair<F> log2_pair(F x) {
  constexpr float two_log2e_hi = 0x1.715476p+1f, two_log2e_lo = 0x1.4ae0c0p-25f;
  Split<F> x_parts = split<true>(x, kBitsOfSqrtHalf);
  F t = x_parts.m - 1.0f, b = x_parts.m + 1.0f, e = cast<F>(x_parts.e);
  F b_lo = x_parts.m - (b - 1.0f);
  F inverse = 1.0f / b;
  F s = t * inverse;
  F s_lo = fma(-s, b_lo, fma(-s, b, t)) * inverse;
  F z = s * s;
  F tail = s * z * poly(z, 0x1.555554p-2f, 0x1.999c26p-3f, 0x1.23d3dep-3f, 0x1.f13c3cp-4f);
  F hi = s * two_log2e_hi;
  F lo = fma(s, two_log2e_hi, -hi);
  lo = fma(s, two_log2e_lo, lo);
  lo = fma(s_lo + tail, two_log2e_hi, lo);
  F sum = e + hi;
  lo += hi - (sum - e);
  F high = sum + lo;
  return {high, lo - (high - sum)};
}

// x^y of x >= 0, as exp2(y * log2(x)), which makes NaN of 0^0, inf^0 and 1^inf.
template <bool Fast, class F> SM_INLINE F powr(F x, F y) {
  if constexpr (Fast) return exp2<true>(y * log2<true>(x));
  Pair<F> log = log2_pair(x);
  F hi = log_special<false>(x, log.hi);
  F product = y * hi;
  F rest = fma(y, hi, -product) + y * log.lo;
  rest = magnitude(product) < 256.0f ? rest : (F)0.0f;
  F p = limit(product, -160.0f, 140.0f);
  F t = p + kRound;
  F n = t - kRound;
  return scale(exp2_near_zero((p - n) + rest), bits<Int<F>>(t) - bits<int>(kRound));
}

// The special cases are those of C's Annex F.
template <bool Fast, class F> SM_INLINE F pow(F x, F y) {
  F a = magnitude(x), size = powr<Fast>(a, y);
  size = a == 1.0f ? (y != y ? y : (F)1.0f) : size;
  F whole = __builtin_elementwise_trunc(y), half = y * 0.5f;
  auto integer = whole == y;
  auto odd = integer & (__builtin_elementwise_trunc(half) != half);
  F r = odd ? with_sign(size, x) : size;
  r = ((x < 0.0f) & (a < kInf) & (whole != y)) ? (F)kNan : r;
  return ((x == 1.0f) | (y == 0.0f)) ? (F)1.0f : r;
}

// log((1 + u) * 2^twice) for u > -1; the rounding error of 1 + u is put back.
template <class F> SM_INLINE F log_of_1p(F u, Int<F> twice) {
  F w = 1.0f + u;
  F error = u - (w - 1.0f);
  error = w < kInf ? error : (F)0.0f;
  Split<F> s = split<false>(w, kBitsOfSqrtHalf);
  error = scale(error, -s.e);
  F t = s.m - 1.0f, e = cast<F>(s.e + twice);
  F sum = t + error;
  F lost = error - (sum - t);
  F tail = fma(e, kLn2Lo, log1p_tail<false>(sum) + lost);
  return log_special<false>(w, fma(e, kLn2Hi, sum + tail));
}

// From 2^13 on asinh and acosh are log(2 x).
template <class F> SM_INLINE F log_or_double(F x, F u) {
  auto big = x > 0x1p13f;
  return log_of_1p(big ? x - 1.0f : u, big ? (Int<F>)1 : (Int<F>)0);
}

template <bool Fast, class F> SM_INLINE F asinh(F x) {
  F a = magnitude(x), z = a * a;
  F y = log_or_double(a, a + z / (1.0f + __builtin_elementwise_sqrt(z + 1.0f)));
  return with_sign(y, x);
}

template <bool Fast, class F> SM_INLINE F acosh(F x) {
  F t = x - 1.0f;
  F y = log_or_double(x, t + __builtin_elementwise_sqrt(fma(t, t, t + t)));
  return x < 1.0f ? (F)kNan : y;
}

template <bool Fast, class F> SM_INLINE F atanh(F x) {
  F a = magnitude(x);
  F y = 0.5f * log_of_1p((a + a) / (1.0f - a), (Int<F>)0);
  return with_sign(a > 1.0f ? (F)kNan : y, x);
}

SM_PRECISE_END

}  // namespace softmetal::math

#endif
