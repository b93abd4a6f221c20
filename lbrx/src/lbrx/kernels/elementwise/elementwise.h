// Elementwise operations by name, which generated kernels call. Halves are computed as float, so T
// is float, an integer type or bool. For safe maths: NaN and infinity are kept. An operation gives
// the same bits in every kernel, so nothing is contracted, within it or with its neighbours.
#pragma once
#include <metal_stdlib>
using namespace metal;

#ifdef EXCESS_PRECISION
#pragma METAL fp contract(fast)
#else
#pragma METAL fp contract(off)
#endif

// Conversion between element types. A float that an integer type cannot hold becomes the type's
// nearest value and NaN becomes 0, as GPUs convert to int; smaller types need a clamp after it.
template <typename To, typename From>
inline To to(From x) { return To(x); }
template <> inline char to<char, float>(float x) { return char(clamp(int(x), -128, 127)); }
template <> inline uchar to<uchar, float>(float x) { return uchar(clamp(int(x), 0, 255)); }
template <> inline short to<short, float>(float x) { return short(clamp(int(x), -32768, 32767)); }
template <> inline ushort to<ushort, float>(float x) { return ushort(clamp(int(x), 0, 65535)); }

// Integers wrap, but a compiler may assume that signed ones, as also ushort becomes one, do not: these
// are computed as unsigned ones. Products of smaller types fit an int.
template <typename T> struct Wrapping { using type = T; };
template <> struct Wrapping<ushort> { using type = uint; };
template <> struct Wrapping<int> { using type = uint; };
template <> struct Wrapping<long> { using type = ulong; };

template <typename T> inline typename Wrapping<T>::type wrapping(T x) {
  return typename Wrapping<T>::type(x);
}

