// Written by lbrx/scripts/record_headers.py from lbrx/kernels/quantized_matmul/quantized_row, lbrx/kernels/quantized_matmul/quantized_lines.py.
#pragma once
#include <metal_stdlib>
#include "records/quant_row.h"

// What happens to the heads of a token, of which a batch has pairs of features.
struct TurnsRecord {
  uint half_features;
  uint capacity[3];  // rows of a cache, for each head; or 0
  uint turns[3];  // whether the rows are rotated
  uint position;  // its place
};

// If PAIRED, the result is the SwiGLU of the products with two matrices: a batch has rows of
// both. If SETTLED, the matrices are there before the kernels of the same list begin: this one
// reads them while those before it end. If TURNED, the results are heads of a token, which are
// rotated by its position or written to a cache: a batch has the rows of two features that are
// rotated together.
constant uint ROWS [[function_constant(8)]];  // of a batch, that a simdgroup reads at a time
constant uint DEPTH [[function_constant(9)]];  // steps that are under way
constant bool SEVERAL [[function_constant(10)]];  // whether there is more than one matrix
constant bool PAIRED [[function_constant(11)]];
constant bool SETTLED [[function_constant(12)]];
constant bool TURNED [[function_constant(13)]];
constant bool WIDE [[function_constant(14)]];  // positions have 64 bits
constant bool FACTORED [[function_constant(15)]];
constant bool INTERLEAVED [[function_constant(16)]];  // features of a pair are neighbours

struct LinesRecord {
  uint k;
  uint rows[3];  // of the matrices
  uint before[2];  // batches before those of the second, third
  uint batches;
  uint shift;  // 1 << shift simdgroups share a batch
  uint steps;  // of 32 units for each of them, in a row
};
