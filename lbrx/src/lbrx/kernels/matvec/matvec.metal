#include "matvec.h"

#define INSTANTIATE(name, type)                                                                 \
  template [[host_name("matvec_strips_serial_" #name)]] kernel void matvec_strips_serial<type>( \
      device const type*, device const type*, device const type*, device type*,                 \
      constant ProductRecord&, uint2, uint2);                                                         \
  template [[host_name("matvec_dots_simd_" #name)]] kernel void matvec_dots_simd<type>(         \
      device const type*, device const type*, device const type*, device type*,                 \
      constant ProductRecord&, uint2, uint, uint);                                                    \
  template [[host_name("matvec_strips_simd_" #name)]] kernel void matvec_strips_simd<type>(     \
      device const type*, device const type*, device const type*, device type*,                 \
      constant ProductRecord&, uint2, uint);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
