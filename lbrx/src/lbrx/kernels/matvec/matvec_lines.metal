#include "matvec_lines.h"

#define INSTANTIATE(name, type)                                                              \
  template [[host_name("matvec_lines_simd_" #name)]] kernel void matvec_lines_simd<type>(    \
      device const type*, device const uint4*, device const type*, device type*,             \
      constant ProductRecord&, uint2, uint, uint2);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
