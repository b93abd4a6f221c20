#include "scan.h"

#define KERNEL(name, ...)                                                             \
  template [[host_name(name)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;

#define INSTANTIATE(dtype, type, out)                                                 \
  KERNEL("cumsum_total_rows_" #dtype, total_rows<type>)                               \
  KERNEL("cumsum_total_columns_" #dtype, total_columns<type, SCAN_LANES>)             \
  KERNEL("cumsum_rows_" #dtype, scan_rows<type, out>)                                 \
  KERNEL("cumsum_columns_" #dtype, scan_columns<type, out, SCAN_LANES>)               \
  KERNEL("cumsum_total_rows_simd_" #dtype, total_rows_simd<type>)                     \
  KERNEL("cumsum_total_columns_simd_" #dtype, total_columns<type, 1>)                 \
  KERNEL("cumsum_rows_simd_" #dtype, scan_rows_simd<type, out>)                       \
  KERNEL("cumsum_columns_simd_" #dtype, scan_columns<type, out, 1>)

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

KERNEL("cumsum_totals_float32", scan_totals<Exact>)
KERNEL("cumsum_totals_int64", scan_totals<ulong>)
