/* Compiler support that kernels may need where the CPU has no instruction for it. The signatures
   are given by the compiler; arithmetic is on bits, because a cast would call the same function. */
#include <string.h>

#include "runtime.h"

static sm_u32 bits_of(float value) {
  sm_u32 bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static bool is_nan(sm_u32 bits) { return (bits & 0x7fffffff) > 0x7f800000; }

/* bits >> shift, to nearest, ties to even. */
static sm_u32 shift_to_nearest(sm_u32 bits, sm_u32 shift) {
  sm_u32 half = 1u << (shift - 1), odd = bits >> shift & 1;
  return (bits + half - 1 + odd) >> shift;
}

static sm_u32 half_magnitude(sm_u32 bits) {
  if (is_nan(bits)) return 0x7e00 | (bits >> 13 & 0x1ff);
  if (bits >= 0x47800000) return 0x7c00;                              /* 2^16 and above */
  if (bits >= 0x38800000) return shift_to_nearest(bits - 0x38000000, 13); /* normal */
  if (bits < 0x33000000) return 0;                                    /* below 2^-25 */
  sm_u32 mantissa = (bits & 0x7fffff) | 0x800000;
  return shift_to_nearest(mantissa, 126 - (bits >> 23));
}

SM_EXPORT _Float16 __truncsfhf2(float value) {
  sm_u32 bits = bits_of(value);
  sm_u32 sign = bits >> 16 & 0x8000;
  __UINT16_TYPE__ half = (__UINT16_TYPE__)(sign | half_magnitude(bits & 0x7fffffff));
  _Float16 result;
  memcpy(&result, &half, sizeof result);
  return result;
}

SM_EXPORT float __extendhfsf2(_Float16 value) {
  __UINT16_TYPE__ half;
  memcpy(&half, &value, sizeof half);
  sm_u32 magnitude = half & 0x7fff, bits;
  if (magnitude >= 0x7c00) {
    bits = 0x7f800000 | (magnitude & 0x3ff) << 13;
  } else if (magnitude >= 0x400) {
    bits = (magnitude << 13) + 0x38000000;
  } else {
    float small = (float)magnitude * 0x1p-24f;
    bits = bits_of(small);
  }
  bits |= (half & 0x8000u) << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

SM_EXPORT __bf16 __truncsfbf2(float value) {
  sm_u32 bits = bits_of(value);
  sm_u32 top = is_nan(bits) ? bits >> 16 | 0x40 : shift_to_nearest(bits, 16);
  __UINT16_TYPE__ brain = (__UINT16_TYPE__)top;
  __bf16 result;
  memcpy(&result, &brain, sizeof result);
  return result;
}
