#include "attention_grouped.h"

#define GROUPED(name, type, kv_type, depth)                                                     \
  template [[host_name("attention_grouped_" name "_" #depth)]] kernel void                      \
  attention_grouped<type, kv_type, depth>(                                                      \
      device const type*, device const kv_type*, device const kv_type*, device const float*,    \
      device const int*, device vec<type, 4>*, constant AttentionRecord&, device float4*,             \
      device float2*, threadgroup uint4*, uint3, uint, uint, uint, uint);

#define JOIN(name, type)                                                             \
  template [[host_name("attention_join_" name)]] kernel void attention_join<type>(   \
      device const float4*, device const float2*, device vec<type, 4>*,              \
      constant AttentionRecord&, device const float*, uint, uint, uint);

#define FLOATS(name, type, kv_type)  \
  GROUPED(name, type, kv_type, 64)   \
  GROUPED(name, type, kv_type, 80)   \
  GROUPED(name, type, kv_type, 96)   \
  GROUPED(name, type, kv_type, 128)  \
  GROUPED(name, type, kv_type, 256)

FLOATS("float32_float16", float, half)
FLOATS("float16_float16", half, half)
FLOATS("bfloat16_bfloat16", bfloat, bfloat)
GROUPED("float16_q8_0", half, uchar, 64)
GROUPED("float16_q8_0", half, uchar, 128)
GROUPED("float16_q8_0", half, uchar, 256)
JOIN("float32", float)
JOIN("float16", half)
JOIN("bfloat16", bfloat)
