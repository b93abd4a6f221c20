#include "indexing.h"

#define INSTANTIATE(op, variant, kernel_name, name, type)                                    \
  template [[host_name(#op "_" #variant "_" #name)]] kernel void kernel_name<type>(          \
      device const type*, device const void*, device type*, constant PickRecord&, device IndexReport&, \
      uint3);
#define SCATTER(reduce, change, name, type)                                                  \
  template [[host_name("scatter_" #reduce "_" #name)]] kernel void scatter<change, type>(    \
      device const void*, device const type*, device type*, constant PickRecord&, device IndexReport&, \
      constant WalkingRecord&, uint3);
#define MOVED(name, type)                              \
  INSTANTIATE(take, element, take, name, type)         \
  INSTANTIATE(take, row, take_rows, name, type)        \
  INSTANTIATE(gather, element, gather, name, type)     \
  SCATTER(set, Put, name, type)                        \
  SCATTER(add, Add, name, type)                        \
  SCATTER(multiply, Multiply, name, type)
#define ORDERED(name, type)        \
  SCATTER(min, Min, name, type)    \
  SCATTER(max, Max, name, type)

// Sums and products of integers have the same bits whether signed or not.
MOVED(uint8, uchar)
MOVED(uint16, ushort)
MOVED(uint32, uint)
MOVED(uint64, ulong)
SCATTER(add, Add, bool, bool)
SCATTER(add, Add, float32, float)
SCATTER(multiply, Multiply, bool, bool)
SCATTER(multiply, Multiply, float32, float)
ORDERED(bool, bool)
ORDERED(int8, char)
ORDERED(int16, short)
ORDERED(int32, int)
ORDERED(int64, long)
ORDERED(uint8, uchar)
ORDERED(uint16, ushort)
ORDERED(uint32, uint)
ORDERED(uint64, ulong)
ORDERED(float32, float)
