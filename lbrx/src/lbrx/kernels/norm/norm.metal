#include "norm.h"

#define OPERANDS_OF(run)                                                          \
  device const run*, device const run*, device const run*, device const run*,     \
  device run*, device run*, constant float&, constant RowsRecord&

#define SERIAL(step, name, type, ...)                                                \
  template [[host_name("norm_" #name)]] kernel void norm_##step<type, type>(         \
      OPERANDS_OF(type), __VA_ARGS__);

#define TEAM(step, name, type, run, ragged, ...)                                     \
  template [[host_name("norm_" #name)]] kernel void norm_##step<type, run, ragged>(  \
      OPERANDS_OF(run), __VA_ARGS__);

#define TEAMS(suffix, ...)                                                                  \
  TEAM(simdgroup, simdgroup_##suffix, __VA_ARGS__, uint2)                                   \
  TEAM(threadgroup, threadgroup_##suffix, __VA_ARGS__, uint2, uint2)                        \
  TEAM(threadgroup_summary, threadgroup_summary_##suffix, __VA_ARGS__, device Moments*,     \
       uint2, uint2, uint2)                                                                 \
  TEAM(threadgroup_finish, threadgroup_finish_##suffix, __VA_ARGS__, device const Moments*, \
       uint2, uint2, uint2)

#define INSTANTIATE(name, type)                                                \
  SERIAL(serial, serial_##name, type, uint)                                    \
  SERIAL(serial_summary, serial_summary_##name, type, device Moments*, uint2)  \
  SERIAL(serial_finish, serial_finish_##name, type, device const Moments*, uint2) \
  TEAMS(name, type, type, false)                                               \
  TEAMS(vectors_##name, type, uint4, false)                                    \
  TEAMS(ragged_##name, type, uint4, true)

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
