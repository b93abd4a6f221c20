// Written by lbrx/scripts/record_headers.py from lbrx/kernels/merge_masks/merge_masks.py.
#pragma once
#include <metal_stdlib>

constant bool HAS_BASE [[function_constant(0)]];

struct SelectionRecord {
  uint size;
  uint chunk;
  uint chunks;
  uint ranks[2];  // elements before a cut, in descending magnitude
};

struct MaskRowsRecord {
  uint rows;
  uint length;
  uint workers;
  float low;  // 2^16 times the probability of the smallest magnitude of a row
  float step;  // the same from rank to rank
};
