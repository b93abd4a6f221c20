// Written by lbrx/scripts/record_headers.py from lbrx/kernels/recurrence/recurrence.py.
#pragma once
#include <metal_stdlib>

struct ShortConvolutionRecord {
  uint tokens;
  uint channels;
  uint taps;
  uint has_bias;
};

struct RecurrenceRecord {
  uint tokens;
  uint heads;
  uint key_heads;
  uint share;  // heads that share one of keys
  uint width;
  uint size;
  uint delta;
};
