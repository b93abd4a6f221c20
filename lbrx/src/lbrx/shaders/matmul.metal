#include "matmul.h"
#include "matmul_tiles.h"

#define PLAIN(name, type)                                                                   \
  template [[host_name("matmul_single_" #name)]] kernel void matmul_single<type>(           \
      device const type*, device const type*, device const type*, device type*,             \
      constant Product&, uint3);                                                            \
  template [[host_name("matmul_serial_" #name)]] kernel void matmul_serial<type>(           \
      device const type*, device const type*, device const type*, device type*,             \
      constant Product&, uint3);                                                            \
  template [[host_name("matmul_finish_" #name)]] kernel void matmul_finish<type>(           \
      device const float*, device const type*, device type*, constant uint&, constant uint&, \
      uint2, uint2);

#define TILES(variant, name, type, out, size)                                               \
  template [[host_name("matmul_" #variant "_" #name)]] kernel void                          \
  matmul_tiles<type, out, size>(device const type*, device const type*, device const out*,  \
                                device out*, constant Product&, constant uint&, uint3,      \
                                uint3, uint, uint, uint);

#define FLOATING(name, type)                   \
  PLAIN(name, type)                            \
  TILES(tiles32, name, type, type, 32)         \
  TILES(tiles64, name, type, type, 64)         \
  TILES(parts32, name, type, float, 32)        \
  TILES(parts64, name, type, float, 64)

FLOATING(float32, float)
FLOATING(float16, half)
FLOATING(bfloat16, bfloat)
PLAIN(bool, bool)
PLAIN(uint8, uchar)
PLAIN(uint16, ushort)
PLAIN(uint32, uint)
PLAIN(uint64, ulong)
