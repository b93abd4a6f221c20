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
  KERNEL(#op "_strided_simd_" #dtype, reduce_columns<__VA_ARGS__, 1, true>)           \
  KERNEL(#op "_merge_simd_" #dtype, reduce_merge_simd<__VA_ARGS__>)

// For elements of 2 and 4 bytes: the states of more columns would not fit threadgroup memory.
#define RAGGED_TOO(op, dtype, ...)                                                    \
  KERNELS(op, dtype, __VA_ARGS__)                                                     \
  KERNEL(#op "_columns_ragged_" #dtype, reduce_columns_ragged<__VA_ARGS__>)

#define SELECTIONS(EACH, dtype, type)                                                 \
  EACH(max, dtype, Folding<Max<type>>)                                                \
  EACH(min, dtype, Folding<Min<type>>)                                                \
  EACH(argmax, dtype, ArgMax<type>)                                                   \
  EACH(argmin, dtype, ArgMin<type>)

#define SUMS(EACH, dtype, type)                                                       \
  EACH(sum, dtype, Folding<Sum<type>>)                                                \
  EACH(prod, dtype, Folding<Prod<type>>)                                              \
  EACH(mean, dtype, Folding<Mean<type>>)

#define TESTS(EACH, dtype, type)                                                      \
  EACH(any, dtype, Folding<Any<type>>)                                                \
  EACH(all, dtype, Folding<All<type>>)

#define FLOATING(EACH, dtype, type)                                                   \
  EACH(var, dtype, Var<type>)                                                         \
  EACH(norm_1, dtype, Folding<Norm1<type>>)                                           \
  EACH(norm_2, dtype, Norm2<type>)                                                    \
  EACH(norm_p, dtype, NormP<type>)                                                    \
  EACH(norm_inf, dtype, Folding<NormInf<type>>)

#define SIGNED(EACH, dtype, type) SELECTIONS(EACH, dtype, type) SUMS(EACH, dtype, type)
#define UNSIGNED(EACH, dtype, type) SIGNED(EACH, dtype, type) TESTS(EACH, dtype, type)
#define FLOAT(EACH, dtype, type) UNSIGNED(EACH, dtype, type) FLOATING(EACH, dtype, type)

SIGNED(KERNELS, int8, char)
SIGNED(RAGGED_TOO, int16, short)
SIGNED(RAGGED_TOO, int32, int)
SIGNED(KERNELS, int64, long)
UNSIGNED(KERNELS, uint8, uchar)
UNSIGNED(RAGGED_TOO, uint16, ushort)
UNSIGNED(RAGGED_TOO, uint32, uint)
UNSIGNED(KERNELS, uint64, ulong)
FLOAT(RAGGED_TOO, float16, half)
FLOAT(RAGGED_TOO, bfloat16, bfloat)
FLOAT(RAGGED_TOO, float32, float)
