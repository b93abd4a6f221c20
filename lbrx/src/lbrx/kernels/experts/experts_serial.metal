#include "experts_serial.h"

#define SERIAL(name, reader)                                                                      \
  template [[host_name("expert_matmul_serial_" #name)]] kernel void experts_serial<reader>(       \
      device const uchar*, device const void*, device const void*, device const char*,            \
      device const void*, device void*, device const int*, device const uint*,                    \
      device const ExpertRun*, constant ExpertsRecord&, uint2);

SERIAL(floats, FloatExperts)

#define PACKED(name, codec) SERIAL(name, PackedExperts<codec>)
EACH_SCHEME(PACKED)
