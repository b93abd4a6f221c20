// Written by lbrx/scripts/record_headers.py from lbrx/kernels/random/random.py.
#pragma once
#include <metal_stdlib>

struct StreamRecord {
  ulong key;
  ulong counter;  // of the first four elements
};
