// Written by lbrx/scripts/record_headers.py from lbrx/kernels/matmul/matmul.py.
#pragma once
#include <metal_stdlib>

// x is (m, k), y is (k, n). Strides count elements.
struct ProductRecord {
  uint m;
  uint n;
  uint k;
  uint bias_row;  // stride of the bias, 0 where it is broadcast
  uint bias_column;
  uint axes;  // of the batch, outermost first
  uint shape[4];
  ulong x_row;
  ulong x_column;
  ulong y_row;
  ulong y_column;
  ulong out_row;
  ulong out_column;
  ulong x_batch[4];
  ulong y_batch[4];
};

constant uint ACTIVATION [[function_constant(0)]];
