// sin, cos, tan, sincos, and those of pi x.
#ifndef SOFTMETAL_MATH_TRIG_H
#define SOFTMETAL_MATH_TRIG_H

#include <softmetal/math_lanes.h>

namespace softmetal::math {

SM_PRECISE_BEGIN

inline constexpr float kTwoOverPi = 0x1.45f306p-1f;
// pi / 2 as a sum.
inline constexpr float kHalfPi0 = 0x1.921fb6p+0f, kHalfPi1 = -0x1.777a5cp-25f,
                       kHalfPi2 = -0x1.ee59dap-50f;

// From here on the fast functions answer as for 0.
inline constexpr float kFastLimit = 0x1p20f;

// x = r + quadrant * pi / 2 with |r| hardly above pi / 4. Only the quadrant's low bits count.
template <class F> struct Reduced {
  F r;
  Uint<F> quadrant;
};

// Cody and Waite: with fma the first difference is exact while |x| < 2^20.
template <class F> SM_INLINE Reduced<F> reduce_small(F x) {
  F t = fma(x, kTwoOverPi, kRound), n = t - kRound;
  F r = fma(n, -kHalfPi0, x);
  r = fma(n, -kHalfPi1, r);
  return {fma(n, -kHalfPi2, r), bits<Uint<F>>(t)};
}

// 96 bits of 2 / pi from bit `at` (below 128) of its expansion, which is led by 25 zeros here.
template <class F> struct Window {
  Uint<F> high, middle, low;
};
template <class F> SM_INLINE Window<F> two_over_pi(Uint<F> at) {
  using U = Uint<F>;
  auto far = (at & 64u) != 0u, odd = (at & 32u) != 0u;
  U w0 = far ? (U)0x220a94feu : (U)0x00000051u, w1 = far ? (U)0x13abe8fau : (U)0x7cc1b727u,
    w2 = far ? (U)0x9a6ee06du : (U)0x220a94feu, w3 = far ? (U)0xb14acc9eu : (U)0x13abe8fau,
    w4 = far ? (U)0x21c820ffu : (U)0x9a6ee06du;
  w0 = odd ? w1 : w0;
  w1 = odd ? w2 : w1;
  w2 = odd ? w3 : w2;
  w3 = odd ? w4 : w3;
  U left = at & 31u, right = 31u - left;
  return {w0 << left | (w1 >> 1) >> right, w1 << left | (w2 >> 1) >> right,
          w2 << left | (w3 >> 1) >> right};
}

// Payne and Hanek, for |x| >= 1: the product with 2 / pi modulo 4, in units of 2^-62.
template <class F> SM_INLINE Reduced<F> reduce_large(F x) {
  using U = Uint<F>;
  using UL = Ulong<F>;
  U b = bits<U>(magnitude(x));
  U m = (b & 0x7fffffu) | 0x800000u;
  Window<F> w = two_over_pi<F>((b >> 23) - 127u);
  UL wide = cast<UL>(m);
  UL product = (cast<UL>(m * w.high) << 32) + wide * cast<UL>(w.middle) +
               ((wide * cast<UL>(w.low)) >> 32);
  U top = cast<U>(product >> 32);
  U quadrant = (top >> 30) + ((top >> 29) & 1u);
  UL fraction = product << 2;
  U high = cast<U>(fraction >> 32), low = cast<U>(fraction);
  // The signed fraction in three exact parts; near a multiple of pi / 2 the first ones vanish.
  F f0 = cast<F>(bits<Int<F>>(high & 0xffffff00u)) * 0x1p-32f;
  F f1 = cast<F>(bits<Int<F>>((high & 0xffu) << 16 | low >> 16)) * 0x1p-48f;
  F f2 = cast<F>(bits<Int<F>>(low & 0xffffu)) * 0x1p-64f;
  f1 += f2;
  F f = f0 + f1, f_lo = f1 - (f - f0);
  F r = f * kHalfPi0;
  r += fma(f, kHalfPi0, -r) + fma(f, kHalfPi1, f_lo * kHalfPi0);
  auto negative = x < 0.0f;
  return {negative ? -r : r, negative ? 0u - quadrant : quadrant};
}

template <bool Fast, class F> SM_INLINE Reduced<F> reduce(F x) {
  Reduced<F> small = reduce_small(x);
  F invalid = x - x;  // NaN for infinities
  if constexpr (Fast) {
    auto ok = magnitude(x) < kFastLimit;
    return {ok ? small.r : invalid, ok ? small.quadrant : (Uint<F>)0u};
  } else {
    Reduced<F> large = reduce_large(x);
    auto near = magnitude(x) < 0x1p17f;
    return {near ? small.r : large.r + invalid, near ? small.quadrant : large.quadrant};
  }
}

template <class F> SM_INLINE F sin_near_zero(F r) {
  F z = r * r;
  return fma(r * z, poly(z, -0x1.555544p-3f, 0x1.1106b0p-7f, -0x1.99100cp-13f), r);
}

template <class F> SM_INLINE F cos_near_zero(F r) {
  F z = r * r;
  F p = poly(z, 0x1.55554ap-5f, -0x1.6c0c04p-10f, 0x1.99d65cp-16f);
  return fma(z, fma(z, p, -0.5f), 1.0f);
}

template <class F> SM_INLINE F tan_near_zero(F r) {
  F z = r * r;
  F p = poly(z, 0x1.555564p-2f, 0x1.110c80p-3f, 0x1.bb0dbcp-5f, 0x1.5a9d5ep-6f, 0x1.6e0dacp-7f,
             -0x1.6774fcp-12f, 0x1.2cf87ep-8f);
  return fma(r * z, p, r);
}

// Changes the sign of y where bit 1 of `quadrant` is set.
template <class F> SM_INLINE F quadrant_sign(F y, Uint<F> quadrant) {
  return bits<F>(bits<Uint<F>>(y) ^ ((quadrant & 2u) << 30));
}

template <class F> SM_INLINE F sin_of(F s, F c, Uint<F> quadrant) {
  return quadrant_sign((quadrant & 1u) != 0u ? c : s, quadrant);
}

// Without the second polynomial: sin(x) = (-1)^n sin(r) with x = n pi + r and |r| up to pi / 2; for
// the cosine n is half of an odd number.
template <bool Cosine, class F> SM_INLINE F fast_sin(F x) {
  constexpr float offset = Cosine ? 0.5f : 0.0f, pi0 = 2.0f * kHalfPi0, pi1 = 2.0f * kHalfPi1;
  constexpr float one_over_pi = 0.5f * kTwoOverPi;
  F t;
  if constexpr (Cosine)
    t = fma(x, one_over_pi, offset) + kRound;
  else
    t = fma(x, one_over_pi, kRound);
  F n = t - kRound - offset;
  F r = fma(n, -pi1, fma(n, -pi0, x));
  auto ok = magnitude(x) < kFastLimit;
  r = ok ? r : x - x + offset * pi0;
  F z = r * r;
  F p = poly(z, -0x1.55554cp-3f, 0x1.110ed4p-7f, -0x1.9f6ecep-13f, 0x1.5d9da6p-19f);
  F y = limit(fma(r * z, p, r), -1.0f, 1.0f);
  Uint<F> sign = bits<Uint<F>>(t) << 31;
  return bits<F>(bits<Uint<F>>(y) ^ (ok ? sign : (Uint<F>)0u));
}

template <bool Fast, class F> SM_INLINE F sin(F x) {
  if constexpr (Fast) return fast_sin<false>(x);
  Reduced<F> a = reduce<Fast>(x);
  F y = sin_of(sin_near_zero(a.r), cos_near_zero(a.r), a.quadrant);
  return x == 0.0f ? x : y;
}

template <bool Fast, class F> SM_INLINE F cos(F x) {
  if constexpr (Fast) return fast_sin<true>(x);
  Reduced<F> a = reduce<Fast>(x);
  return sin_of(sin_near_zero(a.r), cos_near_zero(a.r), a.quadrant + 1u);
}

template <bool Fast, class F> SM_INLINE F sincos(F x, F& cosine) {
  Reduced<F> a = reduce<Fast>(x);
  F s = sin_near_zero(a.r), c = cos_near_zero(a.r);
  cosine = sin_of(s, c, a.quadrant + 1u);
  return x == 0.0f ? x : sin_of(s, c, a.quadrant);
}

template <bool Fast, class F> SM_INLINE F tan(F x) {
  Reduced<F> a = reduce<Fast>(x);
  F t = tan_near_zero(a.r);
  F y = (a.quadrant & 1u) != 0u ? -1.0f / t : t;
  return x == 0.0f ? x : y;
}

// x - quadrant / 2, exactly: first modulo 2, so that the quadrant is small.
template <class F> SM_INLINE Reduced<F> reduce_half_turns(F x) {
  F y = fma(__builtin_elementwise_rint(x * 0.5f), -2.0f, x);
  F t = fma(y, 2.0f, kRound);
  return {fma(t - kRound, -0.5f, y), bits<Uint<F>>(t)};
}

template <class F> SM_INLINE F sinpi_near_zero(F r) {
  F z = r * r, p = poly(z, -0x1.4abbcep+2f, 0x1.466b78p+1f, -0x1.32adc0p-1f, 0x1.44467ap-4f);
  F tail = fma(z, p, (2.0f * kHalfPi1));
  return fma(r, 2.0f * kHalfPi0, r * tail);
}

template <class F> SM_INLINE F cospi_near_zero(F r) {
  F z = r * r;
  return poly(z, 1.0f, -0x1.3bd3ccp+2f, 0x1.03c1aep+2f, -0x1.55b132p+0f, 0x1.d46d9ap-3f);
}

template <bool Fast, class F> SM_INLINE F sinpi(F x) {
  Reduced<F> a = reduce_half_turns(x);
  F y = sin_of(sinpi_near_zero(a.r), cospi_near_zero(a.r), a.quadrant);
  return y == 0.0f ? with_sign(y, x) : y;
}

template <bool Fast, class F> SM_INLINE F cospi(F x) {
  Reduced<F> a = reduce_half_turns(x);
  F y = sin_of(sinpi_near_zero(a.r), cospi_near_zero(a.r), a.quadrant + 1u);
  return y + 0.0f;  // makes +0 of -0
}

template <bool Fast, class F> SM_INLINE F tanpi(F x) {
  Reduced<F> a = reduce_half_turns(x);
  F z = a.r * a.r;
  F p = poly(z, 0x1.4abbdap+3f, 0x1.466742p+5f, 0x1.4696cep+7f, 0x1.3cbdc4p+9f, 0x1.917b2ap+11f,
             -0x1.596ffcp+5f, 0x1.efbd1ep+16f);
  F t = fma(a.r, 2.0f * kHalfPi0, a.r * fma(z, p, (2.0f * kHalfPi1)));
  F pole = quadrant_sign((F)kInf, a.quadrant);
  F y = t == 0.0f ? pole : -1.0f / t;
  return (a.quadrant & 1u) != 0u ? y : t == 0.0f ? with_sign(t, x) : t;
}

SM_PRECISE_END

}  // namespace softmetal::math

#endif
