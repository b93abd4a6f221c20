// Written by lbrx/scripts/record_headers.py from lbrx/kernels/overwrite/overwrite.py.
#pragma once
#include <metal_stdlib>

struct OverwriteRecord {
  long source[3];  // strides of batches, heads and rows
  long place[3];  // strides of the positions
  ulong offset;  // of the first element of the source
  ulong place_offset;
  uint heads;
  uint capacity;
  uint depth;
};
