// Copies between arrays of any strides, by the width of an element: its type does not matter.
#pragma once
#include <metal_stdlib>
using namespace metal;

constant constexpr uint COPY_AXES = 8;
constant constexpr uint TILE = 32;  // a side of what a threadgroup transposes
constant constexpr uint TILE_ROWS = 8;  // threads along the other side

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

template <typename T>
inline vec<T, 4> load_four(device const T* from) {
  return vec<T, 4>(from[0], from[1], from[2], from[3]);
}
template <typename T>
inline void store_four(device T* to, vec<T, 4> values) {
  to[0] = values.x, to[1] = values.y, to[2] = values.z, to[3] = values.w;
}

// A block by fours, which stay in registers. Columns go by way of memory of the thread's own: whole
// lines are read, and whole lines written.
template <typename T, uint SIDE>
inline void transpose_block(device const T* from, long source, device T* to, long target) {
  vec<T, 4> block[SIDE][SIDE / 4];
  for (uint c = 0; c < SIDE; c += 4) {
    for (uint r = 0; r < SIDE; r += 4) {
      device const T* corner = from + c * source + r;
      const vec<T, 4> w = load_four(corner), x = load_four(corner + source);
      const vec<T, 4> y = load_four(corner + 2 * source), z = load_four(corner + 3 * source);
      block[r][c / 4] = vec<T, 4>(w.x, x.x, y.x, z.x);
      block[r + 1][c / 4] = vec<T, 4>(w.y, x.y, y.y, z.y);
      block[r + 2][c / 4] = vec<T, 4>(w.z, x.z, y.z, z.z);
      block[r + 3][c / 4] = vec<T, 4>(w.w, x.w, y.w, z.w);
    }
  }
  for (uint r = 0; r < SIDE; r++)
    for (uint c = 0; c < SIDE; c += 4) store_four(to + r * target + c, block[r][c / 4]);
}

template <typename T, uint SIDE>
kernel void transpose_serial(device const T* in [[buffer(0)]], device T* out [[buffer(1)]],
                             constant Walk& walk [[buffer(2)]],
                             constant uint2& size [[buffer(3)]],
                             uint3 at [[thread_position_in_grid]]) {
  const uint2 first = at.xy * SIDE;
  const long2 start = plane_start(walk, at.z);
  const long source = walk.x.x, target = walk.y.y;
  device const T* from = in + start.x + long(first.x) * source + first.y;
  device T* to = out + start.y + long(first.y) * target + first.x;
  if (all(first + SIDE <= size)) {
    transpose_block<T, SIDE>(from, source, to, target);
    return;
  }
  const uint2 count = min(size - first, SIDE);
  for (uint c = 0; c < count.x; c++)
    for (uint r = 0; r < count.y; r++) to[r * target + c] = from[c * source + r];
}

// A threadgroup moves a tile; the odd width keeps its columns in different banks.
template <typename T>
kernel void transpose_tile(device const T* in [[buffer(0)]], device T* out [[buffer(1)]],
                           constant Walk& walk [[buffer(2)]], constant uint2& size [[buffer(3)]],
                           uint3 group [[threadgroup_position_in_grid]],
                           uint3 thread_at [[thread_position_in_threadgroup]]) {
  threadgroup T tile[TILE][TILE + 1];
  const uint2 first = group.xy * TILE;
  const uint2 lane = thread_at.xy;
  const long2 start = plane_start(walk, group.z);
  device const T* from = in + start.x + long(first.x) * walk.x.x + first.y;
  device T* to = out + start.y + long(first.y) * walk.y.y + first.x;
  for (uint c = lane.y; c < TILE; c += TILE_ROWS)
    if (first.x + c < size.x && first.y + lane.x < size.y)
      tile[c][lane.x] = from[c * walk.x.x + lane.x];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint r = lane.y; r < TILE; r += TILE_ROWS)
    if (first.y + r < size.y && first.x + lane.x < size.x)
      to[r * walk.y.y + lane.x] = tile[lane.x][r];
}
