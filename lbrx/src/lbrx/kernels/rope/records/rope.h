// Written by lbrx/scripts/record_headers.py from lbrx/kernels/rope/rope.py.
#pragma once
#include <metal_stdlib>

constant bool INTERLEAVED [[function_constant(0)]];  // features of a pair are neighbours
constant bool HAS_FACTORS [[function_constant(1)]];

// Rows are (outer, repeat, inner).
struct RopeRecord {
  long start;  // of x in elements
  long strides[3];
  long position;
  long position_strides[3];
  uint sizes[3];
  uint pairs;
  uint features;
};
