#include "quant_matmul.h"

#define TILES(name, codec)                                                                     \
  template [[host_name("quantized_matmul_tiles_" #name)]] kernel void                          \
  matmul_tiles<float, codec>(device const uchar*, device const void*, device const void*,      \
                             device const char*, device const void*, device void*,             \
                             constant Product&, uint2, uint, uint, uint);                      \
  template [[host_name("quantized_matmul_half_tiles_" #name)]] kernel void                     \
  matmul_tiles<half, codec>(device const uchar*, device const void*, device const void*,       \
                            device const char*, device const void*, device void*,              \
                            constant Product&, uint2, uint, uint, uint);

EACH_SCHEME(TILES)
