// Written by lbrx/scripts/record_headers.py from lbrx/kernels/rope/rope_write.py.
#pragma once
#include <metal_stdlib>
#include "records/rope.h"

struct RowPartRecord {
  RopeRecord rope;  // no pairs: rows that are not rotated
  uint capacity;  // rows of a cache, for each (outer, repeat); 0 for a result
  uint threads;
};
