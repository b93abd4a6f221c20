// Element programs of which a CPU thread computes a run of a row, or a block if operands are contiguous
// along another axis than the results: it transposes its part of them through private memory.
#pragma once
#include "elementwise.h"
#include "streamed.h"
#include "transposed.h"

constant constexpr uint RUN = 4096;
constant constexpr uint BLOCK = 64;  // side of a block: a cache line of the narrowest elements

// block[r][c] becomes from[c * stride + r].
template <typename T>
inline void load_transposed(thread T (&block)[BLOCK][BLOCK], device const T* from, long stride,
                            uint rows, uint columns) {
  if (rows == BLOCK && columns == BLOCK) {
    constexpr uint N = BitsOf<sizeof(T)>::SQUARE;
    for (uint c = 0; c < BLOCK; c += N)
      for (uint r = 0; r < BLOCK; r += N)
        transpose_square(from + c * stride + r, stride, &block[r][c], BLOCK);
    return;
  }
  for (uint c = 0; c < columns; c++)
    for (uint r = 0; r < rows; r++) block[r][c] = from[c * stride + r];
}
