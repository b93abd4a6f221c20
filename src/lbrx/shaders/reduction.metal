#include "reduction.h"

#define KERNELS(op, dtype, ...)                                                       \
  template [[host_name(#op "_rows_" #dtype)]] [[kernel]]                              \
  decltype(reduce_rows<__VA_ARGS__>) reduce_rows<__VA_ARGS__>;                        \
  template [[host_name(#op "_columns_" #dtype)]] [[kernel]]                           \
  decltype(reduce_columns<__VA_ARGS__, false>) reduce_columns<__VA_ARGS__, false>;    \
  template [[host_name(#op "_strided_" #dtype)]] [[kernel]]                           \
  decltype(reduce_columns<__VA_ARGS__, true>) reduce_columns<__VA_ARGS__, true>;      \
  template [[host_name(#op "_merge_" #dtype)]] [[kernel]]                             \
  decltype(reduce_merge<__VA_ARGS__>) reduce_merge<__VA_ARGS__>;

// The element type, what its sums have, and its means.
#define INSTANTIATE(dtype, type, sum_type, mean_type)                                 \
  KERNELS(sum, dtype, Folding<Sum<type, sum_type>>)                                   \
  KERNELS(prod, dtype, Folding<Prod<type, sum_type>>)                                 \
  KERNELS(mean, dtype, Folding<Mean<type, mean_type>>)                                \
  KERNELS(var, dtype, Var<type, mean_type>)                                           \
  KERNELS(norm_1, dtype, Folding<Norm1<type, mean_type>>)                             \
  KERNELS(norm_2, dtype, Norm2<type, mean_type>)                                      \
  KERNELS(norm_p, dtype, NormP<type, mean_type>)                                      \
  KERNELS(norm_inf, dtype, Folding<NormInf<type, mean_type>>)                         \
  KERNELS(max, dtype, Folding<Max<type, type>>)                                       \
  KERNELS(min, dtype, Folding<Min<type, type>>)                                       \
  KERNELS(argmax, dtype, ArgMax<type, long>)                                          \
  KERNELS(argmin, dtype, ArgMin<type, long>)                                          \
  KERNELS(any, dtype, Folding<Any<type, bool>>)                                       \
  KERNELS(all, dtype, Folding<All<type, bool>>)

INSTANTIATE(bool, bool, long, float)
INSTANTIATE(int8, char, long, float)
INSTANTIATE(int16, short, long, float)
INSTANTIATE(int32, int, long, float)
INSTANTIATE(int64, long, long, float)
INSTANTIATE(uint8, uchar, ulong, float)
INSTANTIATE(uint16, ushort, ulong, float)
INSTANTIATE(uint32, uint, ulong, float)
INSTANTIATE(uint64, ulong, ulong, float)
INSTANTIATE(float16, half, half, half)
INSTANTIATE(bfloat16, bfloat, bfloat, bfloat)
INSTANTIATE(float32, float, float, float)
