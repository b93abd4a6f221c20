// Transposes on a CPU: the source is contiguous along y, the target along x.
#pragma once
#include "movement.h"
#include "transposed.h"

constant constexpr uint SERIAL_SIDE = 64;  // of the block that a thread transposes

template <typename T>
kernel void transpose_serial(device const T* in [[buffer(0)]], device T* out [[buffer(1)]],
                             constant WalkRecord& walk [[buffer(2)]],
                             constant uint2& size [[buffer(3)]],
                             uint3 at [[thread_position_in_grid]]) {
  constexpr uint N = BitsOf<sizeof(T)>::SQUARE;
  const uint2 first = at.xy * SERIAL_SIDE;
  const uint2 count = min(size - first, SERIAL_SIDE), whole = count / N * N;
  const long source = walk.source.x, target = walk.target.y;
  device const T* from = plane(in, walk, at.z) + long(first.x) * source + first.y;
  device T* to = plane(out, walk, at.z) + long(first.y) * target + first.x;
  for (uint r = 0; r < whole.y; r += N)
    for (uint c = 0; c < whole.x; c += N)
      transpose_square(from + c * source + r, source, to + r * target + c, target);
  for (uint r = 0; r < count.y; r++)
    for (uint c = r < whole.y ? whole.x : 0; c < count.x; c++)
      to[r * target + c] = from[c * source + r];
}
