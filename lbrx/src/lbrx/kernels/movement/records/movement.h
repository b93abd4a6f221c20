// Written by lbrx/scripts/record_headers.py from lbrx/kernels/movement/movement.py.
#pragma once
#include <metal_stdlib>

// Strides count elements and may be negative. The last axis lies along the grid's x, the one
// before along y, all others along z. Only scalars: the compiler then keeps a copy of the record
// in registers.
struct StridesRecord {
  long start;  // the first element
  long x;
  long y;
  long z[8];
};

struct WalkRecord {
  uint shape[8];  // of the axes along z
  StridesRecord source;
  StridesRecord target;
};

// How the last axis is read and written: -1 stands for the strides in the record. The number of
// axes along z is a constant, so that the compiler unrolls the loop over them.
constant int SOURCE_STEP [[function_constant(0)]];
constant int TARGET_STEP [[function_constant(1)]];
constant uint OTHERS [[function_constant(2)]];
