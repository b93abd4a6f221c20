#include "rope.h"

#define ROPE(variant, name, type, position_type, grid)                                       \
  template [[host_name("rope_" #variant "_" name)]] kernel void                              \
  rope_##variant<type, position_type>(device const type*, device const position_type*,       \
                                      device const float*, device const float2*,             \
                                      device type*, constant RopeRecord&, grid);

#define CHUNKS(name, type, position_type, heads)                                             \
  template [[host_name("rope_chunks" #heads "_" name)]] kernel void                          \
  rope_chunks<type, position_type, heads>(device const uint4*, device const position_type*,  \
                                          device const float*, device const float2*,         \
                                          device uint4*, constant RopeRecord&, uint3);

#define INSTANTIATE(name, type)                                \
  ROPE(pairs, name "_int32", type, int, uint3)                 \
  ROPE(pairs, name "_int64", type, long, uint3)                \
  CHUNKS(name "_int32", type, int, 1)                          \
  CHUNKS(name "_int32", type, int, 4)                          \
  CHUNKS(name "_int64", type, long, 1)                         \
  CHUNKS(name "_int64", type, long, 4)                         \
  ROPE(serial, name "_int32", type, int, uint2)                \
  ROPE(serial, name "_int64", type, long, uint2)

INSTANTIATE("float32", float)
INSTANTIATE("float16", half)
INSTANTIATE("bfloat16", bfloat)
