#include "indexing.h"

#define INSTANTIATE(op, variant, kernel_name, name, type)                                    \
  template [[host_name(#op "_" #variant "_" #name)]] kernel void kernel_name<type>(          \
      device const type*, device const void*, device type*, constant Picking&, device Report&, \
      uint3);
#define SCATTER(reduce, change, name, type)                                                  \
  template [[host_name("scatter_" #reduce "_" #name)]] kernel void scatter<change, type>(    \
      device const void*, device const type*, device type*, constant Picking&, device Report&, \
      constant Walking&, uint3);
#define MOVED(name, type)                              \
  INSTANTIATE(take, element, take, name, type)         \
  INSTANTIATE(take, row, take_rows, name, type)        \
  INSTANTIATE(gather, element, gather, name, type)     \
  SCATTER(set, Put, name, type)                        \
  SCATTER(add, Add, name, type)

// Integers add up to the same bits whether signed or not.
MOVED(uint8, uchar)
MOVED(uint16, ushort)
MOVED(uint32, uint)
MOVED(uint64, ulong)
SCATTER(add, Add, bool, bool)
SCATTER(add, Add, float32, float)
