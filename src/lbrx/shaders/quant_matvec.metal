#include "quant_matvec.h"

#define SERIAL(name, codec)                                                                  \
  template [[host_name("quantized_matmul_serial_" #name)]] kernel void matvec_serial<codec>( \
      device const uchar*, device const void*, device const void*, device const char*,       \
      device const char*, device const float*, device const float*, device void*,            \
      constant Product&, uint2);

EACH_BLOCK(SERIAL)
EACH_GROUP(SERIAL)
