#include "reduction.h"

#define KERNEL(name, ...)                                                             \
  template [[host_name(name)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;

#define KERNELS(op, dtype, ...)                                                       \
  KERNEL(#op "_rows_" #dtype, reduce_rows<__VA_ARGS__>)                               \
  KERNEL(#op "_columns_" #dtype, reduce_columns<__VA_ARGS__, COLUMN_LANES, false>)    \
  KERNEL(#op "_strided_" #dtype, reduce_columns<__VA_ARGS__, COLUMN_LANES, true>)     \
  KERNEL(#op "_merge_" #dtype, reduce_merge<__VA_ARGS__>)                             \
  KERNEL(#op "_rows_simd_" #dtype, reduce_rows_simd<__VA_ARGS__, __VA_ARGS__::In>)    \
  KERNEL(#op "_rows_vectors_" #dtype, reduce_rows_simd<__VA_ARGS__, uint4>)           \
  KERNEL(#op "_columns_simd_" #dtype, reduce_columns_simd<__VA_ARGS__, __VA_ARGS__::In>) \
  KERNEL(#op "_columns_vectors_" #dtype, reduce_columns_simd<__VA_ARGS__, uint4>)     \
  KERNEL(#op "_columns_ragged_" #dtype, reduce_columns_ragged<__VA_ARGS__>)           \
  KERNEL(#op "_strided_simd_" #dtype, reduce_columns<__VA_ARGS__, 1, true>)           \
  KERNEL(#op "_merge_simd_" #dtype, reduce_merge_simd<__VA_ARGS__>)

#define SELECTIONS(dtype, type)                                                       \
  KERNELS(max, dtype, Folding<Max<type>>)                                             \
  KERNELS(min, dtype, Folding<Min<type>>)                                             \
  KERNELS(argmax, dtype, ArgMax<type>)                                                \
  KERNELS(argmin, dtype, ArgMin<type>)

#define SUMS(dtype, type)                                                             \
  KERNELS(sum, dtype, Folding<Sum<type>>)                                             \
  KERNELS(prod, dtype, Folding<Prod<type>>)                                           \
  KERNELS(mean, dtype, Folding<Mean<type>>)

#define TESTS(dtype, type)                                                            \
  KERNELS(any, dtype, Folding<Any<type>>)                                             \
  KERNELS(all, dtype, Folding<All<type>>)

#define FLOATING(dtype, type)                                                         \
  KERNELS(var, dtype, Var<type>)                                                      \
  KERNELS(norm_1, dtype, Folding<Norm1<type>>)                                        \
  KERNELS(norm_2, dtype, Norm2<type>)                                                 \
  KERNELS(norm_p, dtype, NormP<type>)                                                 \
  KERNELS(norm_inf, dtype, Folding<NormInf<type>>)

#define SIGNED(dtype, type) SELECTIONS(dtype, type) SUMS(dtype, type)
#define UNSIGNED(dtype, type) SIGNED(dtype, type) TESTS(dtype, type)
#define FLOAT(dtype, type) UNSIGNED(dtype, type) FLOATING(dtype, type)

SIGNED(int8, char)
SIGNED(int16, short)
SIGNED(int32, int)
SIGNED(int64, long)
UNSIGNED(uint8, uchar)
UNSIGNED(uint16, ushort)
UNSIGNED(uint32, uint)
UNSIGNED(uint64, ulong)
FLOAT(float16, half)
FLOAT(bfloat16, bfloat)
FLOAT(float32, float)
