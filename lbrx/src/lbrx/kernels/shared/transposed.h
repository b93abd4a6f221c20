// Transposes squares of elements in the registers of a CPU. Elements are moved as integers of their
// width.
#pragma once
#include "wide.h"

// Eight elements of four bytes fill registers of 256 bits, which compilers prefer to wider ones.
template <uint WIDTH> struct BitsOf;
template <> struct BitsOf<1> { typedef uchar Type; enum { SQUARE = 16 }; };
template <> struct BitsOf<2> { typedef ushort Type; enum { SQUARE = 16 }; };
template <> struct BitsOf<4> { typedef uint Type; enum { SQUARE = 8 }; };
template <> struct BitsOf<8> { typedef ulong Type; enum { SQUARE = 8 }; };

// Addresses are aligned to elements only, and the elements may be of another type.
template <typename B, uint N>
using Unaligned __attribute__((ext_vector_type(N), aligned(sizeof(B)), may_alias)) = B;

// Exchanges elements within halves of registers first: the last round alone crosses them.
template <typename V>
inline void transpose(thread V (&rows)[8]) {
  V pairs[8], fours[8];
#pragma unroll
  for (uint i = 0; i < 8; i += 2) {
    pairs[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma unroll
  for (uint i = 0; i < 8; i += 4) {
#pragma unroll
    for (uint k = 0; k < 2; k++) {
      const V a = pairs[i + k], b = pairs[i + k + 2];
      fours[i + 2 * k] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
      fours[i + 2 * k + 1] = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
#pragma unroll
  for (uint i = 0; i < 4; i++) {
    rows[i] = __builtin_shufflevector(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    rows[i + 4] = __builtin_shufflevector(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// to[r * to_stride + c] becomes from[c * from_stride + r].
template <typename From, typename To>
inline void transpose_square(From from, long from_stride, To to, long to_stride) {
  typedef BitsOf<sizeof(*from)> Bits;
  typedef typename Bits::Type B;
  constexpr uint N = Bits::SQUARE;
  typedef B Row __attribute__((ext_vector_type(N)));
  Row rows[N];
#pragma unroll
  for (uint i = 0; i < N; i++)
    rows[i] = *reinterpret_cast<const Unaligned<B, N>*>(from + i * from_stride);
  transpose(rows);
#pragma unroll
  for (uint i = 0; i < N; i++) *reinterpret_cast<Unaligned<B, N>*>(to + i * to_stride) = rows[i];
}
