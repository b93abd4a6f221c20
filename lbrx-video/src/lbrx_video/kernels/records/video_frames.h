// Written by lbrx/scripts/record_headers.py from lbrx_video/kernels/frame_kernels.py.
#pragma once
#include <metal_stdlib>
#include "records/video_axes.h"

// Planes, and the frames that are made of them. Arrays have a value for each component, or for
// each channel of the results. The taps of columns are filled up to a multiple of four.
struct VideoFramesRecord {
  uint height;  // of the results
  uint width;
  uint run;  // columns of a thread
  uint pitch[4];  // elements in a row of the plane
  uint size[4];  // elements in a plane
  uint samples[4];  // of the component in a row
  VideoAxesRecord luma;  // and other components that have a sample for each pixel
  VideoAxesRecord chroma;
  int pair_base;  // of doubled chroma: see `Doubling` of lbrx_video/resampling.py
  int pair_odd;
  float pair_weights[4];
  float matrix[9];  // from codes to R'G'B', by rows
  float offset[3];
  float alpha;  // of a code of alpha
  float scale[4];  // of a channel, applied last
  float shift[4];  // added to a channel then
};
