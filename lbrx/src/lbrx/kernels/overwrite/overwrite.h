// Writes rows into a cache of keys or values at given positions.
#pragma once
#include "chunks.h"
#include "indexing.h"
#include "records/overwrite.h"

// A unit that is written at once: one value, or 32 values as a q8_0 block if the cache is bytes.
template <typename C> struct Unit { static constant constexpr uint VALUES = 1, STORED = 1; };
template <> struct Unit<uchar> { static constant constexpr uint VALUES = 32, STORED = 34; };

template <typename C, typename T>
inline void store(device C* out, device const T* in) { *out = C(float(*in)); }

template <typename T>
inline void store(device uchar* out, device const T* in) {
  // Magnitudes compare like their bits; infinity and NaN are above all finite numbers.
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
                constant OverwriteRecord& sizes, uint row, uint plane, uint first, uint count) {
  const long batch = plane / sizes.heads, head = plane % sizes.heads;
  const long place = sizes.place[0] * batch + sizes.place[1] * head + sizes.place[2] * row;
  const ulong at = ulong(index_at(positions, sizes.place_offset + place));
  if (at >= sizes.capacity) return;
  const long from = sizes.source[0] * batch + sizes.source[1] * head + sizes.source[2] * row;
  constexpr uint values = Unit<C>::VALUES, stored = Unit<C>::STORED;
  device const T* in = rows + sizes.offset + from + first * values;
  const ulong row_start = (ulong(plane) * sizes.capacity + at) * (sizes.depth / values);
  device C* out = cache + (row_start + first) * stored;
  for (uint i = 0; i < count; i++) store(out + i * stored, in + i * values);
}

// One thread per row.
template <typename C, typename T>
kernel void overwrite_rows(device C* cache [[buffer(0)]], device const T* rows [[buffer(1)]],
                           device const void* positions [[buffer(2)]],
                           constant OverwriteRecord& sizes [[buffer(3)]],
                           uint3 at [[thread_position_in_grid]]) {
  put(cache, rows, positions, sizes, at.x, at.y, 0, sizes.depth / Unit<C>::VALUES);
}

// One thread per unit.
template <typename C, typename T>
kernel void overwrite_elements(device C* cache [[buffer(0)]], device const T* rows [[buffer(1)]],
                               device const void* positions [[buffer(2)]],
                               constant OverwriteRecord& sizes [[buffer(3)]],
                               uint3 at [[thread_position_in_grid]]) {
  put(cache, rows, positions, sizes, at.y, at.z, at.x, 1);
}

// A thread moves a vector of N values of some rows. The record counts such vectors in the strides,
// the offset and the depth of the rows.
constant constexpr uint CHUNK_ROWS = 4;

template <typename C, typename T, uint N>
inline typename ChunkBits<sizeof(C) * N>::type stored_as(
    typename ChunkBits<sizeof(T) * N>::type bits) {
  if constexpr (is_same_v<C, T>) return bits;
  Chunk<T, N> given;
  given.bits = bits;
  Chunk<C, N> made;
#pragma unroll
  for (uint k = 0; k < N; k++) made.put(k, C(float(given.get(k))));
  return made.bits;
}

template <typename C, typename T, uint N>
kernel void overwrite_chunks(device typename ChunkBits<sizeof(C) * N>::type* cache [[buffer(0)]],
                             device const typename ChunkBits<sizeof(T) * N>::type* rows [[buffer(1)]],
                             device const void* positions [[buffer(2)]],
                             constant OverwriteRecord& sizes [[buffer(3)]],
                             constant uint& count [[buffer(4)]],
                             uint3 at [[thread_position_in_grid]],
                             uint3 threads [[threads_per_grid]]) {
  if (at.x >= sizes.depth) return;
  const long batch = at.z / sizes.heads, head = at.z % sizes.heads;
  const ulong place = sizes.place_offset + sizes.place[0] * batch + sizes.place[1] * head;
  device const typename ChunkBits<sizeof(T) * N>::type* from =
      rows + sizes.offset + sizes.source[0] * batch + sizes.source[1] * head + at.x;
  typename ChunkBits<sizeof(T) * N>::type given[CHUNK_ROWS];
  ulong target[CHUNK_ROWS];
#pragma unroll
  for (uint n = 0; n < CHUNK_ROWS; n++) {
    const uint row = at.y + n * threads.y;
    target[n] = sizes.capacity;
    if (row >= count) continue;
    given[n] = from[sizes.source[2] * row];
    target[n] = ulong(index_at(positions, place + sizes.place[2] * row));
  }
  device typename ChunkBits<sizeof(C) * N>::type* to =
      cache + ulong(at.z) * sizes.capacity * sizes.depth + at.x;
#pragma unroll
  for (uint n = 0; n < CHUNK_ROWS; n++)
    if (target[n] < sizes.capacity) to[target[n] * sizes.depth] = stored_as<C, T, N>(given[n]);
}
