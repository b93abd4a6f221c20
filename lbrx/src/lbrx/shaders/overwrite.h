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

// What is written at a time: a number, or 32 as one of GGUF's q8_0 blocks where the cache is bytes.
template <typename C> struct Unit { static constant constexpr uint VALUES = 1, STORED = 1; };
template <> struct Unit<uchar> { static constant constexpr uint VALUES = 32, STORED = 34; };

template <typename C, typename T>
inline void store(device C* out, device const T* in) { *out = C(float(*in)); }

template <typename T>
inline void store(device uchar* out, device const T* in) {
  // Magnitudes are ordered as their bits, and what is not finite is above all others.
  uint top = 0;
  for (uint i = 0; i < 32; i++) top = max(top, as_type<uint>(abs(float(in[i]))));
  const float scale = as_type<float>(top) / 127, inverse = 1 / scale;
  const bool held = scale <= 65504;
  const float factor = held && isfinite(inverse) ? inverse : 0.0f;
  *reinterpret_cast<device half*>(out) = half(held ? scale : NAN);
  for (uint i = 0; i < 32; i++) {
    const float code = held ? round(float(in[i]) * factor) : 0.0f;
    out[2 + i] = uchar(char(code));
  }
}

// `count` units of a row, from `first` on.
template <typename C, typename T>
inline void put(device C* cache, device const T* rows, device const void* positions,
                constant Overwriting& sizes, uint row, uint plane, uint first, uint count) {
  const long batch = plane / sizes.heads, head = plane % sizes.heads;
  const long place = sizes.place[0] * batch + sizes.place[1] * head + sizes.place[2] * row;
  const ulong at = ulong(index_at(positions, sizes.place_offset + place));
  if (at >= sizes.capacity) return;
  const long from = sizes.from[0] * batch + sizes.from[1] * head + sizes.from[2] * row;
  constexpr uint values = Unit<C>::VALUES, stored = Unit<C>::STORED;
  device const T* in = rows + sizes.offset + from + first * values;
  const ulong row_start = (ulong(plane) * sizes.capacity + at) * (sizes.depth / values);
  device C* out = cache + (row_start + first) * stored;
  for (uint i = 0; i < count; i++) store(out + i * stored, in + i * values);
}

// A thread a row.
template <typename C, typename T>
kernel void overwrite_rows(device C* cache [[buffer(0)]], device const T* rows [[buffer(1)]],
                           device const void* positions [[buffer(2)]],
                           constant Overwriting& sizes [[buffer(3)]],
                           uint3 at [[thread_position_in_grid]]) {
  put(cache, rows, positions, sizes, at.x, at.y, 0, sizes.depth / Unit<C>::VALUES);
}

// A thread a unit.
template <typename C, typename T>
kernel void overwrite_elements(device C* cache [[buffer(0)]], device const T* rows [[buffer(1)]],
                               device const void* positions [[buffer(2)]],
                               constant Overwriting& sizes [[buffer(3)]],
                               uint3 at [[thread_position_in_grid]]) {
  put(cache, rows, positions, sizes, at.y, at.z, at.x, 1);
}
