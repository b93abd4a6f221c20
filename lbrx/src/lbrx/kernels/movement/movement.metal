#include "movement.h"

#define INSTANTIATE(name, type)                                                                   \
  template [[host_name("copy_strided_" #name)]] kernel void copy<type>(                           \
      device const type*, device type*, constant WalkRecord&, uint3);                                   \
  template [[host_name("copy_transpose_tile_" #name)]] kernel void transpose_tile<type>(          \
      device const type*, device type*, constant WalkRecord&, constant uint2&, uint3, uint3);

INSTANTIATE(uint8, uchar)
INSTANTIATE(uint16, ushort)
INSTANTIATE(uint32, uint)
INSTANTIATE(uint64, ulong)

#define CHUNKS(bytes, type)                                                                       \
  template [[host_name("copy_chunks_" #bytes)]] kernel void copy_chunks<type>(                    \
      device const type*, device type*, constant WalkRecord&, constant uint2&, uint3);
CHUNKS(2, ushort)
CHUNKS(4, uint)
CHUNKS(8, uint2)
CHUNKS(16, uint4)

#define TRANSPOSE_CHUNKS(name, type, across, down)                                                \
  template [[host_name("copy_transpose_chunks_" #name)]] kernel void                              \
  transpose_chunks<type, across, down>(device const uint4*, device uint4*, constant WalkRecord&,        \
                                       constant uint2&, uint3, uint);
TRANSPOSE_CHUNKS(uint8, uchar, 8, 8)
TRANSPOSE_CHUNKS(uint16, ushort, 16, 8)
TRANSPOSE_CHUNKS(large_uint16, ushort, 16, 16)
TRANSPOSE_CHUNKS(uint32, uint, 16, 16)
TRANSPOSE_CHUNKS(uint64, ulong, 16, 16)
