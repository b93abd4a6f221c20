// exp, exp2, exp10, sinh, cosh, tanh.
#ifndef SOFTMETAL_MATH_EXP_H
#define SOFTMETAL_MATH_EXP_H

#include <softmetal/math_lanes.h>

// Instructions of the target, where it has some.
#if __has_include(<target/maths.h>)
#include <target/maths.h>
#endif

namespace softmetal::math {

SM_PRECISE_BEGIN

inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2Hi = 0x1.62e430p-1f, kLn2Lo = -0x1.05c610p-29f;
inline constexpr float kLog2Of10 = 0x1.a934f0p+1f, kLn10 = 0x1.26bb1cp+1f;
inline constexpr float kLog10Of2Hi = 0x1.344136p-2f, kLog10Of2Lo = -0x1.ec10c0p-27f;

// Good for |r| up to log(2) / 2; the fast functions go up to log(2) just below overflow.
template <class F> SM_INLINE F exp_near_zero(F r) {
  return poly(r, 1.0f, 1.0f, 0x1.000010p-1f, 0x1.5553f0p-3f, 0x1.5532f4p-5f, 0x1.129ac6p-7f,
              0x1.89774ap-10f);
}

template <class F> SM_INLINE F exp2_near_zero(F r) {
  return poly(r, 1.0f, 0x1.62e430p-1f, 0x1.ebfbdcp-3f, 0x1.c6af72p-5f, 0x1.3b2ddap-7f,
              0x1.5f0f74p-10f, 0x1.417a34p-13f);
}

// base^x = 2^n * rest(x, n). In the fast one a single scale covers the normal results: n stops at
// 127 and the polynomial grows to infinity; what would be denormal is zero.
template <bool Fast, class F, class Rest>
SM_INLINE F exponential(F x, float log2_base, float lowest, float highest, Rest rest) {
  if constexpr (Fast) {
    constexpr float bias = kRound + 127.0f;
    F t = fma(x, log2_base, bias);
    t = t > bias + 127.0f ? (F)(bias + 127.0f) : t;
    F r = rest(x, t - bias) * bits<F>(bits<Uint<F>>(t) << 23);
    return x < lowest ? (F)0.0f : r;
  } else {
    x = limit(x, lowest, highest);
    F t = fma(x, log2_base, kRound);
    return scale(rest(x, t - kRound), bits<Int<F>>(t) - bits<int>(kRound));
  }
}

#ifdef SM_HAS_EXP2
// One instruction for each element.
template <class F> SM_INLINE F fast_exp2(F x) {
  if constexpr (__is_same(F, float)) {
    return exp2_instruction(x);
  } else {
    // A vector of three has the size of one of four.
    for (unsigned i = 0; i < __builtin_vectorelements(F); ++i) x[i] = exp2_instruction(x[i]);
    return x;
  }
}
#endif

template <bool Fast, class F> SM_INLINE F exp(F x) {
#ifdef SM_HAS_EXP2
  if constexpr (Fast) return fast_exp2<F>(x * kLog2E);
#endif
  auto rest = [](F v, F n) __attribute__((always_inline)) {
    F r = fma(n, -kLn2Hi, v);
    return exp_near_zero(Fast ? r : fma(n, -kLn2Lo, r));
  };
  return exponential<Fast>(x, kLog2E, Fast ? -0x1.5d589ep+6f : -104.0f, 90.0f, rest);
}

template <bool Fast, class F> SM_INLINE F exp2(F x) {
#ifdef SM_HAS_EXP2
  if constexpr (Fast) return fast_exp2<F>(x);
#endif
  auto rest = [](F v, F n)
      __attribute__((always_inline)) { return exp2_near_zero(v - n); };
  return exponential<Fast>(x, 1.0f, Fast ? -126.0f : -150.5f, 129.0f, rest);
}

template <bool Fast, class F> SM_INLINE F exp10(F x) {
  auto rest = [](F v, F n) __attribute__((always_inline)) {
    F r = fma(n, -kLog10Of2Hi, v);
    r = fma(n, -kLog10Of2Lo, r);
    return exp_near_zero(r * kLn10);
  };
  return exponential<Fast>(x, kLog2Of10, Fast ? -0x1.2f7030p+5f : -45.5f, 39.0f, rest);
}

// e^a / 2, which does not overflow where sinh and cosh do not.
template <class F> SM_INLINE F half_exp(F a) {
  a = limit(a, 0.0f, 91.0f);
  F t = fma(a, kLog2E, kRound), n = t - kRound;
  F r = fma(n, -kLn2Lo, fma(n, -kLn2Hi, a));
  return scale(exp_near_zero(r), bits<Int<F>>(t) - bits<int>(kRound) - 1);
}

template <bool Fast, class F> SM_INLINE F cosh(F x) {
  F h = half_exp(magnitude(x));
  return h + 0.25f / h;
}

template <bool Fast, class F> SM_INLINE F sinh(F x) {
  F a = magnitude(x), z = x * x;
  F p = poly(z, 0x1.555556p-3f, 0x1.1110e4p-7f, 0x1.a01fccp-13f, 0x1.75ed60p-19f);
  F h = half_exp(a);
  return with_sign(a < 1.0f ? fma(a * z, p, a) : h - 0.25f / h, x);
}

// Fast: a rational function; from 9 on tanh rounds to 1.
template <bool Fast, class F> SM_INLINE F tanh(F x) {
  F a = magnitude(x), z = x * x, y;
  if constexpr (Fast) {
    F p = poly(z, 1.0f, 0x1.120b1ap-3f, 0x1.ca2c6cp-9f, 0x1.59c33cp-16f, 0x1.cadc94p-27f);
    F q = poly(z, 1.0f, 0x1.de5ad6p-2f, 0x1.a7f7e8p-6f, 0x1.588606p-12f, 0x1.a18006p-21f);
    y = a * p / q;
    y = y > 1.0f ? (F)1.0f : y;
    y = a > 9.0f ? (F)1.0f : y;
  } else {
    F p = poly(z, -0x1.555554p-2f, 0x1.11107ep-3f, -0x1.b9f2cep-5f, 0x1.63b710p-6f,
               -0x1.0cc55ep-7f, 0x1.1bcccep-9f);
    F small = fma(a * z, p, a);
    F large = 1.0f - 2.0f / (exp<false>(a + a) + 1.0f);
    y = a < 0.6f ? small : large;
  }
  return with_sign(y, x);
}

SM_PRECISE_END

}  // namespace softmetal::math

#endif
