#include "quant_decode.h"

#define INSTANTIATE(name, codec)                                                             \
  template [[host_name("dequantize_serial_" #name)]] kernel void decode_blocks<codec>(       \
      device const uchar*, device const void*, device const void*, device const char*,       \
      device void*, uint);                                                                   \
  template [[host_name("dequantize_vector_" #name)]] kernel void decode_vectors<codec>(      \
      device const uchar*, device const void*, device const void*, device const char*,       \
      device uint4*, uint);

EACH_SCHEME(INSTANTIATE)
