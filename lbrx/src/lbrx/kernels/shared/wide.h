// Vectors wider than Metal's, for CPU kernels: clang translates them to the machine's instructions.
// Files that include this are not compiled by Apple's compiler.
#pragma once
#pragma softmetal extensions
#include <metal_stdlib>
using namespace metal;

template <uint N> using Shorts = short __attribute__((ext_vector_type(N)));
template <uint N> using Ints = int __attribute__((ext_vector_type(N)));
template <uint N> using Floats = float __attribute__((ext_vector_type(N)));

constant constexpr uint LINE = 16;  // floats in the widest registers; narrower machines use several

template <uint N>
inline Floats<N> floats(Ints<N> x) { return __builtin_convertvector(x, Floats<N>); }
template <uint N>
inline Ints<N> ints(Shorts<N> x) { return __builtin_convertvector(x, Ints<N>); }
template <uint N>
inline Ints<N> bits(Floats<N> x) { return __builtin_bit_cast(Ints<N>, x); }
template <uint N>
inline Floats<N> fused(Floats<N> a, Floats<N> b, Floats<N> c) {
  return __builtin_elementwise_fma(a, b, c);
}

typedef Floats<LINE> Lanes;

// Sixteen values of a row as floats; rows are aligned to their elements only.
template <typename T>
using Line __attribute__((ext_vector_type(16), aligned(sizeof(T)))) = T;

template <typename T>
inline Lanes line_at(device const T* row, uint line) {
  device const Line<T>* lines = reinterpret_cast<device const Line<T>*>(row);
  return __builtin_convertvector(lines[line], Lanes);
}

inline float sum_of(Lanes x) {
  const Floats<8> halved = x.lo + x.hi;
  const Floats<4> left = halved.lo + halved.hi;
  return (left.x + left.z) + (left.y + left.w);
}

// Transposes 16 by 16: four times, both halves of the rows are interleaved.
template <typename V>
inline void transpose(thread V (&rows)[LINE]) {
#pragma unroll
  for (uint round = 0; round < 4; round++) {
    V next[LINE];
#pragma unroll
    for (uint i = 0; i < LINE / 2; i++) {
      const V a = rows[i], b = rows[i + LINE / 2];
      next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22,
                                            7, 23);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29,
                                                14, 30, 15, 31);
    }
#pragma unroll
    for (uint i = 0; i < LINE; i++) rows[i] = next[i];
  }
}
