// asin, acos, atan, atan2.
#ifndef SOFTMETAL_MATH_ARC_H
#define SOFTMETAL_MATH_ARC_H

#include <softmetal/math_trig.h>

namespace softmetal::math {

SM_PRECISE_BEGIN

// asin(a) = pi / 2 - 2 asin(sqrt((1 - a) / 2)): `core` is the arcsine of a number up to 1/2.
template <class F> struct ArcSine {
  F core;
  Int<F> large;
};
template <bool Fast, class F> SM_INLINE ArcSine<F> arc_sine(F a) {
  auto large = a > 0.5f;
  F z = large ? fma(a, -0.5f, 0.5f) : a * a;
  F s = large ? __builtin_elementwise_sqrt(z) : a;
  F p;
  if constexpr (Fast)
    p = poly(z, 0x1.554f8ap-3f, 0x1.34e0fep-4f, 0x1.47b424p-5f, 0x1.99c5fap-5f);
  else
    p = poly(z, 0x1.5555cap-3f, 0x1.330164p-4f, 0x1.748b32p-5f, 0x1.8ba79ep-6f, 0x1.59daa8p-5f);
  return {fma(s * z, p, s), large ? (Int<F>)-1 : (Int<F>)0};
}

template <bool Fast, class F> SM_INLINE F asin(F x) {
  ArcSine<F> a = arc_sine<Fast>(magnitude(x));
  F y = a.large < 0 ? kHalfPi0 + fma(a.core, -2.0f, kHalfPi1) : a.core;
  return with_sign(y, x);
}

template <bool Fast, class F> SM_INLINE F acos(F x) {
  ArcSine<F> a = arc_sine<Fast>(magnitude(x));
  F twice = a.core + a.core;
  F large = x < 0.0f ? 2.0f * kHalfPi0 - (twice - 2.0f * kHalfPi1) : twice;
  F small = kHalfPi0 - (with_sign(a.core, x) - kHalfPi1);
  return a.large < 0 ? large : small;
}

// atan of a number from 0 to 1.
template <bool Fast, class F> SM_INLINE F atan_up_to_one(F q) {
  F z = q * q, p;
  if constexpr (Fast)
    p = poly(z, -0x1.5552dep-2f, 0x1.99127cp-3f, -0x1.1f916ap-3f, 0x1.985134p-4f, -0x1.ed3512p-5f,
             0x1.954650p-6f, -0x1.3c1580p-8f);
  else
    p = poly(z, -0x1.555552p-2f, 0x1.99981cp-3f, -0x1.247620p-3f, 0x1.c51170p-4f, -0x1.6953bcp-4f,
             0x1.150a00p-4f, -0x1.7080bap-5f, 0x1.753040p-6f, -0x1.e6a0ecp-8f, 0x1.29687ep-10f);
  return fma(q * z, p, q);
}

template <bool Fast, class F> SM_INLINE F atan(F x) {
  F a = magnitude(x);
  auto steep = a > 1.0f;
  F r = atan_up_to_one<Fast>(steep ? 1.0f / a : a);
  return with_sign(steep ? kHalfPi0 - (r - kHalfPi1) : r, x);
}

template <bool Fast, class F> SM_INLINE F atan2(F y, F x) {
  F ax = magnitude(x), ay = magnitude(y);
  auto steep = ay > ax;
  F top = steep ? ax : ay, bottom = steep ? ay : ax;
  F q = top / bottom;
  q = bottom == 0.0f ? (F)0.0f : q;
  q = top == kInf ? (F)1.0f : q;
  F r = atan_up_to_one<Fast>(q);
  r = steep ? kHalfPi0 - (r - kHalfPi1) : r;
  // The sign bit of x decides, so that -0 is to the left.
  r = bits<Int<F>>(x) < 0 ? 2.0f * kHalfPi0 - (r - 2.0f * kHalfPi1) : r;
  return with_sign(((x != x) | (y != y)) ? x + y : r, y);
}

SM_PRECISE_END

}  // namespace softmetal::math

#endif
