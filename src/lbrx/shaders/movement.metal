#include "movement.h"

#define INSTANTIATE(name, type)                                                          \
  template [[host_name("copy_strided_" #name)]] kernel void copy<type>(                  \
      device const type*, device type*, constant Walk&, uint3);                          \
  template [[host_name("copy_transpose_serial_" #name)]] kernel void transpose_serial<type>( \
      device const type*, device type*, constant Walk&, constant uint2&, uint3);         \
  template [[host_name("copy_transpose_tile_" #name)]] kernel void transpose_tile<type>( \
      device const type*, device type*, constant Walk&, constant uint2&, uint3, uint3);

INSTANTIATE(uint8, uchar)
INSTANTIATE(uint16, ushort)
INSTANTIATE(uint32, uint)
INSTANTIATE(uint64, ulong)
