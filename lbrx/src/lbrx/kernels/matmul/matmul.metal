#include "matmul.h"

#define PLAIN(name, type)                                                                   \
  template [[host_name("matmul_single_" #name)]] kernel void matmul_single<type>(           \
      device const type*, device const type*, device const type*, device type*,             \
      constant ProductRecord&, uint3);                                                            \
  template [[host_name("matmul_serial_" #name)]] kernel void matmul_serial<type>(           \
      device const type*, device const type*, device const type*, device type*,             \
      constant ProductRecord&, uint3);                                                            \
  template [[host_name("matmul_finish_" #name)]] kernel void matmul_finish<type>(           \
      device const float*, device const type*, device type*, constant uint&, constant uint&, \
      uint2, uint2);

PLAIN(float32, float)
PLAIN(float16, half)
PLAIN(bfloat16, bfloat)
PLAIN(bool, bool)
PLAIN(uint8, uchar)
PLAIN(uint16, ushort)
PLAIN(uint32, uint)
PLAIN(uint64, ulong)
