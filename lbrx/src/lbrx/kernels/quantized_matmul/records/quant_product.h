// Written by lbrx/scripts/record_headers.py from lbrx/kernels/quantized_matmul/quantized_matmul.py.
#pragma once
#include <metal_stdlib>

struct QuantizedProductRecord {
  uint m;
  uint n;
  uint k;
};
