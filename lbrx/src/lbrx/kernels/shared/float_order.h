// Floats as integers that compare as the floats do, with -0 below 0, and back. NaN of either sign is
// put at one end and comes back as one NaN: the largest or smallest has the same bits in any order.
#pragma once
#include <metal_stdlib>
using namespace metal;

template <typename B, B INFINITY_BITS, B MOST>
struct FloatOrderOf {
  using Bits = B;
  static constant constexpr Bits INFINITE = INFINITY_BITS;
  static Bits ordered(Bits bits) { return bits ^ (Bits(bits >> (8 * sizeof(Bits) - 1)) & MOST); }
  static bool is_nan(Bits bits) { return (bits & MOST) > INFINITE; }
  static constant constexpr Bits ABOVE = MOST;  // where NaN is the largest
  static constant constexpr Bits BELOW = -MOST - 1;
};
template <typename T> struct FloatOrder;
template <> struct FloatOrder<float> : FloatOrderOf<int, 0x7f800000, 0x7fffffff> {};
template <> struct FloatOrder<half> : FloatOrderOf<short, 0x7c00, 0x7fff> {};
template <> struct FloatOrder<bfloat> : FloatOrderOf<short, 0x7f80, 0x7fff> {};

template <typename T, typename Order = FloatOrder<T>>
inline typename Order::Bits float_order(T x, typename Order::Bits place_of_nan) {
  const typename Order::Bits bits = as_type<typename Order::Bits>(x);
  return Order::is_nan(bits) ? place_of_nan : Order::ordered(bits);
}

template <typename T, typename Order = FloatOrder<T>>
inline T float_from_order(typename Order::Bits order, typename Order::Bits place_of_nan) {
  return order == place_of_nan ? T(NAN) : as_type<T>(Order::ordered(order));
}
