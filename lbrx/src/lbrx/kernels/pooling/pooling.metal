#include "pooling.h"

#define POOL(op, join, variant, columns, dtype, type)                                     \
  template [[host_name(#op "_" #variant "_" #dtype)]] kernel void                         \
  pool2d<type, join, columns>(device const type*, device type*, constant PoolingRecord&, uint3);
#define INSTANTIATE(dtype, type)                        \
  POOL(max_pool2d, LargestInWindow, serial, 16, dtype, type)    \
  POOL(max_pool2d, LargestInWindow, threads, 1, dtype, type)    \
  POOL(avg_pool2d, MeanOfWindow, serial, 16, dtype, type)       \
  POOL(avg_pool2d, MeanOfWindow, threads, 1, dtype, type)

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
