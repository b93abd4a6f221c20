#include "softmax.h"

#define ROWS(variant, name, type, ...)                                                       \
  template [[host_name("softmax_" #variant "_" #name)]] kernel void softmax_##variant<type>( \
      device const type*, device type*, constant Rows&, __VA_ARGS__);

#define COLUMNS(variant, name, type, width)                                                        \
  template [[host_name("softmax_" #variant "_" #name)]] kernel void softmax_columns<type, width>(  \
      device const type*, device type*, constant Columns&, uint2);

#define INSTANTIATE(name, type)                                                      \
  ROWS(serial, name, type, uint)                                                     \
  ROWS(simdgroup, name, type, uint2)                                                 \
  ROWS(threadgroup, name, type, uint2, uint2)                                        \
  ROWS(serial_summary, name, type, device Summary*, uint2)                           \
  ROWS(serial_finish, name, type, device const Summary*, uint2)                      \
  ROWS(threadgroup_summary, name, type, device Summary*, uint2, uint2, uint2)        \
  ROWS(threadgroup_finish, name, type, device const Summary*, uint2, uint2, uint2)   \
  COLUMNS(columns, name, type, 256)                                                  \
  COLUMNS(column, name, type, 1)

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
