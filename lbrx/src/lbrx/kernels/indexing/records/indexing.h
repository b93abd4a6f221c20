// Written by lbrx/scripts/record_headers.py from lbrx/kernels/indexing/indexing.py.
#pragma once
#include <metal_stdlib>

constant int INDEX_TYPE [[function_constant(0)]];  // the width of indices in bytes, negative if they are signed
constant bool ALONG_INNER [[function_constant(1)]];  // whether the grid's x is the inner axis; otherwise the indices

struct PickRecord {
  ulong axis;  // elements of the indexed axis
  ulong inner;  // elements after it, as one axis
  ulong indices;  // along the axis
};

struct WalkingRecord {
  uint columns;  // neighbouring columns per thread
  ulong share;  // elements of the axis that a thread writes
};
