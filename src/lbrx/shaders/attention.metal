#include "attention.h"

#define ATTENTION(variant, name, type, kv_type, position)                                      \
  template [[host_name("attention_" #variant "_" name)]] kernel void                           \
  attention_##variant<type, kv_type>(device const type*, device const kv_type*,                \
                                     device const kv_type*, device const float*,               \
                                     device const int*, device type*, constant Attention&,     \
                                     position);

// Keys and values may be halves beside queries in float32: caches are read as they are.
#define INSTANTIATE(variant, position)                                         \
  ATTENTION(variant, "float32_float32", float, float, position)                \
  ATTENTION(variant, "float32_float16", float, half, position)                 \
  ATTENTION(variant, "float32_bfloat16", float, bfloat, position)              \
  ATTENTION(variant, "float16_float16", half, half, position)                  \
  ATTENTION(variant, "bfloat16_bfloat16", bfloat, bfloat, position)

INSTANTIATE(plain, uint3)
INSTANTIATE(serial, uint2)
