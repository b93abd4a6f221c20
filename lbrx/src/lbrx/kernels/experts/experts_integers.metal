#include "experts_integers.h"

#define INTEGERS(name, codec)                                                                    \
  template [[host_name("expert_matmul_integers_" #name)]] kernel void experts_integers<codec>(   \
      device const uchar*, device const void*, device const void*, device const char*,           \
      device const Codes*, device const float*, device const float2*, device void*,              \
      device const int*, constant ExpertsRecord&, uint2);

EACH_BLOCK(INTEGERS)
EACH_GROUP(INTEGERS)
