// Planes of video as RGB. Tables say which samples make each row and column of the results, and with
// which weights; lbrx/video/resampling.py makes them. Generated kernels call these functions.
#pragma once
#include "elementwise.h"
#include "records/video_frames.h"
#include "video_transfer.h"

constant constexpr uint VIDEO_RUN = 256;      // columns of a thread's results at most
constant constexpr uint VIDEO_WINDOW = 1024;  // samples of a row that they are made of at most

// How columns are made of samples: one sample each, doubled, or by weights.
constant constexpr uint VIDEO_SAME = 0;
constant constexpr uint VIDEO_DOUBLED = 1;
constant constexpr uint VIDEO_WEIGHTED = 2;

// Adds four weighted rows to a line, or begins it with them.
template <typename T, uint STEP, bool BEGIN>
inline void video_four_rows(thread float* line, device const T* row, uint pitch, float4 w,
                            uint length) {
  device const T* second = row + pitch;
  device const T* third = second + pitch;
  device const T* fourth = third + pitch;
  for (uint i = 0; i < length; i++) {
    const float before = BEGIN ? 0.0f : line[i];
    const float upper = fma(w.y, float(second[i * STEP]), fma(w.x, float(row[i * STEP]), before));
    line[i] = fma(w.w, float(fourth[i * STEP]), fma(w.z, float(third[i * STEP]), upper));
  }
}

// Samples `begin` and following of row y of the results.
template <typename T, uint STEP, uint OFFSET>
inline void video_line(thread float* line, device const T* plane, uint pitch, VideoAxisRecord down,
                       device const int* firsts, device const float* weights, uint y, uint begin,
                       uint length) {
  device const T* row = plane + ulong(firsts[down.first + y]) * pitch + begin * STEP + OFFSET;
  device const float* w = weights + down.weights + y * down.taps;
  uint k = 0;
  if (down.taps == 1) {
    for (uint i = 0; i < length; i++) line[i] = float(row[i * STEP]);
    return;
  }
  if (down.taps >= 4) {
    video_four_rows<T, STEP, true>(line, row, pitch, float4(w[0], w[1], w[2], w[3]), length);
    for (k = 4; k + 4 <= down.taps; k += 4)
      video_four_rows<T, STEP, false>(line, row + ulong(k) * pitch, pitch,
                                      float4(w[k], w[k + 1], w[k + 2], w[k + 3]), length);
  } else {
    device const T* second = row + pitch;
    const float w0 = w[0], w1 = w[1];
    for (uint i = 0; i < length; i++)
      line[i] = fma(w1, float(second[i * STEP]), w0 * float(row[i * STEP]));
    k = 2;
  }
  for (; k < down.taps; k++) {
    device const T* more = row + ulong(k) * pitch;
    const float wk = w[k];
    for (uint i = 0; i < length; i++) line[i] = fma(wk, float(more[i * STEP]), line[i]);
  }
}

// Chroma of half the width: a sample beyond an edge is the one at the edge.
template <typename T, uint STEP, uint OFFSET>
inline void video_doubled(thread float* to, thread float* line, constant VideoFramesRecord& f,
                          device const T* plane, uint component, device const int* firsts,
                          device const float* weights, uint y, uint column, uint count) {
  const int begin = f.pair_base + int(column / 2), pairs = int(count + 1) / 2;
  const int end = begin + pairs + 2, low = max(begin, 0);
  const int high = min(end, int(f.samples[component]));
  video_line<T, STEP, OFFSET>(line + (low - begin), plane, f.pitch[component], f.chroma.down,
                              firsts, weights, y, uint(low), uint(high - low));
  for (int i = 0; i < low - begin; i++) line[i] = line[low - begin];
  for (int i = high - begin; i < end - begin; i++) line[i] = line[high - begin - 1];
  const float a = f.pair_weights[0], b = f.pair_weights[1];
  const float c = f.pair_weights[2], d = f.pair_weights[3];
  thread const float* odd = line + f.pair_odd;
  for (int i = 0; i < pairs; i++) {
    to[2 * i] = fma(b, line[i + 1], a * line[i]);
    to[2 * i + 1] = fma(d, odd[i + 1], c * odd[i]);
  }
}

// `count` columns of a component from `column` on, in row y of the results.
template <typename T, uint STEP, uint OFFSET, uint MODE>
inline void video_run(thread float* to, constant VideoFramesRecord& f, device const T* plane,
                      uint component, constant VideoAxesRecord& axes, device const int* firsts,
                      device const float* weights, uint image, uint y, uint column, uint count) {
  plane += ulong(image) * f.size[component];
  const VideoAxisRecord right = axes.right;
  if (MODE == VIDEO_SAME) {
    const uint begin = uint(firsts[right.first]) + column;
    video_line<T, STEP, OFFSET>(to, plane, f.pitch[component], axes.down, firsts, weights, y,
                                begin, count);
    return;
  }
  float line[VIDEO_WINDOW];
  if (MODE == VIDEO_DOUBLED) {
    video_doubled<T, STEP, OFFSET>(to, line, f, plane, component, firsts, weights, y, column,
                                   count);
    return;
  }
  device const int* starts = firsts + right.first + column;
  const uint begin = uint(starts[0]), end = uint(starts[count - 1]) + right.taps;
  const uint length = min(end, f.samples[component]) - begin;
  video_line<T, STEP, OFFSET>(line, plane, f.pitch[component], axes.down, firsts, weights, y,
                              begin, length);
  for (uint i = length; i < end - begin; i++) line[i] = 0.0f;
  for (uint j = 0; j < count; j++) {
    thread const float* from = line + (uint(starts[j]) - begin);
    device const float* w = weights + right.weights + (column + j) * right.taps;
    float4 sum = 0.0f;
    for (uint k = 0; k < right.taps; k += 4)
      sum = fma(float4(w[k], w[k + 1], w[k + 2], w[k + 3]),
                float4(from[k], from[k + 1], from[k + 2], from[k + 3]), sum);
    to[j] = (sum.x + sum.y) + (sum.z + sum.w);
  }
}

// One pixel of a component, for devices whose threads run side by side.
template <typename T, uint STEP, uint OFFSET>
inline float video_pixel(constant VideoFramesRecord& f, device const T* plane, uint component,
                         constant VideoAxesRecord& axes, device const int* firsts,
                         device const float* weights, uint image, uint y, uint x) {
  const VideoAxisRecord down = axes.down, right = axes.right;
  const uint pitch = f.pitch[component], first = uint(firsts[right.first + x]);
  const uint taps = min(right.taps, f.samples[component] - first);
  device const T* row = plane + ulong(image) * f.size[component] +
                        ulong(firsts[down.first + y]) * pitch + first * STEP + OFFSET;
  device const float* across = weights + right.weights + x * right.taps;
  device const float* along = weights + down.weights + y * down.taps;
  float sum = 0.0f;
  for (uint k = 0; k < down.taps; k++, row += pitch) {
    float line = 0.0f;
    for (uint j = 0; j < taps; j++) line = fma(across[j], float(row[j * STEP]), line);
    sum = fma(along[k], line, sum);
  }
  return sum;
}
