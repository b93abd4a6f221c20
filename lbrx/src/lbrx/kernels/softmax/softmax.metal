#include "softmax.h"

#define ROWS(variant, name, type, ...)                                                       \
  template [[host_name("softmax_" #variant "_" #name)]] kernel void softmax_##variant<type>( \
      device const type*, device type*, constant RowsRecord&, __VA_ARGS__);

#define TEAM(variant, name, type, run, ragged, ...)                                          \
  template [[host_name("softmax_" #name)]] kernel void softmax_##variant<type, run, ragged>( \
      device const run*, device run*, constant RowsRecord&, __VA_ARGS__);

#define TEAMS(suffix, ...)                                                                  \
  TEAM(simdgroup, simdgroup_##suffix, __VA_ARGS__, uint2)                                   \
  TEAM(threadgroup, threadgroup_##suffix, __VA_ARGS__, uint2, uint2)                        \
  TEAM(threadgroup_summary, threadgroup_summary_##suffix, __VA_ARGS__, device Summary*,     \
       uint2, uint2, uint2)                                                                 \
  TEAM(threadgroup_finish, threadgroup_finish_##suffix, __VA_ARGS__, device const Summary*, \
       uint2, uint2, uint2)

#define COLUMNS(step, variant, name, type, width, ...)                           \
  template [[host_name("softmax_" #variant "_" #name)]] kernel void              \
  softmax_##step<type, width>(device const type*, device type*, constant ColumnsRecord&, __VA_ARGS__);

#define ALL_COLUMNS(variant, name, type, width)                                                    \
  COLUMNS(columns, variant, name, type, width, uint3)                                              \
  COLUMNS(columns_summary, variant##_summary, name, type, width, device float*, uint3)             \
  COLUMNS(columns_finish, variant##_finish, name, type, width, device const float*, uint3)

#define INSTANTIATE(name, type)                                                      \
  ROWS(serial, name, type, uint)                                                     \
  ROWS(serial_summary, name, type, device Summary*, uint2)                           \
  ROWS(serial_finish, name, type, device const Summary*, uint2)                      \
  TEAMS(name, type, type, false)                                                     \
  TEAMS(vectors_##name, type, uint4, false)                                          \
  TEAMS(ragged_##name, type, uint4, true)                                            \
  ALL_COLUMNS(columns, name, type, 256)                                              \
  ALL_COLUMNS(column, name, type, 1)

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
