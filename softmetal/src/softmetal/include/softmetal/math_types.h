// How MSL's argument types reach the kernels, which know only float and native vectors of it.
#ifndef SOFTMETAL_MATH_TYPES_H
#define SOFTMETAL_MATH_TYPES_H

#include <softmetal/math_parts.h>

namespace softmetal::math {

template <class T> inline constexpr bool is_half = __is_same(element_t<T>, metal::half);

// Halves need no more than the fast kernels give.
template <bool Fast, class T> inline constexpr bool quick = Fast || is_half<T>;

template <class T> struct kernel_type { using type = float; };
template <class T, int N> struct kernel_type<metal::vec<T, N>> { using type = native_t<float, N>; };
template <class T> using kernel_t = typename kernel_type<T>::type;

template <class T> struct int_type { using type = int; };
template <class T, int N> struct int_type<metal::vec<T, N>> { using type = metal::vec<int, N>; };
template <class T> using int_t = typename int_type<T>::type;

// The float type of the same size for bfloat and its vectors; others have none.
template <class B> struct float_type {};
template <> struct float_type<metal::bfloat> { using type = float; };
template <int N> struct float_type<metal::vec<metal::bfloat, N>> {
  using type = metal::vec<float, N>;
};
template <class B> using float_for = typename float_type<B>::type;

SM_PRECISE_BEGIN

template <class T> SM_INLINE kernel_t<T> widen(T x) {
  if constexpr (count_v<T> == 1)
    return (float)x;
  else
    return convert<float, T::size, element_t<T>>(x.get());
}

template <class T, class F> SM_INLINE T narrow(F x) {
  if constexpr (count_v<T> == 1)
    return (T)x;
  else
    return T::from(convert<element_t<T>, T::size, float>(x));
}

template <class T> SM_INLINE Int<kernel_t<T>> integers(int_t<T> k) {
  if constexpr (count_v<T> == 1)
    return k;
  else
    return k.get();
}

template <class T> SM_INLINE int_t<T> integers_of(Int<kernel_t<T>> k) {
  if constexpr (count_v<T> == 1)
    return k;
  else
    return int_t<T>::from(k);
}

// Shifted by hand: LLVM would do floor and the like in bfloat, and call a library to round it back.
template <class B> SM_INLINE float_for<B> from_bfloat(B x) {
  if constexpr (count_v<B> == 1)
    return bits<float>((unsigned)bits<unsigned short>(x) << 16);
  else {
    constexpr int n = B::size;
    auto b = bits<native_t<unsigned short, n>>(x.get());
    return float_for<B>::from(
        bits<native_t<float, n>>(__builtin_convertvector(b, native_t<unsigned, n>) << 16));
  }
}

// Rounding a float sum again to half would be wrong at ties: an inexact sum is made odd.
template <class F> SM_INLINE F fma_for_half(F x, F y, F z) {
  F p = x * y;  // exact: 22 bits
  F sum = p + z, rest = sum - p;
  F error = (p - (sum - rest)) + (z - rest);
  Int<F> b = bits<Int<F>>(sum);
  auto even_and_inexact = ((b & 1) == 0) & (error != 0.0f) & (magnitude(sum) < kInf);
  Int<F> toward = (error > 0.0f) == (sum > 0.0f) ? (Int<F>)1 : (Int<F>)-1;
  return bits<F>(even_and_inexact ? b + toward : b);
}

template <class T> SM_INLINE T fma_as(T x, T y, T z) {
  if constexpr (is_half<T>)
    return narrow<T>(fma_for_half(widen(x), widen(y), widen(z)));
  else
    return narrow<T>(fma(widen(x), widen(y), widen(z)));
}

template <class T> SM_INLINE T fract_as(T x) {
  return narrow<T>(fract(widen(x), is_half<T> ? 0x1.ffcp-1f : 0x1.fffffep-1f));
}

SM_INLINE metal::half next_half(metal::half x, metal::half y) {
  short b = bits<short>(x);
  short next = (short)(b + ((y > x) == (x > (metal::half)0) ? 1 : -1));
  short from_zero = (short)((bits<short>(y) & -32768) | 1);
  metal::half r = bits<metal::half>(x == (metal::half)0 ? from_zero : next);
  r = x == y ? y : r;
  return ((x != x) | (y != y)) ? x + y : r;
}

template <class T> SM_INLINE T nextafter_as(T x, T y) {
  if constexpr (!is_half<T>)
    return narrow<T>(nextafter<false>(widen(x), widen(y)));
  else if constexpr (count_v<T> == 1)
    return next_half(x, y);
  else
    return map([](auto a, auto b) { return next_half(a, b); }, x, y);
}

SM_PRECISE_END

}  // namespace softmetal::math

#endif
