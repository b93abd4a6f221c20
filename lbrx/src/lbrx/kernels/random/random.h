// Random numbers as a function of (seed, offset, position): Philox 4x32 with 10 rounds. A thread
// computes the elements of one counter; results have room for all elements of the last one.
#pragma once
#include "philox.h"

// Box-Muller transform: two words give two numbers.
inline float radius(uint word) { return sqrt(-2.0f * log(1.0f - unit(word))); }
inline float angle(uint word) { return 6.2831853f * unit(word); }

template <typename T>
kernel void random_uniform(device T* out [[buffer(0)]], constant StreamRecord& stream [[buffer(1)]],
                           constant float2& range [[buffer(2)]],
                           uint i [[thread_position_in_grid]]) {
  const uint4 words = philox(stream, i);
  device T* to = out + ulong(i) * 4;
  to[0] = T(unit(words.x) * range.y + range.x);
  to[1] = T(unit(words.y) * range.y + range.x);
  to[2] = T(unit(words.z) * range.y + range.x);
  to[3] = T(unit(words.w) * range.y + range.x);
}

template <typename T>
kernel void random_normal(device T* out [[buffer(0)]], constant StreamRecord& stream [[buffer(1)]],
                          constant float2& moments [[buffer(2)]],
                          uint i [[thread_position_in_grid]]) {
  const uint4 words = philox(stream, i);
  const float first = radius(words.x), second = radius(words.z);
  device T* to = out + ulong(i) * 4;
  to[0] = T(first * cos(angle(words.y)) * moments.y + moments.x);
  to[1] = T(first * sin(angle(words.y)) * moments.y + moments.x);
  to[2] = T(second * cos(angle(words.w)) * moments.y + moments.x);
  to[3] = T(second * sin(angle(words.w)) * moments.y + moments.x);
}

kernel void random_bernoulli_bool(device bool* out [[buffer(0)]],
                                  constant StreamRecord& stream [[buffer(1)]],
                                  constant float2& chance [[buffer(2)]],
                                  uint i [[thread_position_in_grid]]) {
  const uint4 words = philox(stream, i);
  device bool* to = out + ulong(i) * 4;
  to[0] = unit(words.x) < chance.x;
  to[1] = unit(words.y) < chance.x;
  to[2] = unit(words.z) < chance.x;
  to[3] = unit(words.w) < chance.x;
}

// Integers from range.x on, below range.x + range.y: two words each, so two for a counter. A range.y
// of 0 stands for 2**64, all integers.
inline ulong scaled(uint low, uint high, ulong count) {
  const ulong number = ulong(high) << 32 | low;
  return count == 0 ? number : mulhi(number, count);
}

template <typename T>
kernel void random_integers(device T* out [[buffer(0)]], constant StreamRecord& stream [[buffer(1)]],
                            constant ulong2& range [[buffer(2)]],
                            uint i [[thread_position_in_grid]]) {
  const uint4 words = philox(stream, i);
  device T* to = out + ulong(i) * 2;
  to[0] = T(range.x + scaled(words.x, words.y, range.y));
  to[1] = T(range.x + scaled(words.z, words.w, range.y));
}
