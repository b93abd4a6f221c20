#include "experts.h"

#define SIMD(name, reader)                                                                        \
  template [[host_name("expert_matmul_simd_" #name)]] kernel void experts_simd<reader>(           \
      device const uchar*, device const void*, device const void*, device const char*,            \
      device const void*, device void*, device const int*, device const uint*,                    \
      device const ExpertRun*, constant ExpertsRecord&, uint2, uint, uint);

SIMD(floats, FloatExperts)

#define PACKED(name, codec) SIMD(name, PackedExperts<codec>)
EACH_SCHEME(PACKED)
