// Functions that take numbers apart, round them or compare them. All are exact.
#ifndef SOFTMETAL_MATH_PARTS_H
#define SOFTMETAL_MATH_PARTS_H

#include <softmetal/math_lanes.h>

namespace softmetal::math {

SM_PRECISE_BEGIN

template <bool Fast, class F> SM_INLINE F fabs(F x) { return magnitude(x); }
template <bool Fast, class F> SM_INLINE F abs(F x) { return magnitude(x); }
template <bool Fast, class F> SM_INLINE F ceil(F x) { return __builtin_elementwise_ceil(x); }
template <bool Fast, class F> SM_INLINE F floor(F x) { return __builtin_elementwise_floor(x); }
template <bool Fast, class F> SM_INLINE F trunc(F x) { return __builtin_elementwise_trunc(x); }
template <bool Fast, class F> SM_INLINE F rint(F x) { return __builtin_elementwise_rint(x); }
template <bool Fast, class F> SM_INLINE F sqrt(F x) { return __builtin_elementwise_sqrt(x); }
template <bool Fast, class F> SM_INLINE F rsqrt(F x) {
  return 1.0f / __builtin_elementwise_sqrt(x);
}
template <bool Fast, class F> SM_INLINE F divide(F x, F y) { return x / y; }
template <bool Fast, class F> SM_INLINE F copysign(F x, F y) { return with_sign(x, y); }

// Halves go away from zero; the largest number below 1/2 keeps those below a half where they are.
template <bool Fast, class F> SM_INLINE F round(F x) {
  return __builtin_elementwise_trunc(x + with_sign((F)0x1.fffffep-2f, x));
}

template <bool Fast, class F> SM_INLINE F fmin(F x, F y) { return SM_FMIN(x, y); }
template <bool Fast, class F> SM_INLINE F fmax(F x, F y) { return SM_FMAX(x, y); }
template <bool Fast, class F> SM_INLINE F min(F x, F y) { return fmin<Fast>(x, y); }
template <bool Fast, class F> SM_INLINE F max(F x, F y) { return fmax<Fast>(x, y); }
template <bool Fast, class F> SM_INLINE F fmin3(F x, F y, F z) {
  return fmin<Fast>(x, fmin<Fast>(y, z));
}
template <bool Fast, class F> SM_INLINE F fmax3(F x, F y, F z) {
  return fmax<Fast>(x, fmax<Fast>(y, z));
}
template <bool Fast, class F> SM_INLINE F fmedian3(F x, F y, F z) {
  return fmax<Fast>(fmin<Fast>(x, y), fmin<Fast>(fmax<Fast>(x, y), z));
}
template <bool Fast, class F> SM_INLINE F min3(F x, F y, F z) { return fmin3<Fast>(x, y, z); }
template <bool Fast, class F> SM_INLINE F max3(F x, F y, F z) { return fmax3<Fast>(x, y, z); }
template <bool Fast, class F> SM_INLINE F median3(F x, F y, F z) { return fmedian3<Fast>(x, y, z); }

template <bool Fast, class F> SM_INLINE F fdim(F x, F y) { return x <= y ? (F)0.0f : x - y; }

// x - floor(x) rounds to 1 for small negative x: `below_one` is the largest number below 1.
template <class F> SM_INLINE F fract(F x, float below_one) {
  F y = x - __builtin_elementwise_floor(x);
  y = y > below_one ? (F)below_one : y;
  return magnitude(x) == kInf ? (F)0.0f : y;
}

template <bool Fast, class F> SM_INLINE F modf(F x, F& whole) {
  whole = __builtin_elementwise_trunc(x);
  return with_sign(magnitude(x) == kInf ? (F)0.0f : x - whole, x);
}

template <bool Fast, class F> SM_INLINE F frexp(F x, Int<F>& exponent) {
  F a = magnitude(x);
  Split<F> s = split<true>(a, kBitsOfOne - (1 << 23));
  auto plain = (a > 0.0f) & (a < kInf);
  exponent = plain ? s.e : (Int<F>)0;
  return plain ? with_sign(s.m, x) : x;
}

inline constexpr int kIlogbOfZero = -2147483647 - 1;  // and of NaN
template <bool Fast, class F> SM_INLINE Int<F> ilogb(F x) {
  F a = magnitude(x);
  Int<F> e = split<true>(a, kBitsOfOne).e;
  e = a == kInf ? (Int<F>)2147483647 : e;
  return ((a == 0.0f) | (a != a)) ? (Int<F>)kIlogbOfZero : e;
}

template <bool Fast, class F> SM_INLINE F ldexp(F x, Int<F> k) {
  Int<F> exponent;
  F m = frexp<Fast>(x, exponent);
  k = k > 400 ? (Int<F>)400 : k;
  k = k < -400 ? (Int<F>)-400 : k;
  k += exponent;
  k = k > 200 ? (Int<F>)200 : k;
  return scale(m, k < -200 ? (Int<F>)-200 : k);
}

// Bits are ordered as magnitudes are.
template <bool Fast, class F> SM_INLINE F nextafter(F x, F y) {
  using I = Int<F>;
  I sign = (I)(-2147483647 - 1);
  I up = bits<I>(x) + ((y > x) == (x > 0.0f) ? (I)1 : (I)-1);
  I next = x == 0.0f ? (bits<I>(y) & sign) | 1 : up;
  F r = x == y ? y : bits<F>(next);
  return ((x != x) | (y != y)) ? x + y : r;
}

// One step of a long division: r * 2^k modulo m, for r < m < 2 and k <= 21. `inverse` is a little
// more than 1 / m, so q is right or one too large; one too small would leave a rest
// that is not a float.
template <class F> SM_INLINE F modulo_step(F r, Int<F> k, F m, F inverse) {
  r *= power_of_two<F>(bits<Uint<F>>(k));
  F q = __builtin_elementwise_trunc(r * inverse);
  r = fma(-q, m, r);
  return r < 0.0f ? r + m : r;
}

template <bool Fast, class F> SM_INLINE F fmod(F x, F y) {
  if constexpr (Fast) {
    F r = fma(-__builtin_elementwise_trunc(x / y), y, x);
    return magnitude(x) < magnitude(y) ? x : r;
  }
  F ax = magnitude(x), ay = magnitude(y);
  Split<F> a = split<true>(ax, kBitsOfOne), b = split<true>(ay, kBitsOfOne);
  F inverse = 1.0f / b.m * 0x1.000004p+0f;
  F r = a.m >= b.m ? a.m - b.m : a.m;
  Int<F> left = a.e - b.e;
  left = left < 0 ? (Int<F>)0 : left;
#pragma clang loop unroll(full)
  for (int step = 0; step < 14; ++step) {  // 14 * 21 bits cover the 277 binades of a float
    Int<F> k = left > 21 ? (Int<F>)21 : left;
    r = modulo_step(r, k, b.m, inverse);
    left -= k;
  }
  r = ax < ay ? x : with_sign(scale(r, b.e), x);
  return ((ax < kInf) & (ay > 0.0f)) ? r : (F)kNan;
}

SM_PRECISE_END

}  // namespace softmetal::math

#endif
