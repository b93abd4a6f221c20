// What simdgroup and quadgroup functions accept, and the operations they reduce by.
#ifndef SOFTMETAL_LANE_TYPES_H
#define SOFTMETAL_LANE_TYPES_H

#include <softmetal/config.h>
#include <softmetal/vec.h>

namespace softmetal {

template <class T> constexpr bool is_real =
    __is_same(T, float) || __is_same(T, _Float16) || __is_same(T, __bf16);
// Metal has no such functions of bool, bfloat and 64-bit integers: MLX and PyTorch pass them as
// other types, and Apple's compiled kernels call none.
template <class T> constexpr bool is_lane_scalar =
    (__is_integral(T) && !__is_same(T, bool) && sizeof(T) <= 4) || __is_same(T, float) ||
    __is_same(T, _Float16);

// `type` is absent where there is no such overload. Enumerations promote, as they would with one
// overload for each type.
template <class T, bool Scalar = is_lane_scalar<T>, bool Promotes = __is_enum(T)>
struct lane_operand {};
template <class V, bool Scalar> struct lane_vector {};
template <class T> struct lane_operand<T, true, false> {
  using type = T;
  using element = T;
  static constexpr int count = 1;
};
template <class T> struct lane_operand<T, false, true> : lane_operand<decltype(+T())> {};
template <class T, int N> struct lane_vector<metal::vec<T, N>, true> {
  using type = metal::vec<T, N>;
  using element = T;
  static constexpr int count = N;
};
template <class T, int N> struct lane_operand<metal::vec<T, N>, false, false>
    : lane_vector<metal::vec<T, N>, is_lane_scalar<T>> {};
template <class V> struct lane_operand<packed<V>, false, false> : lane_operand<V> {};

template <class T> using lane_value = typename lane_operand<T>::type;
template <class T> using lane_element = typename lane_operand<T>::element;

template <class T, bool Integral = __is_integral(lane_element<T>)> struct lane_integer {};
template <class T> struct lane_integer<T, true> { using type = lane_value<T>; };

// DEVIATION: simdgroup and quadgroup reductions and prefix functions of half and bfloat accumulate
// in float and round once.
template <class T> struct accumulator { using type = T; };
template <> struct accumulator<_Float16> { using type = float; };
template <> struct accumulator<__bf16> { using type = float; };

template <class T> constexpr T lowest_integer = (T)-1 < (T)0 ? (T)(1ull << (sizeof(T) * 8 - 1)) : 0;

SM_PRECISE_BEGIN
struct sum {
  template <class A> static SM_INLINE A apply(A a, A b) { return (A)(a + b); }
  // -0 + x is x for every x, zeros included.
  template <class A> static constexpr A identity = is_real<A> ? (A)-0.0f : (A)0;
};
struct product {
  template <class A> static SM_INLINE A apply(A a, A b) { return (A)(a * b); }
  template <class A> static constexpr A identity = (A)1;
};
// fmin and fmax return the number if the other argument is a NaN, so NaN is the identity.
struct minimum {
  template <class A> static SM_INLINE A apply(A a, A b) {
    if constexpr (__is_same(A, float)) return SM_FMIN(a, b);
    else return a < b ? a : b;
  }
  template <class A> static constexpr A identity = (A)~lowest_integer<A>;
  template <> constexpr float identity<float> = __builtin_nanf("");
};
struct maximum {
  template <class A> static SM_INLINE A apply(A a, A b) {
    if constexpr (__is_same(A, float)) return SM_FMAX(a, b);
    else return a < b ? b : a;
  }
  template <class A> static constexpr A identity = lowest_integer<A>;
  template <> constexpr float identity<float> = __builtin_nanf("");
};
struct bit_and {
  template <class A> static SM_INLINE A apply(A a, A b) { return (A)(a & b); }
  template <class A> static constexpr A identity = (A)-1;
};
struct bit_or {
  template <class A> static SM_INLINE A apply(A a, A b) { return (A)(a | b); }
  template <class A> static constexpr A identity = 0;
};
struct bit_xor {
  template <class A> static SM_INLINE A apply(A a, A b) { return (A)(a ^ b); }
  template <class A> static constexpr A identity = 0;
};
SM_PRECISE_END

// Which lane a shuffle reads, as an index in its group of `width` lanes; `self` is the reader.
// DEVIATION: reading a lane that is outside the group or not active, undefined in Metal, gives the
// reader's own value.
struct from_lane {
  static SM_INLINE unsigned at(unsigned, unsigned lane, unsigned, unsigned) { return lane; }
};
struct from_first {
  static SM_INLINE unsigned at(unsigned, unsigned, unsigned, unsigned active) {
    return (unsigned)__builtin_ctz(active);
  }
};
struct from_below {
  static SM_INLINE unsigned at(unsigned self, unsigned delta, unsigned, unsigned) {
    return self - delta;
  }
};
struct from_above {
  static SM_INLINE unsigned at(unsigned self, unsigned delta, unsigned, unsigned) {
    return self + delta;
  }
};
struct from_xor {
  static SM_INLINE unsigned at(unsigned self, unsigned mask, unsigned, unsigned) {
    return self ^ mask;
  }
};
struct rotated_up {
  static SM_INLINE unsigned at(unsigned self, unsigned delta, unsigned width, unsigned) {
    return (self - delta) & (width - 1);
  }
};
struct rotated_down {
  static SM_INLINE unsigned at(unsigned self, unsigned delta, unsigned width, unsigned) {
    return (self + delta) & (width - 1);
  }
};

// The lanes of one group that called, those whose predicate held, and the caller's place: bit i is
// lane i of the group.
struct votes {
  unsigned ballot, active, lane;
};

}  // namespace softmetal

#endif
