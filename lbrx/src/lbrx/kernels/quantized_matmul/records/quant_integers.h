// Written by lbrx/scripts/record_headers.py from lbrx/kernels/quantized_matmul/quantized_integers.py.
#pragma once
#include <metal_stdlib>
#include "records/quant_blocks.h"

constant uint ROWS [[function_constant(3)]];  // of x in one pass
constant uint COLUMNS [[function_constant(4)]];  // of the result in one pass: rows of a weight
constant uint SCALES_OF_RUN [[function_constant(5)]];  // or two, one for each 16 values
constant bool HAS_OFFSETS [[function_constant(6)]];

// Up to three matrices in one launch. Missing ones are replaced by any other, which is not
// read.
struct WeightsRecord {
  uint first;  // rows of each matrix
  uint second;
  uint third;
  uint m;
  uint k;
};

struct PanelRecord {
  uint m;
  uint n;
  uint k;
  uint stride;  // of the result's rows: n may be some of its columns
};
