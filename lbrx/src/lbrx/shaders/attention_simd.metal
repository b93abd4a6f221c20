#include "attention_simd.h"

#define FLASH(name, type, kv_type, depth)                                                        \
  template [[host_name("attention_flash_" name "_" #depth)]] kernel void                         \
  attention_flash<type, kv_type, depth>(device const type*, device const kv_type*,               \
                                        device const kv_type*, device const float*,              \
                                        device const int*, device type*, constant Attention&,    \
                                        uint2, uint, uint, uint);

#define DECODE(name, type, kv_type)                                                              \
  template [[host_name("attention_decode_" name)]] kernel void attention_decode<type, kv_type>(  \
      device const type*, device const kv_type*, device const kv_type*, device const float*,     \
      device const int*, device type*, constant Attention&, device float*, device float2*,       \
      uint3, uint, uint, uint);

// Keys and values may be halves with float32 queries: caches are read without conversion.
#define INSTANTIATE(name, type, kv_type) \
  FLASH(name, type, kv_type, 64)         \
  FLASH(name, type, kv_type, 80)         \
  FLASH(name, type, kv_type, 96)         \
  FLASH(name, type, kv_type, 128)        \
  FLASH(name, type, kv_type, 256)        \
  DECODE(name, type, kv_type)

INSTANTIATE("float32_float32", float, float)
INSTANTIATE("float32_float16", float, half)
INSTANTIATE("float32_bfloat16", float, bfloat)
INSTANTIATE("float16_float16", half, half)
INSTANTIATE("bfloat16_bfloat16", bfloat, bfloat)
INSTANTIATE("float32_q8_0", float, uchar)
INSTANTIATE("float16_q8_0", half, uchar)
