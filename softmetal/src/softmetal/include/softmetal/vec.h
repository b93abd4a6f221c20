// metal::vec<T, N>: a class over clang's native vectors. Those alone cannot be MSL's types: they
// have no constructors, and int4(float4) would reinterpret bits.
#ifndef SOFTMETAL_VEC_H
#define SOFTMETAL_VEC_H

#include <softmetal/config.h>
#include <softmetal/scalar.h>
#include <softmetal/swizzle.h>

namespace metal {
template <typename T, int N> struct vec;
}

namespace softmetal {

// A bool takes one byte in memory, so bool vectors are vectors of 0 and 1.
template <class T> struct storage { using type = T; };
template <> struct storage<bool> { using type = unsigned char; };
template <class T, int N>
using native_t __attribute__((ext_vector_type(N))) = typename storage<T>::type;

struct native_tag {};

// Volatile vectors are copied by templates: other constructors and assignments from a volatile one
// would be copying ones, and make vectors no longer trivially copyable.
template <bool> struct holds {};
template <> struct holds<true> { using type = int; };
// Whether U is the vector V, in any address space.
template <class U, class V>
using if_vector = typename holds<__is_same(typename U::element_type, typename V::element_type) &&
                                 __is_same(typename U::mask_type, typename V::mask_type)>::type;
template <class T, class U>
using if_other_integer =
    typename holds<__is_integral(T) && __is_integral(U) && !__is_same(T, U)>::type;

// 0 or 1 in each byte, from the 0 or -1 of a native comparison.
template <int N, class M> SM_INLINE constexpr native_t<bool, N> flags(M mask) {
  return __builtin_convertvector(mask, native_t<bool, N>) & (unsigned char)1;
}

// Value conversion of native vectors. Between half and bfloat clang has only the way through float.
// To integers element by element: that saturates as casts of scalars do, __builtin_convertvector
// has any result for values out of range.
template <class To, int N, class From, class V>
SM_INLINE constexpr native_t<To, N> convert(V v) {
  if constexpr (__is_same(To, bool))
    return flags<N>(v != (V)(typename storage<From>::type)0);
  else if constexpr (__is_same(To, From))
    return v;
  else if constexpr (__is_integral(To) && !__is_integral(From)) {
    if constexpr (N == 2) return native_t<To, N>{(To)v[0], (To)v[1]};
    else if constexpr (N == 3) return native_t<To, N>{(To)v[0], (To)v[1], (To)v[2]};
    else return native_t<To, N>{(To)v[0], (To)v[1], (To)v[2], (To)v[3]};
  } else if constexpr (__is_same(To, __bf16) || __is_same(From, __bf16))
    return __builtin_convertvector(__builtin_convertvector(v, native_t<float, N>), native_t<To, N>);
  else
    return __builtin_convertvector(v, native_t<To, N>);
}

// Shift counts are taken modulo the width, as MSL says.
template <class T> SM_INLINE constexpr T shift_mask() { return (T)(sizeof(T) * 8 - 1); }

template <class V> struct packed;

}  // namespace softmetal

