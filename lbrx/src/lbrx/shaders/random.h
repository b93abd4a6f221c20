// Random numbers as a function of (seed, offset, position): Philox 4x32 with 10 rounds. A thread
// computes the elements of one counter; results have room for all elements of the last one.
#pragma once
#include <metal_stdlib>
using namespace metal;

struct Stream {
  uint2 key;
  ulong counter;  // of the first four elements
};

// No contraction: the reference rounds after every operation.
#pragma METAL fp contract(off)

inline uint4 philox(constant Stream& stream, uint i) {
  const ulong counter = stream.counter + i;
  uint4 word = uint4(uint(counter), uint(counter >> 32), 0, 0);
  uint2 key = stream.key;
  for (int round = 0; round < 10; round++) {
    const ulong first = ulong(word.x) * 0xD2511F53u;
    const ulong second = ulong(word.z) * 0xCD9E8D57u;
    word = uint4(uint(second >> 32) ^ word.y ^ key.x, uint(second),
                 uint(first >> 32) ^ word.w ^ key.y, uint(first));
    key += uint2(0x9E3779B9u, 0xBB67AE85u);
  }
  return word;
}

// 24 bits, in [0, 1).
inline float unit(uint word) { return float(word >> 8) * 0x1p-24f; }

// Box-Muller transform: two words give two numbers.
inline float radius(uint word) { return sqrt(-2.0f * log(1.0f - unit(word))); }
inline float angle(uint word) { return 6.2831853f * unit(word); }

template <typename T>
kernel void random_uniform(device T* out [[buffer(0)]], constant Stream& stream [[buffer(1)]],
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
kernel void random_normal(device T* out [[buffer(0)]], constant Stream& stream [[buffer(1)]],
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
                                  constant Stream& stream [[buffer(1)]],
                                  constant float2& chance [[buffer(2)]],
                                  uint i [[thread_position_in_grid]]) {
  const uint4 words = philox(stream, i);
  device bool* to = out + ulong(i) * 4;
  to[0] = unit(words.x) < chance.x;
  to[1] = unit(words.y) < chance.x;
  to[2] = unit(words.z) < chance.x;
  to[3] = unit(words.w) < chance.x;
}

// Integers from range.x on, below range.x + range.y: two words each, so two for a counter.
template <typename T>
kernel void random_integers(device T* out [[buffer(0)]], constant Stream& stream [[buffer(1)]],
                            constant ulong2& range [[buffer(2)]],
                            uint i [[thread_position_in_grid]]) {
  const uint4 words = philox(stream, i);
  device T* to = out + ulong(i) * 2;
  to[0] = T(range.x + mulhi(ulong(words.y) << 32 | words.x, range.y));
  to[1] = T(range.x + mulhi(ulong(words.w) << 32 | words.z, range.y));
}
