// Rotary position embedding: pairs of features are rotated by angles proportional to the position.
#pragma once
#include "chunks.h"
#include "records/rope.h"
#include "rotation.h"

// 2^64 times the fraction of a turn that one position adds to a pair.
inline ulong speed_of(float2 turns, device const float* factors, uint pair) {
  return speed_of(HAS_FACTORS ? slower(turns, factors[pair]) : turns);
}

// Features of a pair.
inline uint2 pair_places(constant RopeRecord& r, uint pair) {
  return INTERLEAVED ? uint2(2 * pair, 2 * pair + 1) : uint2(pair, pair + r.pairs);
}

inline long row_in(constant RopeRecord& r, uint3 at) {
  return r.start + at.z * r.strides[0] + at.y * r.strides[1] + at.x * r.strides[2];
}

inline long row_out(constant RopeRecord& r, uint3 at) {
  return ((long(at.z) * r.sizes[1] + at.y) * r.sizes[2] + at.x) * r.features;
}

inline long position_at(constant RopeRecord& r, uint3 at) {
  return r.position + at.z * r.position_strides[0] + at.y * r.position_strides[1] +
         at.x * r.position_strides[2];
}

// ---- pairs: one thread per pair of features; the remaining features are copied by extra threads ----

template <typename T, typename P>
kernel void rope_pairs(device const T* x [[buffer(0)]], device const P* positions [[buffer(1)]],
                       device const float* factors [[buffer(2), function_constant(HAS_FACTORS)]],
                       device const float2* speeds [[buffer(3)]], device T* out [[buffer(4)]],
                       constant RopeRecord& r [[buffer(5)]], uint3 at [[thread_position_in_grid]]) {
  const uint n = at.x;
  const uint3 row = uint3(at.y, at.z % r.sizes[1], at.z / r.sizes[1]);
  device const T* from = x + row_in(r, row);
  device T* to = out + row_out(r, row);
  if (n >= r.pairs) {
    to[n + r.pairs] = from[n + r.pairs];
    return;
  }
  const float2 turn =
      rotation(speed_of(speeds[n], factors, n), ulong(positions[position_at(r, row)]));
  const uint2 place = pair_places(r, n);
  const float2 turned = rotated(float(from[place.x]), float(from[place.y]), turn);
  to[place.x] = T(turned.x);
  to[place.y] = T(turned.y);
}

// ---- chunks: a thread rotates vectors of features of HEADS repeats, which share their positions ----

template <typename T, typename P, uint HEADS>
kernel void rope_chunks(device const uint4* x [[buffer(0)]], device const P* positions [[buffer(1)]],
                        device const float* factors [[buffer(2), function_constant(HAS_FACTORS)]],
                        device const float2* speeds [[buffer(3)]], device uint4* out [[buffer(4)]],
                        constant RopeRecord& r [[buffer(5)]], uint3 at [[thread_position_in_grid]]) {
  constexpr uint N = 16 / sizeof(T);
  // Strides and sizes in chunks. After the pairs, chunks are copied.
  const uint parts = r.pairs / N, columns = r.features / N, repeats = r.sizes[1];
  const uint groups = (repeats + HEADS - 1) / HEADS;
  if (at.x >= columns - parts || at.y >= r.sizes[2]) return;
  const bool turns = at.x < parts;
  const uint low = turns ? (INTERLEAVED ? 2 * at.x : at.x) : at.x + parts;
  const uint high = turns ? (INTERLEAVED ? low + 1 : low + parts) : low;
  const uint head = at.z % groups * HEADS;
  const uint3 row = uint3(at.y, head, at.z / groups);
  const long step = r.strides[1] / N, target_step = long(r.sizes[2]) * columns;
  device const uint4* from = x + row_in(r, row) / N;
  device uint4* to = out + row_out(r, row) / N;
  Chunk<T, N> first[HEADS], second[HEADS];
#pragma unroll
  for (uint h = 0; h < HEADS; h++) {
    const long place = min(h, repeats - 1 - head) * step;
    first[h].bits = from[place + low], second[h].bits = from[place + high];
  }
  float2 turn[N];
  if (turns) {
    const ulong position = ulong(positions[position_at(r, row)]);
#pragma unroll
    for (uint i = 0; i < N; i++) {
      const uint pair = at.x * N + i;
      turn[i] = rotation(speed_of(speeds[pair], factors, pair), position);
    }
  }
#pragma unroll
  for (uint h = 0; h < HEADS; h++) {
    if (head + h >= repeats) return;
    Chunk<T, N> one = first[h], other = second[h];
    if (turns) one = {}, other = {};
#pragma unroll
    for (uint i = 0; turns && i < N; i++) {
      if (INTERLEAVED) {
        Chunk<T, N> given = i < N / 2 ? first[h] : second[h];
        const uint place = 2 * (i % (N / 2));
        const float2 made = rotated(float(given.get(place)), float(given.get(place + 1)), turn[i]);
        if (i < N / 2) one.put(place, T(made.x)), one.put(place + 1, T(made.y));
        else other.put(place, T(made.x)), other.put(place + 1, T(made.y));
      } else {
        const float2 made = rotated(float(first[h].get(i)), float(second[h].get(i)), turn[i]);
        one.put(i, T(made.x)), other.put(i, T(made.y));
      }
    }
    to[h * target_step + low] = one.bits;
    if (turns) to[h * target_step + high] = other.bits;
  }
}

