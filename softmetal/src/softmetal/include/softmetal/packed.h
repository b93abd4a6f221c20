// packed_float3 and friends: N elements with one element's alignment. The vec is the template
// argument so that argument-dependent look-up finds its operators for packed operands too.
#ifndef SOFTMETAL_PACKED_H
#define SOFTMETAL_PACKED_H

#include <softmetal/vec.h>

namespace softmetal {

using metal::vec;

#define SM_PACKED_ASSIGN(op) \
  SM_INLINE constexpr packed& operator op##=(V v) { return *this = V(*this) op v; }

#define SM_PACKED_BODY(n)                                                                      \
  using element_type = T;                                                                      \
  using V = vec<T, n>;                                                                         \
  static constexpr int size = n;                                                               \
  packed() = default;                                                                          \
  SM_INLINE constexpr packed(T s) : packed(V(s)) {}                                            \
  template <class U> SM_INLINE constexpr explicit packed(vec<U, n> v) : packed(V(v)) {}        \
  template <class U>                                                                           \
  SM_INLINE constexpr explicit packed(const packed<vec<U, n>>& v) : packed(V(v)) {}            \
  template <class A, class B, class... C>                                                      \
  SM_INLINE constexpr packed(A p, B q, C... rest) : packed(V(p, q, rest...)) {}                \
  SM_INLINE constexpr operator V() const { return V::from(get()); }                            \
  SM_INLINE constexpr T& operator[](metal::size_t i) { return (&x)[i]; }                       \
  SM_INLINE constexpr const T& operator[](metal::size_t i) const { return (&x)[i]; }           \
  SM_PACKED_ASSIGN(+) SM_PACKED_ASSIGN(-) SM_PACKED_ASSIGN(*) SM_PACKED_ASSIGN(/)              \
  SM_PACKED_ASSIGN(%) SM_PACKED_ASSIGN(&) SM_PACKED_ASSIGN(|) SM_PACKED_ASSIGN(^)              \
  SM_PACKED_ASSIGN(<<) SM_PACKED_ASSIGN(>>)                                                    \
  SM_SWIZZLES(n)

template <class T> struct packed<vec<T, 2>> {
  union {
    struct { T x, y; };
    struct { T r, g; };
  };
  SM_INLINE constexpr packed(vec<T, 2> v) : x(v.x), y(v.y) {}
  SM_INLINE constexpr native_t<T, 2> get() const { return {x, y}; }
  template <int I> SM_INLINE constexpr T& at() {
    if constexpr (I == 0) return x;
    else return y;
  }
  SM_PACKED_BODY(2)
};

template <class T> struct packed<vec<T, 3>> {
  union {
    struct { T x, y, z; };
    struct { T r, g, b; };
  };
  SM_INLINE constexpr packed(vec<T, 3> v) : x(v.x), y(v.y), z(v.z) {}
  SM_INLINE constexpr native_t<T, 3> get() const { return {x, y, z}; }
  template <int I> SM_INLINE constexpr T& at() {
    if constexpr (I == 0) return x;
    else if constexpr (I == 1) return y;
    else return z;
  }
  SM_PACKED_BODY(3)
};

template <class T> struct packed<vec<T, 4>> {
  union {
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
  };
  SM_INLINE constexpr packed(vec<T, 4> v) : x(v.x), y(v.y), z(v.z), w(v.w) {}
  SM_INLINE constexpr native_t<T, 4> get() const { return {x, y, z, w}; }
  template <int I> SM_INLINE constexpr T& at() {
    if constexpr (I == 0) return x;
    else if constexpr (I == 1) return y;
    else if constexpr (I == 2) return z;
    else return w;
  }
  SM_PACKED_BODY(4)
};

#undef SM_PACKED_ASSIGN
#undef SM_PACKED_BODY

}  // namespace softmetal

namespace metal {
template <typename T, int N> using packed_vec = softmetal::packed<vec<T, N>>;
}

#endif
