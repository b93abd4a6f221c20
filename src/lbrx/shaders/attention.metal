#include "attention_serial.h"

#define ATTENTION(variant, name, type, kv_type, ...)                                       \
  template [[host_name("attention_" #variant "_" name)]] kernel void                       \
  attention_##variant<type, kv_type>(device const type*, device const kv_type*,            \
                                     device const kv_type*, device const float*,           \
                                     device const int*, device type*, constant Attention&, \
                                     __VA_ARGS__);

// Keys and values may be halves beside queries in float32: caches are read as they are.
#define INSTANTIATE(variant, ...)                                     \
  ATTENTION(variant, "float32_float32", float, float, __VA_ARGS__)    \
  ATTENTION(variant, "float32_float16", float, half, __VA_ARGS__)     \
  ATTENTION(variant, "float32_bfloat16", float, bfloat, __VA_ARGS__)  \
  ATTENTION(variant, "float16_float16", half, half, __VA_ARGS__)      \
  ATTENTION(variant, "bfloat16_bfloat16", bfloat, bfloat, __VA_ARGS__)

INSTANTIATE(plain, uint3)
INSTANTIATE(serial, uint2)
INSTANTIATE(decode_serial, device float*, device float2*, uint2)

#define MERGE(name, type)                                                     \
  template [[host_name("attention_merge_" name)]] kernel void                 \
  attention_merge<type>(device const float*, device const float2*, device type*,             \
                        constant Attention&, uint2);

MERGE("float32", float)
MERGE("float16", half)
MERGE("bfloat16", bfloat)