// ---- serial: one thread per group of inner rows, for all repeats, which mostly share positions ----

constant constexpr uint SERIAL_PAIRS = 128;
constant constexpr uint SERIAL_ROWS = 8;

// Cosines and sines of a row's angles.
inline void fill_row(thread const ulong* speeds, uint count, ulong position, thread float* cosines,
                     thread float* sines) {
  for (uint n = 0; n < count; n++) {
    const float2 turn = rotation(speeds[n], position);
    cosines[n] = turn.x, sines[n] = turn.y;
  }
}

// Rotates `count` pairs; first features are `step` apart, second ones `between` after them.
template <typename T>
inline void turn(device const T* from, device T* to, uint count, uint step, uint between,
                 thread const float* cosines, thread const float* sines) {
  for (uint n = 0; n < count; n++) {
    const float first = float(from[n * step]), second = float(from[n * step + between]);
    to[n * step] = T(first * cosines[n] - second * sines[n]);
    to[n * step + between] = T(first * sines[n] + second * cosines[n]);
  }
}

template <typename T, typename P>
kernel void rope_serial(device const T* x [[buffer(0)]], device const P* positions [[buffer(1)]],
                        device const float* factors [[buffer(2), function_constant(HAS_FACTORS)]],
                        device const float2* speeds [[buffer(3)]], device T* out [[buffer(4)]],
                        constant RopeRecord& r [[buffer(5)]], uint2 at [[thread_position_in_grid]]) {
  float cosines[SERIAL_ROWS * SERIAL_PAIRS], sines[SERIAL_ROWS * SERIAL_PAIRS];
  ulong own[SERIAL_PAIRS];
  const uint pairs = r.pairs, features = r.features, repeats = r.sizes[1];
  const uint step = INTERLEAVED ? 2 : 1, between = INTERLEAVED ? 1 : pairs;
  const uint row0 = at.x * SERIAL_ROWS, rows = min(SERIAL_ROWS, r.sizes[2] - row0);
  for (uint start = 0; start < pairs; start += SERIAL_PAIRS) {
    const uint count = min(SERIAL_PAIRS, pairs - start);
    for (uint n = 0; n < count; n++) own[n] = speed_of(speeds[start + n], factors, start + n);
    for (uint h = 0; h < repeats; h++) {
      const bool moved = h == 0 || r.position_strides[1] != 0;
      for (uint i = 0; i < rows; i++) {
        const uint3 row = uint3(row0 + i, h, at.y);
        thread float* c = cosines + i * SERIAL_PAIRS;
        thread float* s = sines + i * SERIAL_PAIRS;
        if (moved) fill_row(own, count, ulong(positions[position_at(r, row)]), c, s);
        turn(x + row_in(r, row) + start * step, out + row_out(r, row) + start * step, count, step,
             between, c, s);
      }
    }
  }
  for (uint h = 0; h < repeats && 2 * pairs < features; h++) {
    for (uint i = 0; i < rows; i++) {
      device const T* from = x + row_in(r, uint3(row0 + i, h, at.y));
      device T* to = out + row_out(r, uint3(row0 + i, h, at.y));
      for (uint d = 2 * pairs; d < features; d++) to[d] = from[d];
    }
  }
}
