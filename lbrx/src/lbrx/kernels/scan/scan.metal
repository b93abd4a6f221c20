#include "scan.h"

#define KERNEL(name, ...)                                                             \
  template [[host_name(name)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;

#define SCAN(op, change, dtype, type, out)                                                    \
  KERNEL(#op "_total_rows_" #dtype, total_rows<change, type>)                                 \
  KERNEL(#op "_total_columns_" #dtype, total_columns<change, type, SCAN_LANES>)               \
  KERNEL(#op "_rows_" #dtype, scan_rows<change, type, out>)                                   \
  KERNEL(#op "_columns_" #dtype, scan_columns<change, type, out, SCAN_LANES>)                 \
  KERNEL(#op "_total_rows_simd_" #dtype, total_rows_simd<change, type>)                       \
  KERNEL(#op "_total_columns_simd_" #dtype, total_columns<change, type, 1>)                   \
  KERNEL(#op "_rows_simd_" #dtype, scan_rows_simd<change, type, out>)                         \
  KERNEL(#op "_columns_simd_" #dtype, scan_columns<change, type, out, 1>)
#define INSTANTIATE(dtype, type, out)                                                         \
  SCAN(cumsum, Adding, dtype, type, out)                                                      \
  SCAN(cumprod, Multiplying, dtype, type, out)

INSTANTIATE(int8, char, long)
INSTANTIATE(int16, short, long)
INSTANTIATE(int32, int, long)
INSTANTIATE(int64, long, long)
INSTANTIATE(uint8, uchar, ulong)
INSTANTIATE(uint16, ushort, ulong)
INSTANTIATE(uint32, uint, ulong)
INSTANTIATE(uint64, ulong, ulong)
INSTANTIATE(float16, half, half)
INSTANTIATE(bfloat16, bfloat, bfloat)
INSTANTIATE(float32, float, float)

KERNEL("cumsum_totals_float32", scan_totals<RunningSum>)
KERNEL("cumsum_totals_int64", scan_totals<ulong>)
KERNEL("cumprod_totals_float32", scan_totals<RunningProduct>)
KERNEL("cumprod_totals_int64", scan_totals<RunningIntegerProduct>)
