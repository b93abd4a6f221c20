#include "norm.h"
#include "streamed.h"

template <typename T>
kernel void norm_streamed(OPERANDS(T), uint row [[thread_position_in_grid]]) {
  T own[OWN_BYTES / sizeof(T)], sums[OWN_BYTES / sizeof(T)];
  const ulong start = row * ulong(rows.length);
  auto norm = NORM(T, T);
  norm.out = results_in(own) - start;
  norm.total = results_in(sums) - start;
  norm.whole(Alone{}, rows, row);
  write_streamed(out + start, own, rows.length);
  if (RESIDUAL) write_streamed(total + start, sums, rows.length);
}

#define INSTANTIATE(name, type)                                                       \
  template [[host_name("norm_streamed_" #name)]] kernel void norm_streamed<type>(     \
      device const type*, device const type*, device const type*, device const type*, \
      device type*, device type*, constant float&, constant RowsRecord&, uint);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
