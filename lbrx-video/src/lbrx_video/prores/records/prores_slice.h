// Written by lbrx/scripts/record_headers.py from lbrx_video/prores/kernel_records.py.
#pragma once
#include <metal_stdlib>

// The format of all frames of a batch.
constant bool HAS_12_BITS [[function_constant(0)]];  // or 10
constant bool IS_444 [[function_constant(1)]];  // or 4:2:2

// Frames of one size.
struct ProresBatchRecord {
  uint width;  // in pixels
  uint height;
  uint chroma_width;  // in samples
  uint slices;  // of all frames
};

// A frame, or a field of one.
struct ProresPictureRecord {
  uint frame;
  uint first_row;  // 1 for the lower field
  uint row_step;  // 2 for fields
  uint interlaced;  // 1 for fields
  uint alpha_bits;  // 0, 8 or 16
  uint padding[3];  // to a multiple of 16 bytes
  uchar quantization[2][64];  // weights of luma, of chroma
};

// Neighbouring macroblocks of a row of a picture, and where their bytes are.
struct ProresSliceRecord {
  ulong offset;  // of its bytes
  uint size;  // in bytes
  uint picture;
  uint column;  // in macroblocks
  uint row;  // in macroblocks
  uint log2_macroblocks;
  uint before;  // macroblocks of the slices before it
};
