// The functions of metal_math, for the namespace SM_MATH_SPACE; SM_MATH_FAST chooses the kernels.

#define SM_KERNEL(name, ...) \
  softmetal::math::name<softmetal::math::quick<SM_MATH_FAST, __VA_ARGS__>>
#define SM_RESULT(...) softmetal::math::narrow<__VA_ARGS__>

#define SM_1(name, ...)                                                                 \
  SM_INLINE __VA_ARGS__ name(__VA_ARGS__ x) {                                           \
    return SM_RESULT(__VA_ARGS__)(SM_KERNEL(name, __VA_ARGS__)(softmetal::math::widen(x))); \
  }
#define SM_2(name, ...)                                                                 \
  SM_INLINE __VA_ARGS__ name(__VA_ARGS__ x, __VA_ARGS__ y) {                            \
    return SM_RESULT(__VA_ARGS__)(SM_KERNEL(name, __VA_ARGS__)(                         \
        softmetal::math::widen(x), softmetal::math::widen(y)));                         \
  }
#define SM_3(name, ...)                                                                 \
  SM_INLINE __VA_ARGS__ name(__VA_ARGS__ x, __VA_ARGS__ y, __VA_ARGS__ z) {             \
    return SM_RESULT(__VA_ARGS__)(SM_KERNEL(name, __VA_ARGS__)(                         \
        softmetal::math::widen(x), softmetal::math::widen(y), softmetal::math::widen(z))); \
  }
// A result and a second one of the same type, by reference.
#define SM_1_OUT(name, ...)                                                             \
  SM_INLINE __VA_ARGS__ name(__VA_ARGS__ x, SM_THREAD __VA_ARGS__& out) {               \
    using F = softmetal::math::kernel_t<__VA_ARGS__>;                                   \
    F second;                                                                           \
    auto first = softmetal::math::name<softmetal::math::quick<SM_MATH_FAST, __VA_ARGS__>, F>( \
        softmetal::math::widen(x), second);                                             \
    out = SM_RESULT(__VA_ARGS__)(second);                                               \
    return SM_RESULT(__VA_ARGS__)(first);                                               \
  }
#define SM_EXPONENTS(unused, ...)                                                       \
  SM_INLINE __VA_ARGS__ frexp(__VA_ARGS__ x,                                            \
                              SM_THREAD softmetal::math::int_t<__VA_ARGS__>& exponent) { \
    softmetal::math::Int<softmetal::math::kernel_t<__VA_ARGS__>> e;                     \
    auto m = softmetal::math::frexp<SM_MATH_FAST>(softmetal::math::widen(x), e);        \
    exponent = softmetal::math::integers_of<__VA_ARGS__>(e);                            \
    return SM_RESULT(__VA_ARGS__)(m);                                                   \
  }                                                                                     \
  SM_INLINE __VA_ARGS__ ldexp(__VA_ARGS__ x, softmetal::math::int_t<__VA_ARGS__> k) {   \
    return SM_RESULT(__VA_ARGS__)(softmetal::math::ldexp<SM_MATH_FAST>(                 \
        softmetal::math::widen(x), softmetal::math::integers<__VA_ARGS__>(k)));         \
  }                                                                                     \
  SM_INLINE softmetal::math::int_t<__VA_ARGS__> ilogb(__VA_ARGS__ x) {                  \
    return softmetal::math::integers_of<__VA_ARGS__>(                                   \
        softmetal::math::ilogb<SM_MATH_FAST>(softmetal::math::widen(x)));               \
  }
// Functions with a separate implementation for half.
#define SM_BY_TYPE(unused, ...)                                                         \
  SM_INLINE __VA_ARGS__ fma(__VA_ARGS__ x, __VA_ARGS__ y, __VA_ARGS__ z) {              \
    return softmetal::math::fma_as<__VA_ARGS__>(x, y, z);                               \
  }                                                                                     \
  SM_INLINE __VA_ARGS__ fract(__VA_ARGS__ x) { return softmetal::math::fract_as<__VA_ARGS__>(x); } \
  SM_INLINE __VA_ARGS__ nextafter(__VA_ARGS__ x, __VA_ARGS__ y) {                       \
    return softmetal::math::nextafter_as<__VA_ARGS__>(x, y);                            \
  }                                                                                     \
  SM_INLINE __VA_ARGS__ fmod(__VA_ARGS__ x, __VA_ARGS__ y) {                            \
    constexpr bool fast = SM_MATH_FAST && !softmetal::math::is_half<__VA_ARGS__>;       \
    return SM_RESULT(__VA_ARGS__)(softmetal::math::fmod<fast>(                          \
        softmetal::math::widen(x), softmetal::math::widen(y)));                         \
  }

