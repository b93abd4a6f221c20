#include "quant_matmul.h"

#define INSTANCE(variant, name, type, codec, ...)                                              \
  template [[host_name("quantized_matmul_" variant "_" #name)]] kernel void                    \
  matmul_tiles<type, codec, Tiling<__VA_ARGS__>>(                                              \
      device const RunReader<codec>::Word*, device const void*, device const void*, device const char*, \
      device const void*, device void*, constant QuantizedProductRecord&, threadgroup float4*, uint2, uint,   \
      uint, uint STEP_TYPES);

// Simdgroups down and across, rows and columns of each, depth and stages: kernels/quantized_matmul.py
// has the same list.
#define TILES(name, codec)                                           \
  INSTANCE("tiles", name, float, codec, 2, 2, 16, 32, 64, 1)         \
  INSTANCE("half_tiles", name, half, codec, 2, 2, 16, 32, 64, 1)     \
  INSTANCE("large_half_tiles", name, half, codec, 2, 4, 64, 32, 64, 3) \
  INSTANCE("large_bfloat_tiles", name, bfloat, codec, 2, 4, 64, 32, 64, 3)

EACH_SCHEME(TILES)
