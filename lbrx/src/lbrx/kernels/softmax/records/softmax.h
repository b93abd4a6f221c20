// Written by lbrx/scripts/record_headers.py from lbrx/kernels/softmax/softmax.py.
#pragma once
#include <metal_stdlib>

constant bool LOGARITHM [[function_constant(0)]];

// Columns of an axis before the last, which may be divided into parts.
struct ColumnsRecord {
  uint length;  // of the axis
  uint inner;  // neighbouring columns
  uint part;  // elements of a column in all parts but the last
  uint parts;
};
