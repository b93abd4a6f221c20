#include "quant_matvec.h"

#define LANES(name, codec)                                                                   \
  template [[host_name("quantized_matmul_simd_" #name)]] kernel void matvec_simd<codec>(     \
      device const uchar*, device const void*, device const void*, device const char*,       \
      device const void*, device void*, constant QuantizedProductRecord&, uint2, uint, uint);

EACH_SCHEME(LANES)
