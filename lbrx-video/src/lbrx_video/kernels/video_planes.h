// RGB as planes of video: color conversion, subsampled chroma and rounding. Generated kernels call
// these functions; lbrx/video/plane_source.py writes them.
#pragma once
#include <metal_stdlib>
#include "records/video_planes.h"
#include "video_transfer.h"
using namespace metal;

// Half a code is rounded up. NaN becomes 0.
template <typename T, uint SHIFT>
inline T video_rounded(float value, float top) {
  return T(uint(clamp(value, 0.0f, top) + 0.5f) << SHIFT);
}

// `count` values of a channel from `column` on.
template <typename T, uint STEP>
inline void video_channel(thread float* to, device const T* row, uint column, uint count) {
  for (uint j = 0; j < count; j++) to[j] = float(row[(column + j) * STEP]);
}

// Codes of a component whose samples are pixels.
template <typename T, uint STEP, uint OFFSET, uint SHIFT>
inline void video_store(device T* row, thread const float* r, thread const float* g,
                        thread const float* b, float3 m, float offset, float top, uint column,
                        uint count) {
  for (uint j = 0; j < count; j++) {
    const float value = fma(m.x, r[j], fma(m.y, g[j], fma(m.z, b[j], offset)));
    row[(column + j) * STEP + OFFSET] = video_rounded<T, SHIFT>(value, top);
  }
}

// Adds a row of a color difference to a line, weighted.
inline void video_difference(thread float* line, thread const float* r, thread const float* g,
                             thread const float* b, float3 m, float weight, uint count) {
  for (uint j = 0; j < count; j++) {
    const float value = fma(m.x, r[j], fma(m.y, g[j], m.z * b[j]));
    line[j] = fma(weight, value, line[j]);
  }
}

// Codes of chroma samples `column` and following, of a line that begins at pixel `begin`.
template <typename T, uint STEP, uint OFFSET, uint SHIFT>
inline void video_chroma(device T* row, thread const float* line, uint begin,
                         constant VideoPlanesRecord& f, device const int* firsts,
                         device const float* weights, float offset, uint column, uint count) {
  const VideoAxisRecord right = f.chroma.right;
  for (uint j = 0; j < count; j++) {
    const uint x = column + j;
    thread const float* from = line + (uint(firsts[right.first + x]) - begin);
    device const float* w = weights + right.weights + x * right.taps;
    float sum = offset;
    for (uint k = 0; k < right.taps; k++) sum = fma(w[k], from[k], sum);
    row[x * STEP + OFFSET] = video_rounded<T, SHIFT>(sum, f.top);
  }
}