#define SM_EACH_TYPE(M, name)                                             \
  M(name, float) M(name, vec<float, 2>) M(name, vec<float, 3>)            \
  M(name, vec<float, 4>) M(name, half) M(name, vec<half, 2>)              \
  M(name, vec<half, 3>) M(name, vec<half, 4>)

#define SM_WIDE softmetal::math::from_bfloat
#define SM_BFLOAT_1(name)                                                               \
  template <class B> SM_INLINE auto name(B x) -> decltype(SM_MATH_SPACE::name(SM_WIDE(x))) { \
    return SM_MATH_SPACE::name(SM_WIDE(x));                                             \
  }
#define SM_BFLOAT_2(name)                                                               \
  template <class B> SM_INLINE softmetal::math::float_for<B> name(B x, B y) {           \
    return SM_MATH_SPACE::name(SM_WIDE(x), SM_WIDE(y));                                 \
  }
#define SM_BFLOAT_3(name)                                                               \
  template <class B> SM_INLINE softmetal::math::float_for<B> name(B x, B y, B z) {      \
    return SM_MATH_SPACE::name(SM_WIDE(x), SM_WIDE(y), SM_WIDE(z));                     \
  }

#define SM_UNARY(name) SM_EACH_TYPE(SM_1, name) SM_BFLOAT_1(name)
#define SM_BINARY(name) SM_EACH_TYPE(SM_2, name) SM_BFLOAT_2(name)
#define SM_TERNARY(name) SM_EACH_TYPE(SM_3, name) SM_BFLOAT_3(name)

#ifndef SM_MACROS_ONLY  // most of what the preprocessor would write, for it to be dropped
SM_UNARY(abs) SM_UNARY(acos) SM_UNARY(acosh) SM_UNARY(asin) SM_UNARY(asinh) SM_UNARY(atan)
SM_UNARY(atanh) SM_UNARY(ceil) SM_UNARY(cos) SM_UNARY(cosh) SM_UNARY(cospi) SM_UNARY(exp)
SM_UNARY(exp10) SM_UNARY(exp2) SM_UNARY(fabs) SM_UNARY(floor) SM_UNARY(log) SM_UNARY(log10)
SM_UNARY(log2) SM_UNARY(rint) SM_UNARY(round) SM_UNARY(rsqrt) SM_UNARY(sin) SM_UNARY(sinh)
SM_UNARY(sinpi) SM_UNARY(sqrt) SM_UNARY(tan) SM_UNARY(tanh) SM_UNARY(tanpi) SM_UNARY(trunc)
SM_BINARY(atan2) SM_BINARY(copysign) SM_BINARY(divide) SM_BINARY(fdim) SM_BINARY(fmax)
SM_BINARY(fmin) SM_BINARY(max) SM_BINARY(min) SM_BINARY(pow) SM_BINARY(powr)
SM_TERNARY(fmax3) SM_TERNARY(fmedian3) SM_TERNARY(fmin3) SM_TERNARY(max3) SM_TERNARY(median3)
SM_TERNARY(min3)
SM_EACH_TYPE(SM_1_OUT, modf) SM_EACH_TYPE(SM_1_OUT, sincos)
SM_EACH_TYPE(SM_EXPONENTS, ) SM_EACH_TYPE(SM_BY_TYPE, )
SM_BFLOAT_1(fract) SM_BFLOAT_1(ilogb) SM_BFLOAT_2(fmod) SM_BFLOAT_2(nextafter) SM_BFLOAT_3(fma)
#endif

#undef SM_KERNEL
#undef SM_RESULT
#undef SM_1
#undef SM_2
#undef SM_3
#undef SM_1_OUT
#undef SM_EXPONENTS
#undef SM_BY_TYPE
#undef SM_EACH_TYPE
#undef SM_WIDE
#undef SM_BFLOAT_1
#undef SM_BFLOAT_2
#undef SM_BFLOAT_3
#undef SM_UNARY
#undef SM_BINARY
#undef SM_TERNARY
#undef SM_MATH_FAST
#undef SM_MATH_SPACE
