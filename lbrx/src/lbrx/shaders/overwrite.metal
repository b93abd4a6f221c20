#include "overwrite.h"

#define INSTANTIATE(variant, kernel_name, cache, type, cache_type, row_type)                   \
  template [[host_name("overwrite_" #variant "_" #cache "_" #type)]] kernel void               \
  kernel_name<cache_type, row_type>(device cache_type*, device const row_type*,                \
                                    device const void*, constant Overwriting&, uint3);
#define OVERWRITE(cache, type, cache_type, row_type)                            \
  INSTANTIATE(row, overwrite_rows, cache, type, cache_type, row_type)           \
  INSTANTIATE(element, overwrite_elements, cache, type, cache_type, row_type)

OVERWRITE(float32, float32, float, float)
OVERWRITE(float16, float32, half, float)
OVERWRITE(float16, float16, half, half)
OVERWRITE(bfloat16, float32, bfloat, float)
OVERWRITE(bfloat16, bfloat16, bfloat, bfloat)
OVERWRITE(q8_0, float32, uchar, float)
OVERWRITE(q8_0, float16, uchar, half)
