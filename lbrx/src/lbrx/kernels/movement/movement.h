// Copies between arrays of any strides. Elements are moved as integers of their width.
#pragma once
#include "chunks.h"
#include "records/movement.h"

constant constexpr uint TILE = 32;  // side of the tile that a threadgroup transposes
constant constexpr uint TILE_ROWS = 8;  // threads along the other side

inline long plane_start(constant uint* shape, constant StridesRecord& strides, uint place) {
  long start = strides.start;
  for (uint axis = OTHERS; axis-- > 0;) {
    start += long(place % shape[axis]) * strides.z[axis];
    place /= shape[axis];
  }
  return start;
}
template <typename T>
inline device const T* plane(device const T* in, constant WalkRecord& walk, uint place) {
  return in + plane_start(walk.shape, walk.source, place);
}
template <typename T>
inline device T* plane(device T* out, constant WalkRecord& walk, uint place) {
  return out + plane_start(walk.shape, walk.target, place);
}

template <typename T>
kernel void copy(device const T* in [[buffer(0)]], device T* out [[buffer(1)]],
                 constant WalkRecord& walk [[buffer(2)]], uint3 at [[thread_position_in_grid]]) {
  device const T* from = plane(in, walk, at.z) + long(at.y) * walk.source.y;
  device T* to = plane(out, walk, at.z) + long(at.y) * walk.target.y;
  // Indexed by the position itself: the compiler can then prove that a loop over x does not wrap.
  if (TARGET_STEP != 1) to[long(at.x) * walk.target.x] = from[long(at.x) * walk.source.x];
  else if (SOURCE_STEP == 1) to[at.x] = from[at.x];
  else if (SOURCE_STEP == 0) to[at.x] = from[0];
  else to[at.x] = from[long(at.x) * walk.source.x];
}

// ---- chunks: both are contiguous along x, which counts vectors of 2 to 16 bytes ----

template <typename B>
kernel void copy_chunks(device const B* in [[buffer(0)]], device B* out [[buffer(1)]],
                        constant WalkRecord& walk [[buffer(2)]], constant uint2& size [[buffer(3)]],
                        uint3 at [[thread_position_in_grid]]) {
  if (any(at.xy >= size)) return;
  device const B* from = plane(in, walk, at.z) + long(at.y) * walk.source.y;
  device B* to = plane(out, walk, at.z) + long(at.y) * walk.target.y;
  to[at.x] = from[at.x] | B(0);  // a value: compilers copy memory by parts of 8 bytes
}

// ---- transposes: the source is contiguous along y, the target along x ----

// Each thread transposes a block of SIDE by SIDE in registers, whose rows are chunks of 16 bytes. The
// chunks of a threadgroup's ACROSS by DOWN blocks then change places through threadgroup memory, so
// that neighbouring threads write neighbouring chunks. Sizes and strides count chunks.
template <typename T, uint ACROSS, uint DOWN>
kernel void transpose_chunks(device const uint4* in [[buffer(0)]], device uint4* out [[buffer(1)]],
                             constant WalkRecord& walk [[buffer(2)]], constant uint2& size [[buffer(3)]],
                             uint3 group [[threadgroup_position_in_grid]],
                             uint lane [[thread_index_in_threadgroup]]) {
  constexpr uint SIDE = 16 / sizeof(T);
  threadgroup uint4 tile[ACROSS * SIDE * DOWN];
  const uint2 sizes = size;
  const uint r = lane % ACROSS, c = lane / ACROSS;
  const uint first_r = group.y * ACROSS, first_c = group.x * DOWN;
  const long source = walk.source.x, target = walk.target.y;
  if (first_r + r < sizes.y && first_c + c < sizes.x) {
    device const uint4* from =
        plane(in, walk, group.z) + long(first_c + c) * SIDE * source + first_r + r;
    Chunk<T, SIDE> rows[SIDE];
#pragma unroll
    for (uint i = 0; i < SIDE; i++) rows[i].bits = from[i * source];
#pragma unroll
    for (uint i = 0; i < SIDE; i++) {
      Chunk<T, SIDE> made;
#pragma unroll
      for (uint k = 0; k < SIDE; k++) made.put(k, rows[k].get(i));
      // The place depends on the row, so that threads use different banks here and below.
      tile[(r * SIDE + i) * DOWN + (c ^ (r % 8))] = made.bits;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device uint4* to = plane(out, walk, group.z) + long(first_r) * SIDE * target + first_c;
  const uint column = lane % DOWN;
#pragma unroll
  for (uint i = 0; i < SIDE; i++) {
    const uint row = i * ACROSS + lane / DOWN;
    if (first_c + column < sizes.x && first_r + row / SIDE < sizes.y)
      to[row * target + column] = tile[row * DOWN + (column ^ (row / SIDE % 8))];
  }
}

// A threadgroup transposes a tile; the odd row width avoids bank conflicts.
template <typename T>
kernel void transpose_tile(device const T* in [[buffer(0)]], device T* out [[buffer(1)]],
                           constant WalkRecord& walk [[buffer(2)]], constant uint2& size [[buffer(3)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint3 thread_at [[thread_position_in_threadgroup]]) {
  threadgroup T tile[TILE][TILE + 1];
  const uint2 first = group.xy * TILE;
  const uint2 lane = thread_at.xy;
  const long source = walk.source.x, target = walk.target.y;
  device const T* from = plane(in, walk, group.z) + long(first.x) * source + first.y;
  device T* to = plane(out, walk, group.z) + long(first.y) * target + first.x;
  for (uint c = lane.y; c < TILE; c += TILE_ROWS)
    if (first.x + c < size.x && first.y + lane.x < size.y)
      tile[c][lane.x] = from[c * source + lane.x];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint r = lane.y; r < TILE; r += TILE_ROWS)
    if (first.y + r < size.y && first.x + lane.x < size.x)
      to[r * target + lane.x] = tile[lane.x][r];
}
