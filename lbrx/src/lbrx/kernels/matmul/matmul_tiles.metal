#include "matmul_tiles.h"

// Simdgroups down and across, rows and columns of each, depth and stages: kernels/matmul_tiles.py
// has the same list.
#define TILES(size, name, type, ...)                          \
  TILES_INSTANCE("matmul_tiles_whole" size "_" #name, type, type, type, __VA_ARGS__)   \
  TILES_INSTANCE("matmul_tiles_parts" size "_" #name, type, float, float, __VA_ARGS__)

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
