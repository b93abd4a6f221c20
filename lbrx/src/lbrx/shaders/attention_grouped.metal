#include "attention_grouped.h"

#define GROUPED(name, type, depth)                                                             \
  template [[host_name("attention_grouped_" name "_" #depth)]] kernel void                     \
  attention_grouped<type, depth>(device const type*, device const uint4*, device const uint4*, \
                                 device const float*, device const int*, device type*,         \
                                 constant Attention&, device float*, device float2*, uint3,    \
                                 uint, uint, uint);

#define JOIN(name, type)                                                                        \
  template [[host_name("attention_join_" name)]] kernel void attention_join<type>(              \
      device const float*, device const float2*, device type*, constant Attention&, uint, uint, \
      uint);

#define INSTANTIATE(name, kv_name, type)  \
  GROUPED(name "_" kv_name, type, 64)     \
  GROUPED(name "_" kv_name, type, 80)     \
  GROUPED(name "_" kv_name, type, 96)     \
  GROUPED(name "_" kv_name, type, 128)    \
  GROUPED(name "_" kv_name, type, 256)    \
  JOIN(name, type)

INSTANTIATE("float32", "float16", float)
INSTANTIATE("float16", "float16", half)
