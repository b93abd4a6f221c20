#include "overwrite.h"

#define INSTANTIATE(variant, kernel_name, cache, type, cache_type, row_type)                   \
  template [[host_name("overwrite_" #variant "_" #cache "_" #type)]] kernel void               \
  kernel_name<cache_type, row_type>(device cache_type*, device const row_type*,                \
                                    device const void*, constant OverwriteRecord&, uint3);
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

#define CHUNKS(cache, type, cache_type, row_type, n, cache_bits, row_bits)                     \
  template [[host_name("overwrite_chunks_" #cache "_" #type)]] kernel void                     \
  overwrite_chunks<cache_type, row_type, n>(device cache_bits*, device const row_bits*,        \
                                            device const void*, constant OverwriteRecord&,         \
                                            constant uint&, uint3, uint3);

CHUNKS(float32, float32, float, float, 4, uint4, uint4)
CHUNKS(float16, float32, half, float, 4, uint2, uint4)
CHUNKS(float16, float16, half, half, 8, uint4, uint4)
CHUNKS(bfloat16, float32, bfloat, float, 4, uint2, uint4)
CHUNKS(bfloat16, bfloat16, bfloat, bfloat, 8, uint4, uint4)
