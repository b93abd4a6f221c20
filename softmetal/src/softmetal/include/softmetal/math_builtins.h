// Inner names of Apple's headers that programs call too. The last argument asks for the fast form.
#ifndef SOFTMETAL_MATH_BUILTINS_H
#define SOFTMETAL_MATH_BUILTINS_H

#define SM_BUILTIN_1(name)                                         \
  template <class T> SM_INLINE auto __metal_##name(T x, bool fast) { \
    return fast ? metal::fast::name(x) : metal::precise::name(x);  \
  }
#define SM_BUILTIN_2(name)                                              \
  template <class T> SM_INLINE auto __metal_##name(T x, T y, bool fast) { \
    return fast ? metal::fast::name(x, y) : metal::precise::name(x, y); \
  }
#define SM_BUILTIN_3(name)                                                    \
  template <class T> SM_INLINE auto __metal_##name(T x, T y, T z, bool fast) { \
    return fast ? metal::fast::name(x, y, z) : metal::precise::name(x, y, z); \
  }
#define SM_BUILTIN_OUT(name)                                               \
  template <class T> SM_INLINE T __metal_##name(T x, SM_THREAD T* out, bool fast) { \
    return fast ? metal::fast::name(x, *out) : metal::precise::name(x, *out); \
  }

SM_BUILTIN_1(acos) SM_BUILTIN_1(acosh) SM_BUILTIN_1(asin) SM_BUILTIN_1(asinh) SM_BUILTIN_1(atan)
SM_BUILTIN_1(atanh) SM_BUILTIN_1(ceil) SM_BUILTIN_1(cos) SM_BUILTIN_1(cosh) SM_BUILTIN_1(cospi)
SM_BUILTIN_1(exp) SM_BUILTIN_1(exp10) SM_BUILTIN_1(exp2) SM_BUILTIN_1(fabs) SM_BUILTIN_1(floor)
SM_BUILTIN_1(fract) SM_BUILTIN_1(log) SM_BUILTIN_1(log10) SM_BUILTIN_1(log2) SM_BUILTIN_1(rint)
SM_BUILTIN_1(round) SM_BUILTIN_1(rsqrt) SM_BUILTIN_1(sin) SM_BUILTIN_1(sinh) SM_BUILTIN_1(sinpi)
SM_BUILTIN_1(sqrt) SM_BUILTIN_1(tan) SM_BUILTIN_1(tanh) SM_BUILTIN_1(tanpi) SM_BUILTIN_1(trunc)
SM_BUILTIN_2(atan2) SM_BUILTIN_2(divide) SM_BUILTIN_2(fdim) SM_BUILTIN_2(fmax) SM_BUILTIN_2(fmin)
SM_BUILTIN_2(fmod) SM_BUILTIN_2(pow) SM_BUILTIN_2(powr)
SM_BUILTIN_3(fmax3) SM_BUILTIN_3(fmedian3) SM_BUILTIN_3(fmin3)
SM_BUILTIN_OUT(modf) SM_BUILTIN_OUT(sincos)

template <class T> SM_INLINE T __metal_copysign(T x, T y) { return metal::copysign(x, y); }
template <class T> SM_INLINE T __metal_fma(T x, T y, T z) { return metal::fma(x, y, z); }
template <class T> SM_INLINE T __metal_nextafter(T x, T y) { return metal::nextafter(x, y); }
template <class T> SM_INLINE auto __metal_ilogb(T x) { return metal::ilogb(x); }
template <class T> SM_INLINE T __metal_frexp(T x, SM_THREAD softmetal::math::int_t<T>* exponent) {
  return metal::frexp(x, *exponent);
}
template <class T> SM_INLINE T __metal_ldexp(T x, softmetal::math::int_t<T> k, bool) {
  return metal::ldexp(x, k);
}

#undef SM_BUILTIN_1
#undef SM_BUILTIN_2
#undef SM_BUILTIN_3
#undef SM_BUILTIN_OUT

#endif
