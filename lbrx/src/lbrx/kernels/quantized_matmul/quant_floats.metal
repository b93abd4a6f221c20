#include "quant_floats.h"

#define FLOATS(name, codec)                                                                  \
  template [[host_name("quantized_matmul_floats_" #name)]] kernel void matvec_floats<codec>( \
      device const uchar*, device const void*, device const void*, device const char*,       \
      device const float*, device float*, constant QuantizedProductRecord&, uint2);

EACH_SCHEME(FLOATS)
