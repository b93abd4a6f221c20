#include "attention_flash.h"

#define INSTANCE(variant, name, type, kv_type, factor, depth, ...) \
  template [[host_name("attention_" variant "_" name "_" #depth)]] kernel void \
  attention_flash<type, kv_type, Flash<factor, depth, __VA_ARGS__>>( \
      device const type*, device const kv_type*, device const kv_type*, device const float*, \
      device const int*, device type*, constant AttentionRecord&, threadgroup float4*, uint2, uint2, \
      uint, uint, uint);

// Queries of a simdgroup, simdgroups, and keys at a time: kernels/attention.py has the same numbers. float16 is
// multiplied directly, other dtypes as float: before the M3, bfloat is emulated.
#define HALVES(name, type, kv_type) \
  INSTANCE("flash", name, type, kv_type, half, 64, 8, 4, 32) \
  INSTANCE("flash", name, type, kv_type, half, 80, 8, 4, 32) \
  INSTANCE("flash", name, type, kv_type, half, 96, 8, 4, 32) \
  INSTANCE("flash", name, type, kv_type, half, 128, 8, 4, 32) \
  INSTANCE("flash", name, type, kv_type, half, 256, 8, 4, 16)

#define FLOATS(name, type, kv_type) \
  INSTANCE("flash", name, type, kv_type, float, 64, 8, 4, 32) \
  INSTANCE("flash", name, type, kv_type, float, 80, 8, 4, 32) \
  INSTANCE("flash", name, type, kv_type, float, 96, 8, 4, 32) \
  INSTANCE("flash", name, type, kv_type, float, 128, 8, 4, 16) \
  INSTANCE("flash", name, type, kv_type, float, 256, 8, 4, 8)

// For tensor cores. Those of Hopper take four simdgroups together: small threadgroups, of which
// several are on a core, compute weights while others multiply.
#define LARGE(name, type, kv_type) \
  INSTANCE("flash_large", name, type, kv_type, type, 64, 16, 4, 128) \
  INSTANCE("flash_large", name, type, kv_type, type, 80, 16, 4, 64) \
  INSTANCE("flash_large", name, type, kv_type, type, 96, 16, 4, 64) \
  INSTANCE("flash_large", name, type, kv_type, type, 128, 16, 4, 64) \
  INSTANCE("flash_large", name, type, kv_type, type, 256, 16, 4, 32)

FLOATS("float32_float32", float, float)
FLOATS("float32_float16", float, half)
FLOATS("float32_bfloat16", float, bfloat)
FLOATS("float32_q8_0", float, uchar)
FLOATS("bfloat16_bfloat16", bfloat, bfloat)
HALVES("float16_float16", half, half)
HALVES("float16_q8_0", half, uchar)
LARGE("float16_float16", half, half)
LARGE("float16_q8_0", half, uchar)
LARGE("bfloat16_bfloat16", bfloat, bfloat)
