#include "convolution.h"

#define DIRECT(variant, dtype, type, filters, columns)                                        \
  template [[host_name("conv2d_" #variant "_" #dtype)]] kernel void                           \
  conv2d_direct<type, filters, columns>(device const type*, device const type*,               \
                                        device const type*, device type*,                     \
                                        constant ConvolutionRecord&, uint3);
#define INSTANTIATE(dtype, type)                                                              \
  DIRECT(serial, dtype, type, 16, 32)                                                         \
  DIRECT(serial_row, dtype, type, 1, 64)                                                      \
  DIRECT(threads, dtype, type, 4, 1)                                                          \
  template [[host_name("conv2d_columns_" #dtype)]] kernel void conv2d_columns<type>(          \
      device const type*, device type*, constant ConvolutionRecord&, constant uint&, uint2);        \
  template [[host_name("conv2d_bias_" #dtype)]] kernel void conv2d_bias<type>(                \
      device const float*, device const type*, device type*, constant ConvolutionRecord&, uint2);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
