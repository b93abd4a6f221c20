#include "attention.h"
#include "attention_instances.h"

INSTANTIATE(plain, uint3)

#define MERGE(name, type)                                                        \
  template [[host_name("attention_merge_" name)]] kernel void                    \
  attention_merge<type>(device const float*, device const float2*, device type*, \
                        constant AttentionRecord&, device const float*, uint2);

MERGE("float32", float)
MERGE("float16", half)
MERGE("bfloat16", bfloat)
