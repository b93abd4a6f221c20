#include "sorting.h"

#define ENTRIES(name, entry)                                                                    \
  template [[host_name("sort_merge_" #name)]] kernel void sort_merge<entry>(                    \
      device const entry*, device entry*, constant MergingRecord&, uint2);                            \
  template [[host_name("sort_tile_again_" #name)]] kernel void sort_tile_again<entry>(          \
      device const entry*, device entry*, constant TilesRecord&, threadgroup entry*, uint2, uint2,    \
      uint2);                                                                                   \
  template [[host_name("sort_select_again_" #name)]] kernel void sort_select_again<entry>(      \
      device const entry*, device entry*, constant SelectingRecord&, uint);                           \
  template [[host_name("sort_indices_" #name)]] kernel void sort_indices<entry>(                \
      device const entry*, device long*, constant ChosenRecord&, uint2);

#define ELEMENTS(name, type, entry)                                                             \
  template [[host_name("sort_radix_" #name)]] kernel void sort_radix<type, entry>(              \
      device const type*, device entry*, device entry*, constant BlocksRecord&, uint2);               \
  template [[host_name("sort_tile_" #name)]] kernel void sort_tile<type, entry>(                \
      device const type*, device entry*, constant TilesRecord&, threadgroup entry*, uint2, uint2,     \
      uint2);                                                                                   \
  template [[host_name("sort_select_" #name)]] kernel void sort_select<type, entry>(            \
      device const type*, device entry*, constant SelectingRecord&, uint2);                           \
  template [[host_name("sort_values_" #name)]] kernel void sort_values<type, entry>(            \
      device const type*, device const entry*, device type*, constant ChosenRecord&, uint2);

ENTRIES(small, SmallEntry)
ENTRIES(large, LargeEntry)
ELEMENTS(uint8, uchar, SmallEntry)
ELEMENTS(uint16, ushort, SmallEntry)
ELEMENTS(uint32, uint, SmallEntry)
ELEMENTS(uint64, ulong, LargeEntry)
