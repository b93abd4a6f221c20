// Copies between arrays of any strides, by the width of an element: its type does not matter.
#pragma once
#include <metal_stdlib>
using namespace metal;

constant constexpr uint COPY_AXES = 8;
constant constexpr uint BLOCK = 32;  // a side of what is transposed at once
constant constexpr uint TILE_ROWS = 8;  // threads on a tile's other side

// How the last axis is read and written: -1 stands for the strides in the record.
constant int SOURCE_STEP [[function_constant(0)]];
constant int TARGET_STEP [[function_constant(1)]];

// Strides count elements and may be negative. The last axis lies along the grid's x, the one before
// along y, all others along z.
struct Walk {
  uint others;             // axes along z
  uint shape[COPY_AXES];   // of those
  long2 z[COPY_AXES];      // strides in the source and in the target
  long2 y;
  long2 x;
  long2 start;             // the first element
};

inline long2 plane_start(constant Walk& walk, uint place) {
  long2 start = walk.start;
  for (uint axis = walk.others; axis-- > 0;) {
    start += long(place % walk.shape[axis]) * walk.z[axis];
    place /= walk.shape[axis];
  }
  return start;
}

template <typename T>
kernel void copy(device const T* in [[buffer(0)]], device T* out [[buffer(1)]],
                 constant Walk& walk [[buffer(2)]], uint3 at [[thread_position_in_grid]]) {
  const long2 start = plane_start(walk, at.z) + long(at.y) * walk.y;
  const long source = SOURCE_STEP < 0 ? walk.x.x : long(SOURCE_STEP);
  const long target = TARGET_STEP < 0 ? walk.x.y : long(TARGET_STEP);
  device const T* from = in + start.x;
  device T* to = out + start.y;
  to[at.x * target] = from[at.x * source];
}

// ---- transposes: y is the axis along which the source is in order, x the target's ----

// A thread moves a block: whole lines are read and whole lines written, and only what is between
// them, which the nearest cache holds, is walked across.
template <typename T>
kernel void transpose_serial(device const T* in [[buffer(0)]], device T* out [[buffer(1)]],
                             constant Walk& walk [[buffer(2)]],
                             constant uint2& size [[buffer(3)]],
                             uint3 at [[thread_position_in_grid]]) {
  const uint2 first = at.xy * BLOCK;
  const long2 start = plane_start(walk, at.z);
  device const T* from = in + start.x + long(first.x) * walk.x.x + first.y;
  device T* to = out + start.y + long(first.y) * walk.y.y + first.x;
  T block[BLOCK][BLOCK];
  if (all(first + BLOCK <= size)) {
    for (uint c = 0; c < BLOCK; c++)
      for (uint r = 0; r < BLOCK; r++) block[c][r] = from[c * walk.x.x + r];
    for (uint r = 0; r < BLOCK; r++)
      for (uint c = 0; c < BLOCK; c++) to[r * walk.y.y + c] = block[c][r];
  } else {
    const uint2 count = min(size - first, BLOCK);
    for (uint c = 0; c < count.x; c++)
      for (uint r = 0; r < count.y; r++) to[r * walk.y.y + c] = from[c * walk.x.x + r];
  }
}

// A threadgroup moves a tile; the odd width keeps its columns in different banks.
template <typename T>
kernel void transpose_tile(device const T* in [[buffer(0)]], device T* out [[buffer(1)]],
                           constant Walk& walk [[buffer(2)]], constant uint2& size [[buffer(3)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint3 thread_at [[thread_position_in_threadgroup]]) {
  threadgroup T tile[BLOCK][BLOCK + 1];
  const uint2 first = group.xy * BLOCK;
  const uint2 lane = thread_at.xy;
  const long2 start = plane_start(walk, group.z);
  device const T* from = in + start.x + long(first.x) * walk.x.x + first.y;
  device T* to = out + start.y + long(first.y) * walk.y.y + first.x;
  for (uint c = lane.y; c < BLOCK; c += TILE_ROWS)
    if (first.x + c < size.x && first.y + lane.x < size.y)
      tile[c][lane.x] = from[c * walk.x.x + lane.x];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint r = lane.y; r < BLOCK; r += TILE_ROWS)
    if (first.y + r < size.y && first.x + lane.x < size.x)
      to[r * walk.y.y + lane.x] = tile[lane.x][r];
}
