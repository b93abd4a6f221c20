// Exchanges between the lanes of a simdgroup, all of which take part.
#pragma once
#include <metal_stdlib>
using namespace metal;

#if __has_include(<softmetal/exchange>)
#include <softmetal/exchange>

// What the lane whose number differs in the bits of `lanes` has.
template <typename T>
inline T exchanged(T value, uint lanes) { return softmetal::exchange(value, lanes); }
#else
template <typename T>
inline T exchanged(T value, uint lanes) { return simd_shuffle_xor(value, ushort(lanes)); }
#endif

// The sum over all lanes, by halves as `simd_sum` adds.
template <typename T>
inline T exchanged_sum(T value) {
#pragma unroll
  for (uint lanes = 16; lanes; lanes /= 2) value += exchanged(value, lanes);
  return value;
}
