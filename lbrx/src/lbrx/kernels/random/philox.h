// Philox 4x32 with 10 rounds: random words as a function of a key and a counter.
#pragma once
#include "records/philox.h"
using namespace metal;

// No contraction: the reference rounds after every operation.
#pragma METAL fp contract(off)

inline uint4 philox(constant StreamRecord& stream, uint i) {
  const ulong counter = stream.counter + i;
  uint4 word = uint4(uint(counter), uint(counter >> 32), 0, 0);
  uint2 key = as_type<uint2>(stream.key);
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
