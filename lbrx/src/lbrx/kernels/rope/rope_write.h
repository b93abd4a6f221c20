// Rows of several operands in one launch: each is rotated by its position or not, and written to a
// result of its own or to its position in a cache. A thread has one vector of a row, or the two that
// hold a pair's features.
#pragma once
#include "early.h"
#include "records/rope_write.h"
#include "rope.h"

constant constexpr uint VECTOR = 8;  // bytes: a thread has few of them, since rows are few

template <typename T, uint N>
inline void turn_vectors(thread Chunk<T, N>& first, thread Chunk<T, N>& second,
                         thread const ulong (&speeds)[N], ulong position) {
  const Chunk<T, N> given[2] = {first, second};
  first = {}, second = {};
#pragma unroll
  for (uint i = 0; i < N; i++) {
    const float2 turn = rotation(speeds[i], position);
    const uint half_of = i / (N / 2), place = 2 * (i % (N / 2));
    const float one = float(INTERLEAVED ? given[half_of].get(place) : given[0].get(i));
    const float other = float(INTERLEAVED ? given[half_of].get(place + 1) : given[1].get(i));
    const float2 made = rotated(one, other, turn);
    if (!INTERLEAVED) first.put(i, T(made.x)), second.put(i, T(made.y));
    else if (half_of == 0) first.put(place, T(made.x)), first.put(place + 1, T(made.y));
    else second.put(place, T(made.x)), second.put(place + 1, T(made.y));
  }
}

template <typename T, typename P>
kernel void rope_write(device const uint2* x0 [[buffer(0)]], device const uint2* x1 [[buffer(1)]],
                       device const uint2* x2 [[buffer(2)]], device uint2* out0 [[buffer(3)]],
                       device uint2* out1 [[buffer(4)]], device uint2* out2 [[buffer(5)]],
                       device const P* positions [[buffer(6)]],
                       device const float* factors [[buffer(7), function_constant(HAS_FACTORS)]],
                       device const float2* speeds [[buffer(8)]],
                       constant RowPartRecord* parts [[buffer(9)]],
                       uint2 place [[thread_position_in_grid]]) {
  constexpr uint N = VECTOR / sizeof(T);
  const uint own = place.x, which = place.y;
  constant RopeRecord& r = parts[which].rope;
  const uint columns = (r.features - r.pairs) / N, turned = r.pairs / N;
  const uint column = own % columns, row = own / columns;
  const uint3 at = {row % r.sizes[2], row / r.sizes[2] % r.sizes[1],
                    row / r.sizes[2] / r.sizes[1]};
  device const uint2* from = (which == 0 ? x0 : which == 1 ? x1 : x2) + row_in(r, at) / N;
  const bool exists = own < parts[which].threads, turns = exists && column < turned;
  const uint capacity = parts[which].capacity;
  const long place_of = position_at(r, at);
  ulong own_speeds[N];
  if (HAS_FACTORS) await_previous();  // which may compute them
#pragma unroll
  for (uint i = 0; i < N; i++) {
    const uint pair = column * N + i;
    own_speeds[i] = turns ? speed_of(speeds[pair], factors, pair) : 0;
  }
  if (!HAS_FACTORS) await_previous();
  if (!exists) return;
  const ulong position = ulong(positions[place_of]);
  const uint low = !turns ? turned + column : INTERLEAVED ? 2 * column : column;
  const uint high = !turns ? low : INTERLEAVED ? low + 1 : low + turned;
  Chunk<T, N> first, second;
  first.bits = from[low], second.bits = from[high];
  if (turns) turn_vectors(first, second, own_speeds, position);
  if (capacity && position >= capacity) return;
  const ulong plane = ulong(at.z) * r.sizes[1] + at.y;
  const ulong to = capacity ? plane * capacity + position : plane * r.sizes[2] + at.x;
  device uint2* out = (which == 0 ? out0 : which == 1 ? out1 : out2) + to * (r.features / N);
  out[low] = first.bits;
  if (turns) out[high] = second.bits;
}
