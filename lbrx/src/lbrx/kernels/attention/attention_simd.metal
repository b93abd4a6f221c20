#include "attention_simd.h"

#define DECODE(name, type, kv_type)                                                              \
  template [[host_name("attention_decode_" name)]] kernel void attention_decode<type, kv_type>(  \
      device const type*, device const kv_type*, device const kv_type*, device const float*,     \
      device const int*, device type*, constant AttentionRecord&, device float*, device float2*,       \
      uint3, uint, uint, uint);

// Keys and values may be halves with float32 queries: caches are read without conversion.
DECODE("float32_float32", float, float)
DECODE("float32_float16", float, half)
DECODE("float32_bfloat16", float, bfloat)
DECODE("float16_float16", half, half)
DECODE("bfloat16_bfloat16", bfloat, bfloat)
DECODE("float32_q8_0", float, uchar)
DECODE("float16_q8_0", half, uchar)
