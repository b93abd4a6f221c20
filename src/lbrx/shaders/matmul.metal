#include "matmul.h"

#define INSTANTIATE(name, type)                                                              \
  template [[host_name("matmul_serial_" #name)]] kernel void matmul_serial<type>(            \
      device const type*, device const type*, device const type*, device type*,              \
      constant Product&, uint3);                                                             \
  template [[host_name("matmul_finish_" #name)]] kernel void matmul_finish<type>(            \
      device const float*, device const type*, device type*, constant uint&, constant uint&,  \
      uint2, uint2);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
INSTANTIATE(bool, bool)
INSTANTIATE(uint8, uchar)
INSTANTIATE(uint16, ushort)
INSTANTIATE(uint32, uint)
INSTANTIATE(uint64, ulong)
