#include "movement_serial.h"

#define INSTANTIATE(name, type)                                                                   \
  template [[host_name("copy_transpose_serial_" #name)]] kernel void transpose_serial<type>(      \
      device const type*, device type*, constant WalkRecord&, constant uint2&, uint3);

INSTANTIATE(uint8, uchar)
INSTANTIATE(uint16, ushort)
INSTANTIATE(uint32, uint)
INSTANTIATE(uint64, ulong)
