// Floats as integers that compare as the floats do, with -0 below 0, and back. NaN of either sign is
// put at one end and comes back as one NaN: the largest or smallest has the same bits in any order.
#pragma once
#include <metal_stdlib>
using namespace metal;

inline int ordered_bits(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

inline int float_order(float x, int place_of_nan) {
  return isnan(x) ? place_of_nan : ordered_bits(as_type<int>(x));
}

inline float float_from_order(int order, int place_of_nan) {
  return order == place_of_nan ? NAN : as_type<float>(ordered_bits(order));
}
