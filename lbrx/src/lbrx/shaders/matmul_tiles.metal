#include "matmul_tiles.h"

#define INSTANCE(name, type, out, ...)                                                        \
  template [[host_name("matmul_tiles_" name)]] kernel void                                    \
  matmul_tiles<type, out, Tiling<__VA_ARGS__>>(                                               \
      device const type*, device const type*, device const out*, device out*,                 \
      constant Product&, constant uint&, threadgroup float4*, uint3, uint3, uint, uint, uint);

// Simdgroups down and across, rows and columns of each, depth and stages: kernels/matmul_tiles.py
// has the same list.
#define TILES(size, name, type, ...)                          \
  INSTANCE("whole" size "_" #name, type, type, __VA_ARGS__)   \
  INSTANCE("parts" size "_" #name, type, float, __VA_ARGS__)

#define SMALL(name, type)                       \
  TILES("32", name, type, 2, 2, 16, 16, 16, 1)  \
  TILES("64", name, type, 2, 2, 32, 32, 16, 1)

#define LARGE(name, type)                              \
  TILES("tensor64", name, type, 2, 2, 32, 32, 64, 3)   \
  TILES("tensor128", name, type, 2, 4, 64, 32, 64, 4)  \
  TILES("tensor256", name, type, 2, 4, 64, 64, 64, 4)

SMALL(float32, float)
SMALL(float16, half)
SMALL(bfloat16, bfloat)
LARGE(float16, half)
LARGE(bfloat16, bfloat)
