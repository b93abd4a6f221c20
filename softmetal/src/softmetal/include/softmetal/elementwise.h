// How functions of scalars become functions of vectors.
//   template <class A, class B, class V = softmetal::vector_t<A, B>>
//   SM_INLINE V name(A a, B b) { return softmetal::map([](auto x, auto y) {...}, V(a), V(b)); }
// accepts vec, packed vec and scalars that splat, as long as one argument is a vector.
#ifndef SOFTMETAL_ELEMENTWISE_H
#define SOFTMETAL_ELEMENTWISE_H

#include <softmetal/vec.h>

namespace softmetal {

struct no_vector {};  // a scalar: takes the type of the other arguments

template <class T, bool = __is_arithmetic(T)> struct vector_of {};
template <class T> struct vector_of<T, true> { using type = no_vector; };
template <class T, int N> struct vector_of<metal::vec<T, N>, false> {
  using type = metal::vec<T, N>;
};
template <class V> struct vector_of<packed<V>, false> { using type = V; };

template <class A, class B> struct join {};
template <class V> struct join<V, V> { using type = V; };
template <class V> struct join<V, no_vector> { using type = V; };
template <class V> struct join<no_vector, V> { using type = V; };
template <> struct join<no_vector, no_vector> { using type = no_vector; };

template <class V> struct joined { using type = V; };
template <> struct joined<no_vector> {};

template <class A, class B = float, class C = float, class D = float>
using vector_t = typename joined<typename join<
    typename join<typename vector_of<A>::type, typename vector_of<B>::type>::type,
    typename join<typename vector_of<C>::type, typename vector_of<D>::type>::type>::type>::type;

// The vec<R, N> of f's results for each element.
template <class F, class V, class... R> SM_INLINE constexpr auto map(F f, V v, R... rest) {
  using result = metal::vec<decltype(f(v.x, rest.x...)), V::size>;
  if constexpr (V::size == 2)
    return result(f(v.x, rest.x...), f(v.y, rest.y...));
  else if constexpr (V::size == 3)
    return result(f(v.x, rest.x...), f(v.y, rest.y...), f(v.z, rest.z...));
  else
    return result(f(v.x, rest.x...), f(v.y, rest.y...), f(v.z, rest.z...), f(v.w, rest.w...));
}

// f(...f(f(x, y), z)..., w)
template <class F, class V> SM_INLINE constexpr auto fold(F f, V v) {
  if constexpr (V::size == 2)
    return f(v.x, v.y);
  else if constexpr (V::size == 3)
    return f(f(v.x, v.y), v.z);
  else
    return f(f(f(v.x, v.y), v.z), v.w);
}

template <class T> struct element { using type = T; };
template <class T, int N> struct element<metal::vec<T, N>> { using type = T; };
template <class V> struct element<packed<V>> : element<V> {};
template <class T> using element_t = typename element<T>::type;

template <class T> inline constexpr int count_v = 1;
template <class T, int N> inline constexpr int count_v<metal::vec<T, N>> = N;
template <class V> inline constexpr int count_v<packed<V>> = count_v<V>;

// A template parameter that leaves overloads for vectors of one kind of element only: functions
// such as max have an integer half and a floating-point half in different headers.
template <class T>
inline constexpr bool is_float_v =
    __is_same(T, float) || __is_same(T, metal::half) || __is_same(T, metal::bfloat);
template <bool> struct require {};
template <> struct require<true> { using type = int; };
// Overloads for a bfloat are templates, so that a program's own overload is the better match.
template <class T> using if_bfloat = typename require<__is_same(T, metal::bfloat)>::type;
template <class V> using if_any_vector = int;
template <class V> using if_float_vector = typename require<is_float_v<element_t<V>>>::type;
template <class V> using if_integer_vector = typename require<!is_float_v<element_t<V>>>::type;

// What functions of constants fold and map. C++14, as which libraries up to Metal 3.2 are checked,
// has no lambdas in constant expressions.
struct sum_of {
  template <class T> SM_INLINE constexpr T operator()(T p, T q) const { return T(p + q); }
};
struct conjunction {
  SM_INLINE constexpr bool operator()(bool p, bool q) const { return p & q; }
};
struct disjunction {
  SM_INLINE constexpr bool operator()(bool p, bool q) const { return p | q; }
};
struct second_if {
  template <class T> SM_INLINE constexpr T operator()(T x, T y, bool z) const { return z ? y : x; }
};
}  // namespace softmetal

// Vector overloads of metal::name in terms of its scalar overloads, elementwise, for the
// `any`, `float` or `integer` kind of vector.
#define SM_VECTOR_1(kind, name)                                                              \
  struct softmetal_##kind##_##name {                                                         \
    template <class T> SM_INLINE constexpr auto operator()(T x) const {                      \
      return metal::name(x);                                                                 \
    }                                                                                        \
  };                                                                                         \
  template <class A, class V = softmetal::vector_t<A>, softmetal::if_##kind##_vector<V> = 0> \
  SM_INLINE constexpr auto name(A a) {                                                       \
    return softmetal::map(softmetal_##kind##_##name{}, V(a));                                \
  }
#define SM_VECTOR_2(kind, name)                                                              \
  struct softmetal_##kind##_##name {                                                         \
    template <class T> SM_INLINE constexpr auto operator()(T x, T y) const {                 \
      return metal::name(x, y);                                                              \
    }                                                                                        \
  };                                                                                         \
  template <class A, class B, class V = softmetal::vector_t<A, B>,                           \
            softmetal::if_##kind##_vector<V> = 0>                                            \
  SM_INLINE constexpr auto name(A a, B b) {                                                  \
    return softmetal::map(softmetal_##kind##_##name{}, V(a), V(b));                          \
  }
#define SM_VECTOR_3(kind, name)                                                              \
  struct softmetal_##kind##_##name {                                                         \
    template <class T> SM_INLINE constexpr auto operator()(T x, T y, T z) const {            \
      return metal::name(x, y, z);                                                           \
    }                                                                                        \
  };                                                                                         \
  template <class A, class B, class C, class V = softmetal::vector_t<A, B, C>,               \
            softmetal::if_##kind##_vector<V> = 0>                                            \
  SM_INLINE constexpr auto name(A a, B b, C c) {                                             \
    return softmetal::map(softmetal_##kind##_##name{}, V(a), V(b), V(c));                    \
  }

#endif