namespace metal {

#define SM_VEC_BINARY(op)                                                                    \
  friend SM_INLINE constexpr vec operator op(vec p, vec q) { return from(p.get() op q.get()); } \
  SM_INLINE constexpr vec& operator op##=(vec q) { return *this = *this op q; }              \
  SM_INLINE void operator op##=(vec q) volatile { *this = vec(*this) op q; }
// The counts of a shift may have another integer type than the shifted elements.
#define SM_VEC_SHIFT(op)                                                       \
  friend SM_INLINE constexpr vec operator op(vec p, vec q) {                   \
    return from(p.get() op(q.get() & softmetal::shift_mask<T>()));             \
  }                                                                            \
  template <class U, softmetal::if_other_integer<T, U> = 0>                    \
  friend SM_INLINE constexpr vec operator op(vec p, vec<U, size> q) {          \
    return p op vec(q);                                                        \
  }                                                                            \
  SM_INLINE constexpr vec& operator op##=(vec q) { return *this = *this op q; } \
  SM_INLINE void operator op##=(vec q) volatile { *this = vec(*this) op q; }    \
  template <class U, softmetal::if_other_integer<T, U> = 0>                    \
  SM_INLINE constexpr vec& operator op##=(vec<U, size> q) { return *this = *this op q; }
#define SM_VEC_COMPARE(op)                                                     \
  friend SM_INLINE constexpr mask_type operator op(vec p, vec q) {             \
    return mask_type::from(softmetal::flags<size>(p.get() op q.get()));        \
  }
#define SM_VEC_LOGICAL(op, bitwise)                                            \
  friend SM_INLINE constexpr mask_type operator op(vec p, vec q) {             \
    return mask_type(p) bitwise mask_type(q);                                  \
  }

// In a constant expression x, y, z, w are the live members of the union; otherwise `native` is.
#define SM_VEC_BODY(n)                                                                         \
  static constexpr int size = n;                                                               \
  using element_type = T;                                                                      \
  using native_type = softmetal::native_t<T, n>;                                               \
  using mask_type = vec<bool, n>;                                                              \
  vec() = default;                                                                             \
  SM_INLINE constexpr vec(T s) : vec(softmetal::native_tag{}, (native_type)(storage)s) {}      \
  template <class U>                                                                           \
  SM_INLINE constexpr explicit vec(vec<U, n> v)                                                \
      : vec(softmetal::native_tag{}, softmetal::convert<T, n, U>(v.get())) {}                  \
  template <class U>                                                                           \
  SM_INLINE constexpr explicit vec(const softmetal::packed<vec<U, n>>& v)                      \
      : vec(v.operator vec<U, n>()) {}                                                         \
  template <class U, softmetal::if_vector<U, vec> = 0>                                         \
  SM_INLINE vec(const volatile U& v) : vec(softmetal::native_tag{}, v.native) {}               \
  template <class U, softmetal::if_vector<U, vec> = 0>                                         \
  SM_INLINE void operator=(U v) volatile { native = v.get(); }                                 \
  static SM_INLINE constexpr vec from(native_type v) { return {softmetal::native_tag{}, v}; }  \
  SM_INLINE constexpr vec sm_value() const { return *this; }                                   \
  SM_INLINE constexpr T& operator[](size_t i) {                                                \
    if (__builtin_is_constant_evaluated()) return select(i);                                   \
    return (&x)[i];                                                                            \
  }                                                                                            \
  SM_INLINE constexpr const T& operator[](size_t i) const {                                    \
    if (__builtin_is_constant_evaluated()) return const_cast<vec*>(this)->select(i);           \
    return (&x)[i];                                                                            \
  }                                                                                            \
  SM_VEC_BINARY(+) SM_VEC_BINARY(-) SM_VEC_BINARY(*) SM_VEC_BINARY(/) SM_VEC_BINARY(%)         \
  SM_VEC_BINARY(&) SM_VEC_BINARY(|) SM_VEC_BINARY(^) SM_VEC_SHIFT(<<) SM_VEC_SHIFT(>>)         \
  SM_VEC_COMPARE(==) SM_VEC_COMPARE(!=) SM_VEC_COMPARE(<) SM_VEC_COMPARE(<=)                   \
  SM_VEC_COMPARE(>) SM_VEC_COMPARE(>=) SM_VEC_LOGICAL(&&, &) SM_VEC_LOGICAL(||, |)             \
  friend SM_INLINE constexpr vec operator+(vec p) { return p; }                                \
  friend SM_INLINE constexpr vec operator-(vec p) { return from(-p.get()); }                   \
  friend SM_INLINE constexpr vec operator~(vec p) { return from(~p.get()); }                   \
  friend SM_INLINE constexpr mask_type operator!(vec p) { return p == vec((T)0); }             \
  SM_INLINE constexpr vec& operator++() { return *this += vec((T)1); }                         \
  SM_INLINE constexpr vec& operator--() { return *this -= vec((T)1); }                         \
  SM_INLINE constexpr vec operator++(int) { vec old = *this; ++*this; return old; }            \
  SM_INLINE constexpr vec operator--(int) { vec old = *this; --*this; return old; }            \
  SM_SWIZZLES(n)

template <typename T> struct vec<T, 2> {
  using storage = typename softmetal::storage<T>::type;
  union {
    struct { T x, y; };
    struct { T r, g; };
    softmetal::native_t<T, 2> native;
  };
  SM_INLINE constexpr vec(T x, T y) : vec(softmetal::native_tag{}, native_type{x, y}) {}
  SM_INLINE constexpr vec(softmetal::native_tag, softmetal::native_t<T, 2> v) : x(v[0]), y(v[1]) {
    if (!__builtin_is_constant_evaluated()) native = v;
  }
  SM_INLINE constexpr softmetal::native_t<T, 2> get() const {
    if (__builtin_is_constant_evaluated()) return {x, y};
    return native;
  }
  template <int I> SM_INLINE constexpr T& at() {
    if constexpr (I == 0) return x;
    else return y;
  }
  SM_INLINE constexpr T& select(size_t i) { return i == 0 ? x : y; }
  SM_VEC_BODY(2)
};

template <typename T> struct vec<T, 3> {
  using storage = typename softmetal::storage<T>::type;
  union {
    struct { T x, y, z; };
    struct { T r, g, b; };
    softmetal::native_t<T, 3> native;
  };
  SM_INLINE constexpr vec(T x, T y, T z) : vec(softmetal::native_tag{}, native_type{x, y, z}) {}
  SM_INLINE constexpr vec(vec<T, 2> v, T z) : vec(v.x, v.y, z) {}
  SM_INLINE constexpr vec(T x, vec<T, 2> v) : vec(x, v.x, v.y) {}
  SM_INLINE constexpr vec(softmetal::native_tag, softmetal::native_t<T, 3> v)
      : x(v[0]), y(v[1]), z(v[2]) {
    if (!__builtin_is_constant_evaluated()) native = v;
  }
  SM_INLINE constexpr softmetal::native_t<T, 3> get() const {
    if (__builtin_is_constant_evaluated()) return {x, y, z};
    return native;
  }
  template <int I> SM_INLINE constexpr T& at() {
    if constexpr (I == 0) return x;
    else if constexpr (I == 1) return y;
    else return z;
  }
  SM_INLINE constexpr T& select(size_t i) { return i == 0 ? x : i == 1 ? y : z; }
  SM_VEC_BODY(3)
};

template <typename T> struct vec<T, 4> {
  using storage = typename softmetal::storage<T>::type;
  union {
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
    softmetal::native_t<T, 4> native;
  };
  SM_INLINE constexpr vec(T x, T y, T z, T w)
      : vec(softmetal::native_tag{}, native_type{x, y, z, w}) {}
  SM_INLINE constexpr vec(vec<T, 2> v, T z, T w) : vec(v.x, v.y, z, w) {}
  SM_INLINE constexpr vec(T x, vec<T, 2> v, T w) : vec(x, v.x, v.y, w) {}
  SM_INLINE constexpr vec(T x, T y, vec<T, 2> v) : vec(x, y, v.x, v.y) {}
  SM_INLINE constexpr vec(vec<T, 2> u, vec<T, 2> v) : vec(u.x, u.y, v.x, v.y) {}
  SM_INLINE constexpr vec(vec<T, 3> v, T w) : vec(v.x, v.y, v.z, w) {}
  SM_INLINE constexpr vec(T x, vec<T, 3> v) : vec(x, v.x, v.y, v.z) {}
  SM_INLINE constexpr vec(softmetal::native_tag, softmetal::native_t<T, 4> v)
      : x(v[0]), y(v[1]), z(v[2]), w(v[3]) {
    if (!__builtin_is_constant_evaluated()) native = v;
  }
  SM_INLINE constexpr softmetal::native_t<T, 4> get() const {
    if (__builtin_is_constant_evaluated()) return {x, y, z, w};
    return native;
  }
  template <int I> SM_INLINE constexpr T& at() {
    if constexpr (I == 0) return x;
    else if constexpr (I == 1) return y;
    else if constexpr (I == 2) return z;
    else return w;
  }
  SM_INLINE constexpr T& select(size_t i) { return i == 0 ? x : i == 1 ? y : i == 2 ? z : w; }
  SM_VEC_BODY(4)
};

#undef SM_VEC_BINARY
#undef SM_VEC_SHIFT
#undef SM_VEC_COMPARE
#undef SM_VEC_LOGICAL
#undef SM_VEC_BODY

}  // namespace metal

namespace softmetal {

template <class T> struct components { static constexpr int count = 1; };
template <class T, int N> struct components<metal::vec<T, N>> { static constexpr int count = N; };

// `V v = {values...}`, of which there may be too few: the rest is 0. compiler/vector_lists.py
template <class V, class... Values> SM_INLINE constexpr V listed(Values... values) {
  using T = typename V::element_type;
  constexpr int count = (components<Values>::count + ...);
  if constexpr (count == 2 && V::size == 3) return V{values..., (T)0};
  else if constexpr (count == 2 && V::size == 4) return V{values..., (T)0, (T)0};
  else if constexpr (count == 3 && V::size == 4) return V{values..., (T)0};
  else return V{values...};
}

}  // namespace softmetal

#include <softmetal/elementwise.h>

#endif
