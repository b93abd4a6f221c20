#include "norm.h"

#define NORM_ROWS(variant, name, type, ...)                                                \
  template [[host_name("norm_" #variant "_" #name)]] kernel void norm_##variant<type>(     \
      device const type*, device const type*, device const type*, device const type*,      \
      device type*, device type*, constant float&, constant Rows&, __VA_ARGS__);

#define INSTANTIATE(name, type)                                                          \
  NORM_ROWS(serial, name, type, uint)                                                    \
  NORM_ROWS(simdgroup, name, type, uint2)                                                \
  NORM_ROWS(threadgroup, name, type, uint2, uint2)                                       \
  NORM_ROWS(serial_summary, name, type, device Moments*, uint2)                          \
  NORM_ROWS(serial_finish, name, type, device const Moments*, uint2)                     \
  NORM_ROWS(threadgroup_summary, name, type, device Moments*, uint2, uint2, uint2)       \
  NORM_ROWS(threadgroup_finish, name, type, device const Moments*, uint2, uint2, uint2)

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
