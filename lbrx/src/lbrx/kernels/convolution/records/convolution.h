// Written by lbrx/scripts/record_headers.py from lbrx/kernels/convolution/convolution.py.
#pragma once
#include <metal_stdlib>

struct ConvolutionRecord {
  uint channels;  // of a group
  uint filters;
  uint groups;
  uint height;  // of an image
  uint width;
  uint rows;  // of a filter
  uint columns;
  uint down;  // stride
  uint right;
  uint spread_down;  // dilation
  uint spread_right;
  int top;  // padding
  int left;
  uint out_height;
  uint out_width;
  uint tiles;  // of filters in a group
  uint bias_step;  // 0 where one zero is added to all
};
