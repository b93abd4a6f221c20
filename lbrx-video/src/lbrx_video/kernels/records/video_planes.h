// Written by lbrx/scripts/record_headers.py from lbrx_video/kernels/plane_kernels.py.
#pragma once
#include <metal_stdlib>
#include "records/video_axes.h"

// Frames, and the planes that are made of them. Arrays have a value for each component.
struct VideoPlanesRecord {
  uint height;  // of frames
  uint width;
  uint run;  // columns of a thread
  uint chroma_width;  // samples in a row
  uint pitch[4];  // elements in a row of the plane
  uint size[4];  // elements in a plane
  VideoAxesRecord chroma;
  float matrix[9];  // from R'G'B' to codes, by rows
  float offset[3];
  float top;  // the largest code
};
