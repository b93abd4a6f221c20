// Convolutions of images (image, channel, row, column) with filters (filter, channel, row, column).
#pragma once
#include "image_rows.h"
#include "records/convolution.h"

constant constexpr uint TAPS = 4;  // elements of a filter in one pass over the sums

// What the taps from `first` on see of a row of results, 0 beyond the image and the last tap.
template <uint N, typename T>
inline void load_taps(thread float (&values)[TAPS][N], device const T* x, constant ConvolutionRecord& c,
                      uint first, uint taps, uint row, uint column) {
  const uint area = c.rows * c.columns;
  for (uint s = 0; s < TAPS; s++) {
    const uint tap = first + s, place = tap % area;
    const int y = int(row * c.down + place / c.columns * c.spread_down) - c.top;
    if (tap < taps && y >= 0 && y < int(c.height)) {
      const int left = int(column * c.right + place % c.columns * c.spread_right) - c.left;
      device const T* from = x + (ulong(tap / area) * c.height + y) * c.width;
      load_row(values[s], from, left, int(c.right), int(c.width), 0.0f);
    } else {
      for (uint j = 0; j < N; j++) values[s][j] = 0.0f;
    }
  }
}

// A thread makes N columns of a row of results, for F filters: what it reads of the image serves
// all of them. Products are added in the order of the channels, rows and columns of a filter.
template <typename T, uint F, uint N>
kernel void conv2d_direct(device const T* x [[buffer(0)]], device const T* weight [[buffer(1)]],
                          device const T* bias [[buffer(2)]], device T* out [[buffer(3)]],
                          constant ConvolutionRecord& c [[buffer(4)]],
                          uint3 at [[thread_position_in_grid]]) {
  const uint first_filter = at.z % c.tiles * F, group = at.z / c.tiles % c.groups;
  const ulong image = at.z / c.tiles / c.groups;
  const uint filters = min(F, c.filters - first_filter);
  const uint column = at.x * N, columns = min(N, c.out_width - column);
  const uint taps = c.channels * c.rows * c.columns;
  x += (image * c.groups + group) * c.channels * c.height * c.width;
  weight += (ulong(group) * c.filters + first_filter) * taps;
  float sums[F][N];
  for (uint f = 0; f < F; f++)
    for (uint j = 0; j < N; j++) sums[f][j] = 0.0f;
  for (uint tap = 0; tap < taps; tap += TAPS) {
    float values[TAPS][N];
    load_taps(values, x, c, tap, taps, at.y, column);
    for (uint f = 0; f < F; f++) {
      if (f >= filters) break;
      float factors[TAPS];
      for (uint s = 0; s < TAPS; s++)
        factors[s] = tap + s < taps ? float(weight[ulong(f) * taps + tap + s]) : 0.0f;
      for (uint j = 0; j < N; j++) {
        float sum = sums[f][j];
#pragma unroll
        for (uint s = 0; s < TAPS; s++) sum = fma(factors[s], values[s][j], sum);
        sums[f][j] = sum;
      }
    }
  }
  for (uint f = 0; f < filters; f++) {
    const ulong filter = ulong(group) * c.filters + first_filter + f;
    const float added = float(bias[filter * c.bias_step]);
    const ulong plane = image * c.groups * c.filters + filter;
    device T* to = out + (plane * c.out_height + at.y) * c.out_width + column;
    for (uint j = 0; j < columns; j++) to[j] = T(sums[f][j] + added);
  }
}

// The matrix whose columns are what a filter covers, for each image: rows are the channels, rows
// and columns of a filter. A thread copies `run` rows of results.
template <typename T>
kernel void conv2d_columns(device const T* x [[buffer(0)]], device T* out [[buffer(1)]],
                           constant ConvolutionRecord& c [[buffer(2)]], constant uint& run [[buffer(3)]],
                           uint2 at [[thread_position_in_grid]]) {
  const uint area = c.rows * c.columns, place = at.y % area;
  device const T* plane = x + ulong(at.y / area) * c.height * c.width;
  // The results that see the image: places left + j * step from 0 to width - 1.
  const int step = int(c.right), width = int(c.width), most = int(c.out_width);
  const int left = int(place % c.columns * c.spread_right) - c.left;
  const int begin = min(left < 0 ? (-left + step - 1) / step : 0, most);
  const int end = max(left < width ? min((width - left + step - 1) / step, most) : 0, begin);
  const uint last = min((at.x + 1) * run, c.out_height);
  for (uint row = at.x * run; row < last; row++) {
    const int y = int(row * c.down + place / c.columns * c.spread_down) - c.top;
    device T* to = out + (ulong(at.y) * c.out_height + row) * c.out_width;
    if (y < 0 || y >= int(c.height)) {
      for (int j = 0; j < most; j++) to[j] = T(0);
      continue;
    }
    device const T* from = plane + ulong(y) * c.width;
    for (int j = 0; j < begin; j++) to[j] = T(0);
    if (step == 1) {
      for (int j = begin; j < end; j++) to[j] = from[left + j];
    } else {
      for (int j = begin; j < end; j++) to[j] = from[left + j * step];
    }
    for (int j = end; j < most; j++) to[j] = T(0);
  }
}

// Sums of products as results, with the bias of each filter.
template <typename T>
kernel void conv2d_bias(device const float* sums [[buffer(0)]], device const T* bias [[buffer(1)]],
                        device T* out [[buffer(2)]], constant ConvolutionRecord& c [[buffer(3)]],
                        uint2 at [[thread_position_in_grid]]) {
  const float added = float(bias[at.y % (c.groups * c.filters)]);
  const ulong row = ulong(at.y) * c.out_height * c.out_width;
  out[row + at.x] = T(sums[row + at.x] + added);
}
