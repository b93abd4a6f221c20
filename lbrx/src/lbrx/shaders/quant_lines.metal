#include "quant_lines.h"

#define LINES_OF(name, reader, word)                                                          \
  template [[host_name("quantized_matmul_lines_" #name)]] kernel void matvec_lines<reader>(   \
      device const word*, device const void*, device const void*, device const char*,         \
      device const void*, device void*, constant Product&, uint, uint, uint);

LINES_OF(q4_0, Lines4_0, uint)
LINES_OF(q8_0, Lines8_0, uint)
LINES_OF(q4_k, Lines4_K, uint4)
LINES_OF(mlx_4, LinesAffine4, uint4)
