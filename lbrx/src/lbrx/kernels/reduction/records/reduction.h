// Written by lbrx/scripts/record_headers.py from lbrx/kernels/reduction/reduction.py.
#pragma once
#include <metal_stdlib>

struct AxisRecord {
  ulong size;
  long stride;  // of the array
  ulong out;  // stride of the result
  ulong numbering;  // stride of the numbering that argmax uses
};

// Runs of `length` elements are split into blocks. The axes enumerate the runs, kept axes
// first.
struct ReductionRecord {
  long first;  // element of the array
  ulong tasks;
  ulong outputs;  // elements of the result
  ulong length;  // of a run
  long stride;
  ulong numbering;  // stride of a run in the numbering
  ulong inner;  // columns: 1 for rows
  long inner_stride;
  ulong inner_out;
  ulong block;  // elements of a run
  ulong blocks;  // in a run
  ulong repeats;  // runs for one result
  uint axes;
  uint fold;  // elements of a run that are processed in neighbouring lanes
  float parameter;  // a divisor, or the order of a norm
};
