// Vectors wider than Metal's, in which kernels for processors are written: clang makes the
// machine's instructions of them. Apple's compiler is not shown what includes this.
#pragma once
#include <metal_stdlib>
using namespace metal;

template <uint N> using Shorts = short __attribute__((ext_vector_type(N)));
template <uint N> using Ints = int __attribute__((ext_vector_type(N)));
template <uint N> using Floats = float __attribute__((ext_vector_type(N)));

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
