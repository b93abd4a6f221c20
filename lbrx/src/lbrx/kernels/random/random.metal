#include "random.h"

#define INSTANTIATE(op, name, type)                             \
  template [[host_name(#op "_" #name)]] kernel void op<type>(   \
      device type*, constant StreamRecord&, constant float2&, uint);

INSTANTIATE(random_uniform, float32, float)
INSTANTIATE(random_uniform, float16, half)
INSTANTIATE(random_uniform, bfloat16, bfloat)
INSTANTIATE(random_normal, float32, float)
INSTANTIATE(random_normal, float16, half)
INSTANTIATE(random_normal, bfloat16, bfloat)

#define INTEGERS(name, type)                                                  \
  template [[host_name("random_integers_" #name)]] kernel void                \
  random_integers<type>(device type*, constant StreamRecord&, constant ulong2&, uint);

// Integers of one width have the same bits, whether signed or not.
INTEGERS(uint8, uchar)
INTEGERS(uint16, ushort)
INTEGERS(uint32, uint)
INTEGERS(uint64, ulong)
