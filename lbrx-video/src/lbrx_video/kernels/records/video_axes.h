// Written by lbrx/scripts/record_headers.py from lbrx_video/kernels/device_tables.py.
#pragma once
#include <metal_stdlib>

// How rows or columns of the results are made of samples.
struct VideoAxisRecord {
  uint taps;  // samples of a result
  uint first;  // where the first samples are in the table of positions
  uint weights;  // where the weights are in the table of weights
};

// How the results are made of the samples of a component.
struct VideoAxesRecord {
  VideoAxisRecord down;
  VideoAxisRecord right;
};
