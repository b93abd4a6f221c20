// Written by lbrx/scripts/record_headers.py from lbrx/kernels/scan/scan.py.
#pragma once
#include <metal_stdlib>

struct ScanRecord {
  ulong tasks;
  ulong outer;
  ulong length;
  ulong inner;
  ulong block;  // elements of a run
  ulong blocks;  // in a run
};
