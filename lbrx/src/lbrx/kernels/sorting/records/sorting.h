// Written by lbrx/scripts/record_headers.py from lbrx/kernels/sorting/sorting.py.
#pragma once
#include <metal_stdlib>

constant uint KIND [[function_constant(0)]];  // the interpretation of an element's bits
constant bool DESCENDING [[function_constant(1)]];

struct BlocksRecord {
  uint row;  // elements in a row
  uint block;  // elements in a block, but for the last of a row
};

struct MergingRecord {
  uint row;
  uint block;  // entries in a block before
  uint run;  // entries that a thread writes
};

struct TilesRecord {
  uint row;  // elements, or entries, in a row
  uint tile;  // entries per threadgroup: a power of two
  uint keep;  // entries that it writes
  uint stride;  // entries between rows of the result
};

struct SelectingRecord {
  uint row;
  uint block;
  uint keep;
  uint blocks;  // in a row
};

struct ChosenRecord {
  uint row;  // elements in a row of the source
  uint stride;  // entries in a row
  uint keep;  // of those in the result
};
