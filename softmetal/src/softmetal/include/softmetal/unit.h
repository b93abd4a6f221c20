// The precompiled header of every kernel: all of Metal's headers, then the trampoline.
#ifndef SOFTMETAL_UNIT_H
#define SOFTMETAL_UNIT_H

#include <metal_stdlib>

#include "softmetal/entry.h"

// What most kernels instantiate, once for all of them: clang takes milliseconds for each vector type
// and its members, in every unit, unless the precompiled header has them.
namespace softmetal {
template <typename... T> constexpr bool are_complete() {
  return ((sizeof(metal::vec<T, 2>) + sizeof(metal::vec<T, 3>) + sizeof(metal::vec<T, 4>)) && ...);
}
static_assert(are_complete<bool, char, uchar, short, ushort, int, uint, long, ulong, half, bfloat, float>());

template <typename V> SM_INLINE void instantiate_vector(V v) {
  v[0] = v[1];
  v = v + V(v[0]) * v;
}
SM_INLINE void instantiate_usual() {
  instantiate_vector(metal::uint2(0, 1));
  instantiate_vector(metal::uint3(0, 1, 2));
  instantiate_vector(metal::uint4(0, 1, 2, 3));
  instantiate_vector(metal::float2(0, 1));
  instantiate_vector(metal::float4(0, 1, 2, 3));
  metal::simd_sum(0.0f);
  metal::simd_max(0.0f);
}
}  // namespace softmetal

#endif
