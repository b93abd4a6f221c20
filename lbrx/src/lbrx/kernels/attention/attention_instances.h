// The dtypes for which attention kernels are instantiated.
#pragma once

#define ATTENTION(variant, name, type, kv_type, ...)                                       \
  template [[host_name("attention_" #variant "_" name)]] kernel void                       \
  attention_##variant<type, kv_type>(device const type*, device const kv_type*,            \
                                     device const kv_type*, device const float*,           \
                                     device const int*, device type*, constant AttentionRecord&, \
                                     __VA_ARGS__);

// Keys and values may be halves with float32 queries: caches are read without conversion.
#define INSTANTIATE(variant, ...)                                      \
  ATTENTION(variant, "float32_float32", float, float, __VA_ARGS__)     \
  ATTENTION(variant, "float32_float16", float, half, __VA_ARGS__)      \
  ATTENTION(variant, "float32_bfloat16", float, bfloat, __VA_ARGS__)   \
  ATTENTION(variant, "float32_q8_0", float, uchar, __VA_ARGS__)        \
  ATTENTION(variant, "float16_float16", half, half, __VA_ARGS__)       \
  ATTENTION(variant, "float16_q8_0", half, uchar, __VA_ARGS__)         \
  ATTENTION(variant, "bfloat16_bfloat16", bfloat, bfloat, __VA_ARGS__)
