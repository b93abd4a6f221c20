#include "attention_grouped.h"

#define GROUPED(name, type, kv_type, word, depth)                                            \
  template [[host_name("attention_grouped_" name "_" #depth)]] kernel void                   \
  attention_grouped<type, kv_type, depth>(device const type*, device const word*,            \
                                          device const word*, device const float*,           \
                                          device const int*, device type*,                   \
                                          constant Attention&, device float*, device float2*, \
                                          uint3, uint, uint, uint);

#define JOIN(name, type)                                                                        \
  template [[host_name("attention_join_" name)]] kernel void attention_join<type>(              \
      device const float*, device const float2*, device type*, constant Attention&, uint, uint, \
      uint, uint);

#define HALVES(name, type)                         \
  GROUPED(name "_float16", type, half, uint4, 64)  \
  GROUPED(name "_float16", type, half, uint4, 80)  \
  GROUPED(name "_float16", type, half, uint4, 96)  \
  GROUPED(name "_float16", type, half, uint4, 128) \
  GROUPED(name "_float16", type, half, uint4, 256) \
  JOIN(name, type)

HALVES("float32", float)
HALVES("float16", half)
GROUPED("float16_q8_0", half, uchar, uint, 64)
GROUPED("float16_q8_0", half, uchar, uint, 128)
GROUPED("float16_q8_0", half, uchar, uint, 256)