namespace op {

// ---- unary ----

template <typename T> inline T negative(T x) { return T(-wrapping(x)); }
template <typename T> inline T square(T x) { return T(wrapping(x) * wrapping(x)); }
template <typename T> inline T sign(T x) { return T((x > T(0)) - (x < T(0))); }
template <> inline float sign(float x) {
  return isnan(x) ? x : float((x > 0) - (x < 0));
}
template <typename T> inline T abs(T x) { return x < T(0) ? negative(x) : x; }
template <> inline float abs(float x) { return fabs(x); }
template <> inline bool abs(bool x) { return x; }

// Integers stay as they are.
template <typename T> inline T floor(T x) { return x; }
template <typename T> inline T ceil(T x) { return x; }
template <typename T> inline T trunc(T x) { return x; }
template <typename T> inline T round(T x) { return x; }
template <> inline float floor(float x) { return metal::floor(x); }
template <> inline float ceil(float x) { return metal::ceil(x); }
template <> inline float trunc(float x) { return metal::trunc(x); }
template <> inline float round(float x) { return metal::rint(x); }

inline float exp(float x) { return metal::exp(x); }
inline float exp2(float x) { return metal::exp2(x); }
inline float log(float x) { return metal::log(x); }
inline float log2(float x) { return metal::log2(x); }
inline float log10(float x) { return metal::log10(x); }
inline float sqrt(float x) { return metal::sqrt(x); }
inline float rsqrt(float x) { return 1.0f / metal::sqrt(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline float sin(float x) { return metal::sin(x); }
inline float cos(float x) { return metal::cos(x); }
inline float tan(float x) { return metal::tan(x); }
inline float asin(float x) { return metal::asin(x); }
inline float acos(float x) { return metal::acos(x); }
inline float atan(float x) { return metal::atan(x); }
inline float sinh(float x) { return metal::sinh(x); }
inline float cosh(float x) { return metal::cosh(x); }
inline float asinh(float x) { return metal::asinh(x); }
inline float acosh(float x) { return metal::acosh(x); }
inline float atanh(float x) { return metal::atanh(x); }

// W. Kahan's corrections of the error that rounding to y causes near 0.
inline float expm1(float x) {
  const float y = metal::exp(x);
  const float near = (y - 1.0f) * x / metal::log(y);
  return y == 1.0f ? x : (metal::abs(x) < 0.5f ? near : y - 1.0f);
}
inline float log1p(float x) {
  const float y = 1.0f + x;
  const float near = metal::log(y) * x / (y - 1.0f);
  return y == 1.0f ? x : (metal::abs(x) < 0.5f ? near : metal::log(y));
}

// Polynomials fitted to erf(x) / x - 1 below 0.9 and to log(1 - erf(x)) + x above: 1.1 ulp.
inline float erf(float x) {
  const float s = x * x;
  float low = 8.53883903e-5f;
  low = fma(low, s, -8.18192726e-4f);
  low = fma(low, s, 5.20443590e-3f);
  low = fma(low, s, -2.68607531e-2f);
  low = fma(low, s, 1.12837195e-1f);
  low = fma(low, s, -3.76126349e-1f);
  low = fma(low, s, 1.28379166e-1f);
  low = fma(low, x, x);
  const float t = metal::min(fabs(x), 4.0f);
  float high = 1.97171132e-4f;
  high = fma(high, t, -3.05551663e-3f);
  high = fma(high, t, 2.22767703e-2f);
  high = fma(high, t, -1.04036786e-1f);
  high = fma(high, t, -6.37060344e-1f);
  high = fma(high, t, -1.27749264e-1f);
  high = fma(high, t, -1.77558468e-4f);
  high = copysign(1.0f - metal::exp(high - t), x);
  return isnan(x) ? x : (t < 0.9f ? low : high);
}

template <typename T> inline T bitwise_invert(T x) { return T(~x); }
template <> inline bool bitwise_invert(bool x) { return !x; }
template <typename T> inline bool logical_not(T x) { return x == T(0); }
template <typename T> inline bool isnan(T) { return false; }
template <typename T> inline bool isinf(T) { return false; }
template <typename T> inline bool isfinite(T) { return true; }
template <> inline bool isnan(float x) { return metal::isnan(x); }
template <> inline bool isinf(float x) { return metal::isinf(x); }
template <> inline bool isfinite(float x) { return metal::isfinite(x); }
template <typename T> inline bool signbit(T x) { return x < T(0); }
template <> inline bool signbit(bool) { return false; }
template <> inline bool signbit(float x) { return as_type<int>(x) < 0; }

// ---- binary ----

template <typename T> inline T add(T x, T y) { return T(wrapping(x) + wrapping(y)); }
template <typename T> inline T subtract(T x, T y) { return T(wrapping(x) - wrapping(y)); }
template <typename T> inline T multiply(T x, T y) { return T(wrapping(x) * wrapping(y)); }
inline float divide(float x, float y) { return x / y; }
inline float atan2(float x, float y) { return metal::atan2(x, y); }
inline float copysign(float x, float y) { return metal::copysign(x, y); }

// Divided by the larger one first, so that squares neither overflow nor vanish.
inline float hypot(float x, float y) {
  const float large = fmax(fabs(x), fabs(y)), small = fmin(fabs(x), fabs(y));
  const float ratio = small / large;
  const float length = large * metal::sqrt(1.0f + ratio * ratio);
  const bool infinite = metal::isinf(x) || metal::isinf(y);
  if (!infinite && (metal::isnan(x) || metal::isnan(y))) return x + y;
  return infinite ? INFINITY : (large == 0.0f ? 0.0f : length);
}
inline float logaddexp(float x, float y) {
  const float apart = x == y ? 0.0f : fabs(x - y);
  return (x > y ? x : y) + log1p(metal::exp(-apart));
}

// Floats of one sign are ordered as their bits, and zero has two.
inline float nextafter(float x, float y) {
  if (metal::isnan(x) || metal::isnan(y)) return x + y;
  if (x == y) return y;
  if (x == 0.0f) return as_type<float>(1u | (as_type<uint>(y) & 0x80000000u));
  return as_type<float>(as_type<uint>(x) + ((x < y) == (x > 0.0f) ? 1u : ~0u));
}

// NaN is propagated, as in numpy.
template <typename T> inline T maximum(T x, T y) { return x > y ? x : y; }
template <typename T> inline T minimum(T x, T y) { return x < y ? x : y; }
template <> inline float maximum(float x, float y) { return (!(x <= y) & !metal::isnan(y)) ? x : y; }
template <> inline float minimum(float x, float y) { return (!(x >= y) & !metal::isnan(y)) ? x : y; }

// Integer division rounds towards minus infinity; division by zero gives 0 and does not trap.
template <typename T> inline T remainder(T x, T y) {
  const bool trivial = y == T(0) || (T(-1) < T(0) && y == T(-1));
  const T rest = T(x % (trivial ? T(1) : y));
  return trivial ? T(0) : (rest != T(0) && (rest < T(0)) != (y < T(0)) ? T(rest + y) : rest);
}
template <typename T> inline T floor_divide(T x, T y) {
  // For unsigned types T(-1) is the largest value: only x == y then gives 1.
  if (y == T(-1)) return T(-1) < T(0) ? negative(x) : T(x == T(-1));
  const T safe = y == T(0) ? T(1) : y;
  const T quotient = T(x / safe);
  const bool below = T(x % safe) != T(0) && (x < T(0)) != (y < T(0));
  return y == T(0) ? T(0) : T(quotient - T(below));
}
template <> inline float remainder(float x, float y) {
  const float rest = fmod(x, y);
  return rest != 0.0f && (rest < 0.0f) != (y < 0.0f) ? rest + y : copysign(rest, rest == 0.0f ? y : rest);
}
template <> inline float floor_divide(float x, float y) {
  const float rest = fmod(x, y);
  const bool below = rest != 0.0f && (rest < 0.0f) != (y < 0.0f);
  const float quotient = (x - rest) / y - float(below);
  const float whole = metal::floor(quotient);
  const float nearest = quotient - whole > 0.5f ? whole + 1.0f : whole;
  return y == 0.0f ? x / y : (quotient == 0.0f ? copysign(0.0f, x / y) : nearest);
}

// Exponentiation by squaring. Negative exponents give 1/x rounded towards zero.
template <typename T> inline T pow(T x, T y) {
  if (y < T(0)) {
    return x == T(1) ? T(1) : (x == T(-1) ? ((y & T(1)) != T(0) ? T(-1) : T(1)) : T(0));
  }
  T result = T(1);
  for (T left = y; left != T(0); left = T(left >> 1)) {
    if ((left & T(1)) != T(0)) result = multiply(result, x);
    x = square(x);
  }
  return result;
}
template <> inline float pow(float x, float y) { return metal::pow(x, y); }

template <typename T> inline T bitwise_and(T x, T y) { return T(x & y); }
template <typename T> inline T bitwise_or(T x, T y) { return T(x | y); }
template <typename T> inline T bitwise_xor(T x, T y) { return T(x ^ y); }
// Shifts by the width or more give 0, or -1 for negative numbers shifted right.
template <typename T> inline T bitwise_left_shift(T x, T y) {
  return ulong(y) < 8 * sizeof(T) ? T(ulong(x) << ulong(y)) : T(0);
}
template <typename T> inline T bitwise_right_shift(T x, T y) {
  const bool fits = ulong(y) < 8 * sizeof(T);
  return T(x >> (fits ? y : T(8 * sizeof(T) - 1))) & (fits || x < T(0) ? T(-1) : T(0));
}

template <typename T> inline bool equal(T x, T y) { return x == y; }
template <typename T> inline bool not_equal(T x, T y) { return x != y; }
template <typename T> inline bool less(T x, T y) { return x < y; }
template <typename T> inline bool less_equal(T x, T y) { return x <= y; }
template <typename T> inline bool greater(T x, T y) { return x > y; }
template <typename T> inline bool greater_equal(T x, T y) { return x >= y; }
template <typename T> inline bool logical_and(T x, T y) { return x != T(0) && y != T(0); }
template <typename T> inline bool logical_or(T x, T y) { return x != T(0) || y != T(0); }
template <typename T> inline bool logical_xor(T x, T y) { return (x != T(0)) != (y != T(0)); }

// ---- ternary ----

template <typename T> inline T where(bool condition, T x, T y) { return condition ? x : y; }
template <typename T> inline T fma(T x, T y, T z) { return add(multiply(x, y), z); }
template <> inline float fma(float x, float y, float z) { return metal::fma(x, y, z); }
template <typename T> inline T clip(T x, T low, T high) { return minimum(maximum(x, low), high); }

// ---- activations ----

template <typename T> inline T relu(T x) { return maximum(x, T(0)); }
inline float leaky_relu(float x, float slope) { return x > 0.0f ? x : x * slope; }
inline float sigmoid(float x) {
  const float small = metal::exp(-fabs(x));
  return (x >= 0.0f ? 1.0f : small) / (1.0f + small);
}
inline float tanh(float x) { return metal::tanh(x); }
inline float gelu(float x) { return 0.5f * x * (1.0f + erf(x * M_SQRT1_2_F)); }
inline float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + metal::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
}
inline float silu(float x) { return x * sigmoid(x); }
inline float softplus(float x) { return maximum(x, 0.0f) + log1p(metal::exp(-fabs(x))); }
inline float swiglu(float gate, float x) { return silu(gate) * x; }
inline float geglu(float gate, float x) { return gelu(gate) * x; }
inline float geglu_tanh(float gate, float x) { return gelu_tanh(gate) * x; }

}  // namespace op

#pragma METAL fp contract(on)  // the default of safe math, for including files
