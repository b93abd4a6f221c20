#include "movement.h"

#define INSTANTIATE(name, type, side)                                                             \
  template [[host_name("copy_strided_" #name)]] kernel void copy<type>(                           \
      device const type*, device type*, constant Walk&, uint3);                                   \
  template [[host_name("copy_transpose_serial_" #name)]] kernel void transpose_serial<type, side>(\
      device const type*, device type*, constant Walk&, constant uint2&, uint3);                  \
  template [[host_name("copy_transpose_tile_" #name)]] kernel void transpose_tile<type>(          \
      device const type*, device type*, constant Walk&, constant uint2&, uint3, uint3);

INSTANTIATE(uint8, uchar, 32)
INSTANTIATE(uint16, ushort, 16)
INSTANTIATE(uint32, uint, 16)
INSTANTIATE(uint64, ulong, 16)
