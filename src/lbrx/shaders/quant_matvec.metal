#include "quant_matvec.h"

#define SERIAL(name, codec)                                                                  \
  template [[host_name("quantized_matmul_serial_" #name)]] kernel void matvec_serial<codec>( \
      device const uchar*, device const void*, device const void*, device const char*,       \
      device const short*, device const float*, device const float*, device void*,           \
      constant Product&, uint2);
#define LANES(name, codec)                                                                   \
  template [[host_name("quantized_matmul_simd_" #name)]] kernel void matvec_simd<codec>(     \
      device const uchar*, device const void*, device const void*, device const char*,       \
      device const void*, device void*, constant Product&, uint2, uint, uint);

EACH_BLOCK(SERIAL)
EACH_GROUP(SERIAL)
EACH_SCHEME(LANES)
