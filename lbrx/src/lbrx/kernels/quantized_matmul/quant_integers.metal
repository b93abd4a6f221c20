#include "quant_integers.h"
#include "quant_integer_tiles.h"

#define SERIAL(name, codec)                                                                  \
  template [[host_name("quantized_matmul_serial_" #name)]] kernel void matvec_serial<codec>( \
      device const uchar*, device const void*, device const void*, device const uchar*,      \
      device const void*, device const void*, device const uchar*, device const void*,       \
      device const void*, device const char*, device const Codes*, device const float*,      \
      device const float2*, device void*, device void*, device void*, constant WeightsRecord&, uint2);

EACH_BLOCK(SERIAL)
EACH_GROUP(SERIAL)

#define MATRIX(name, codec)                                                                  \
  template [[host_name("pack_matrix_" #name)]] kernel void pack_matrix<codec>(               \
      device const uchar*, device const void*, device const void*, device const char*,       \
      device Pairs*, device float*, device float*, constant PanelRecord&, uint2);

EACH_BLOCK(MATRIX)
EACH_GROUP(MATRIX)
