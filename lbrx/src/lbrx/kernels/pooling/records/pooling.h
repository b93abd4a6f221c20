// Written by lbrx/scripts/record_headers.py from lbrx/kernels/pooling/pooling.py.
#pragma once
#include <metal_stdlib>

struct PoolingRecord {
  uint height;  // of an image
  uint width;
  uint rows;  // of the window
  uint columns;
  uint down;  // stride
  uint right;
  int top;  // padding
  int left;
  uint out_height;
  uint out_width;
  uint with_padding;  // whether padding counts as elements of a mean
};
