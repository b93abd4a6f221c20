#include "copy.h"

#define INSTANTIATE(width, type)                                                      \
  template [[host_name("fill_" #width)]] kernel void fill<type>(                      \
      device type*, constant type&, uint);                                            \
  template [[host_name("fill_serial_" #width)]] kernel void fill_serial<type>(        \
      device type*, constant type&, constant uint&, constant uint&, uint);            \
  template [[host_name("copy_" #width)]] kernel void copy<type>(                      \
      device const type*, device type*, constant CopyLayout&, uint2);                 \
  template [[host_name("copy_serial_" #width)]] kernel void copy_serial<type>(        \
      device const type*, device type*, constant CopyLayout&, uint);

INSTANTIATE(1, uchar)
INSTANTIATE(2, ushort)
INSTANTIATE(4, uint)
INSTANTIATE(8, ulong)
