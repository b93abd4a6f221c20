// What the maths kernels are written in: one name for an operation on a float and on a native
// vector of floats. Kernels take no branch and call nothing, so loops over them vectorise.
//
// fptosi of NaN or of a number out of range is undefined, so integers come out of floats by adding
// kRound and reading the low bits.
#ifndef SOFTMETAL_MATH_LANES_H
#define SOFTMETAL_MATH_LANES_H

#include <softmetal/config.h>
#include <softmetal/vec.h>

namespace softmetal::math {

template <class F> struct lanes;
template <> struct lanes<float> {
  using Float = float;
  using Int = int;
  using Uint = unsigned;
  using Ulong = unsigned long;
};
template <int N> struct lanes<native_t<float, N>> {
  using Float = native_t<float, N>;
  using Int = native_t<int, N>;
  using Uint = native_t<unsigned, N>;
  using Ulong = native_t<unsigned long, N>;
};
template <class F> using Same = typename lanes<F>::Float;  // not deduced: may be a constant
template <class F> using Int = typename lanes<F>::Int;
template <class F> using Uint = typename lanes<F>::Uint;
template <class F> using Ulong = typename lanes<F>::Ulong;

inline constexpr float kInf = __builtin_inff();
inline constexpr float kNan = __builtin_nanf("");
inline constexpr float kMinNormal = 0x1p-126f;
// Adding it rounds |x| < 2^22 to an integer, found in the low bits of the sum.
inline constexpr float kRound = 0x1.8p23f;

SM_PRECISE_BEGIN

template <class To, class From> SM_INLINE To bits(From x) { return __builtin_bit_cast(To, x); }

template <class To, class From> SM_INLINE To cast(From x) {
  if constexpr (__is_arithmetic(From))
    return (To)x;
  else
    return __builtin_convertvector(x, To);
}

template <class F> SM_INLINE F fma(F x, Same<F> y, Same<F> z) {
  return __builtin_elementwise_fma(x, y, z);
}
template <class F> SM_INLINE F magnitude(F x) { return __builtin_elementwise_abs(x); }
template <class F> SM_INLINE F with_sign(F x, F sign) {
  return __builtin_elementwise_copysign(x, sign);
}

// Keeps NaN.
template <class F> SM_INLINE F limit(F x, float low, float high) {
  x = x > high ? (F)high : x;
  return x < low ? (F)low : x;
}

// c0 + c1 x + c2 x^2 ..., by Horner's rule.
template <class F> SM_INLINE F poly(F, float c) { return (F)c; }
template <class F, class... C> SM_INLINE F poly(F x, float c0, C... rest) {
  return fma(poly(x, rest...), x, c0);
}

// 2^k for -127 < k < 128.
template <class F> SM_INLINE F power_of_two(Uint<F> k) { return bits<F>((k + 127u) << 23); }

// x * 2^k, rounded once, for |k| < 253 and a normal x near 1.
template <class F> SM_INLINE F scale(F x, Int<F> k) {
  Int<F> half = k >> 1;
  return x * power_of_two<F>(bits<Uint<F>>(half)) * power_of_two<F>(bits<Uint<F>>(k - half));
}

// x = m * 2^e with m in [low, 2 low), where `low` is given by its bits; x is positive and finite.
template <class F> struct Split {
  F m;
  Int<F> e;
};
template <bool Denormals, class F> SM_INLINE Split<F> split(F x, int low) {
  Int<F> shift = (Int<F>)0;
  if constexpr (Denormals) {
    auto tiny = x < kMinNormal;
    x = tiny ? x * 0x1p24f : x;
    shift = tiny ? (Int<F>)24 : (Int<F>)0;
  }
  Int<F> e = (bits<Int<F>>(x) - low) >> 23;
  F m = bits<F>(bits<Uint<F>>(x) - (bits<Uint<F>>(e) << 23));
  return {m, e - shift};
}
inline constexpr int kBitsOfOne = 0x3f800000;
inline constexpr int kBitsOfSqrtHalf = 0x3f3504f3;

SM_PRECISE_END

}  // namespace softmetal::math

#endif
