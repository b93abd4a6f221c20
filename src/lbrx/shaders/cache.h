// Rows put into a cache of keys or values, at the positions that they have in the text.
#pragma once
#include "indexing.h"

struct Overwriting {
  long from[3];   // elements between batches, heads and rows of what is put
  long place[3];  // the same of the positions
  ulong offset;   // of the first element that is put
  ulong place_offset;
  uint heads, capacity, depth;
};

template <typename C, typename T>
inline void put(device C* cache, device const T* rows, device const void* positions,
                constant Overwriting& sizes, uint row, uint plane, uint first, uint count) {
  const long batch = plane / sizes.heads, head = plane % sizes.heads;
  const long place = sizes.place[0] * batch + sizes.place[1] * head + sizes.place[2] * row;
  const ulong at = ulong(index_at(positions, sizes.place_offset + place));
  if (at >= sizes.capacity) return;
  const long from = sizes.from[0] * batch + sizes.from[1] * head + sizes.from[2] * row;
  device const T* in = rows + sizes.offset + from + first;
  device C* out = cache + (ulong(plane) * sizes.capacity + at) * sizes.depth + first;
  for (uint i = 0; i < count; i++) out[i] = C(float(in[i]));
}

// A thread a row.
template <typename C, typename T>
kernel void overwrite_rows(device C* cache [[buffer(0)]], device const T* rows [[buffer(1)]],
                           device const void* positions [[buffer(2)]],
                           constant Overwriting& sizes [[buffer(3)]],
                           uint3 at [[thread_position_in_grid]]) {
  put(cache, rows, positions, sizes, at.x, at.y, 0, sizes.depth);
}

// A thread an element.
template <typename C, typename T>
kernel void overwrite_elements(device C* cache [[buffer(0)]], device const T* rows [[buffer(1)]],
                               device const void* positions [[buffer(2)]],
                               constant Overwriting& sizes [[buffer(3)]],
                               uint3 at [[thread_position_in_grid]]) {
  put(cache, rows, positions, sizes, at.y, at.z, at.x, 1);
}
