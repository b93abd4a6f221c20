#include "rope_write.h"

#define ROPE_WRITE(name, type, position_type)                                                \
  template [[host_name("rope_write_" name)]] kernel void rope_write<type, position_type>(    \
      device const uint2*, device const uint2*, device const uint2*, device uint2*,          \
      device uint2*, device uint2*, device const position_type*, device const float*,        \
      device const float2*, constant RowPartRecord*, uint2);

#define INSTANTIATE(name, type)              \
  ROPE_WRITE(name "_int32", type, int)       \
  ROPE_WRITE(name "_int64", type, long)

INSTANTIATE("float32", float)
INSTANTIATE("float16", half)
INSTANTIATE("bfloat16", bfloat)
