#include "matvec_serial.h"

#define INSTANTIATE(name, type)                                                                    \
  template [[host_name("matvec_serial_dots_" #name)]] kernel void matvec_dots_serial<type>(        \
      device const type*, device const type*, device const type*, device type*, constant ProductRecord&, \
      uint2);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
