#include "softmax.h"

#define INSTANTIATE(name, type)                                                               \
  template [[host_name("softmax_serial_" #name)]] kernel void softmax_serial<type>(           \
      device const type*, device type*, constant SoftmaxRows&, uint);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
