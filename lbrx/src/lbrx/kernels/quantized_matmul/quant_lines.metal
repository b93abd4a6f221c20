#include "quant_lines.h"

#define ONE(word) device const word*, device const void*, device const void*, device void*
#define LINES(name, reader, word)                                                           \
  template [[host_name("quantized_matmul_lines_" #name)]] kernel void matvec_lines<reader>( \
      ONE(word), ONE(word), ONE(word), device const uint2*, constant LinesRecord&, device const uint2*, \
      device uint2*, device const uint2*, constant float&, device const uint2*, constant TurnsRecord&,  \
      device const void*, device const float2*, device const float*, threadgroup uint4*,          \
      uint, uint, uint, uint, uint, uint);

LINES(q4_0, Lines4_0, uint)
LINES(q8_0, Lines8_0, uint)
LINES(q4_k, Lines4_K, uint4)
LINES(mlx_4, LinesAffine4, uint4)
