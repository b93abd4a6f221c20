// Rotations of rotary position embedding.
//
// An angle is a 64-bit fraction of a turn, so position * speed wraps around as angles do and loses
// nothing: in float, position 131071 would be off by 0.008 radians. The speeds, turns from one
// position to the next, come from float64 as two floats: the rounded value and the rest.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Turns divided by a factor.
inline float2 slower(float2 turns, float factor) {
  const float quotient = turns.x / factor;
  return float2(quotient, (fma(-quotient, factor, turns.x) + turns.y) / factor);
}

// 2^64 times the fraction of a turn. Full turns are dropped; the rest times 2^63 is an integer that
// fits into a long.
inline ulong speed_of(float2 turns) {
  turns -= rint(turns);
  return 2 * (ulong(long(turns.x * 0x1p63f)) + ulong(long(turns.y * 0x1p63f)));
}

// Cosine and sine of an angle: the nearest quarter turn, and polynomials for what is left of it.
inline float2 rotation(ulong speed, ulong position) {
  const uint turn = uint((speed * position) >> 32);
  const uint quarter = (turn + 0x20000000u) >> 30;
  const float x = float(int(turn - (quarter << 30))) * (M_PI_F * 0x1p-31f);
  const float s = x * x;
  const float odd = fma(s, fma(s, -1.9515296e-4f, 8.3321609e-3f), -1.6666655e-1f);
  const float even = fma(s, fma(s, 2.4433157e-5f, -1.3887316e-3f), 4.1666646e-2f);
  const float sine = fma(x * s, odd, x), cosine = fma(s * s, even, fma(s, -0.5f, 1.0f));
  const bool swap = (quarter & 1) != 0;
  const float c = swap ? sine : cosine, d = swap ? cosine : sine;
  return float2(((quarter + 1) & 2) != 0 ? -c : c, (quarter & 2) != 0 ? -d : d);
}

inline float2 rotated(float first, float second, float2 turn) {
  return float2(first * turn.x - second * turn.y, first * turn.y + second * turn.x);
}
